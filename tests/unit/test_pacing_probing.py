"""Probes of sessions that go without guesses: their share of the time, whose turn it is, and when one is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes_pacing import NOW_US, READY
from outrider.session.pacing.probing import (
    MAX_PROBE_AFTER,
    MAX_PROBE_TOKENS,
    OWN_PROBE_AFTER,
    PROBE_AFTER,
    PROBE_SHARE,
    PROBE_TESTS,
    Probe,
    ProbeBudget,
)

PLAIN_US = 1_000.0


def started(budget: ProbeBudget) -> Probe:
    """A probe that has just begun at READY's length."""
    probe = Probe(READY.committed_len - OWN_PROBE_AFTER)
    budget.count_plain(MAX_PROBE_AFTER)
    probe.begin_if_due(READY, budget)
    assert probe.is_on
    return probe


def plain_tokens_until_due(budget: ProbeBudget) -> int:
    num_tokens = 0
    while not budget.take():
        budget.count_plain(1)
        num_tokens += 1
    return num_tokens


def test_all_sessions_together_probe_once_in_so_many_plain_tokens() -> None:
    budget = ProbeBudget()
    assert plain_tokens_until_due(budget) == PROBE_AFTER
    assert plain_tokens_until_due(budget) == PROBE_AFTER


@pytest.mark.parametrize("lost_tokens", [3.0, 30.0])
def test_dear_probes_come_seldom_and_cost_their_share(lost_tokens: float) -> None:
    budget = ProbeBudget()
    budget.pay(lost_tokens)
    assert lost_tokens / plain_tokens_until_due(budget) == pytest.approx(PROBE_SHARE, rel=0.01)
    budget.pay(1e9)
    assert plain_tokens_until_due(budget) == MAX_PROBE_AFTER
    budget.relax()
    assert plain_tokens_until_due(budget) == PROBE_AFTER


def test_a_session_that_has_hardly_decoded_leaves_the_probe_to_another() -> None:
    budget = ProbeBudget()
    budget.count_plain(PROBE_AFTER)
    fresh, old = Probe(READY.committed_len), Probe(0)
    fresh.begin_if_due(READY, budget)
    assert not fresh.is_on
    old.begin_if_due(READY, budget)
    assert old.is_on


def test_a_probe_is_over_when_guesses_were_judged_or_none_came_and_is_billed_what_it_took() -> None:
    for tested, tokens in ((PROBE_TESTS, 2), (0, MAX_PROBE_TOKENS)):
        budget = ProbeBudget()
        probe = started(budget)
        going = replace(READY, num_tested=READY.num_tested + PROBE_TESTS - 1, committed_len=READY.committed_len + 1)
        probe.end_if_done(going, budget, PLAIN_US)
        assert probe.is_on
        took_us = round((tokens + 7.0) * PLAIN_US)  # so seven tokens were lost
        over = replace(
            READY, num_tested=READY.num_tested + tested, committed_len=READY.committed_len + tokens, waiting_since_us=NOW_US + took_us
        )
        probe.end_if_done(over, budget, PLAIN_US)
        assert not probe.is_on
        assert probe.plain_since == over.committed_len
        assert plain_tokens_until_due(budget) == pytest.approx(7.0 / PROBE_SHARE, rel=0.01)


def test_a_probe_costs_everybody_who_shares_its_steps() -> None:
    budget = ProbeBudget()
    probe = started(budget)
    over = replace(READY, num_tested=READY.num_tested + PROBE_TESTS, committed_len=READY.committed_len + 2, waiting_since_us=NOW_US + 5_000)
    probe.end_if_done(over, budget, PLAIN_US, num_sessions=8)
    lost = 8 * 5 - 2 - 7  # each of the others got one token in a step that took five plain ones' time
    assert plain_tokens_until_due(budget) == pytest.approx(lost / PROBE_SHARE, rel=0.01)


def test_a_probe_that_costs_nothing_still_comes_after_so_many_tokens_of_each() -> None:
    for num_sessions in (1, 8):
        budget = ProbeBudget()
        budget.pay(-5.0, num_sessions)
        assert plain_tokens_until_due(budget) == num_sessions * PROBE_AFTER


def test_a_probe_that_paid_for_its_session_is_no_gain_of_those_who_waited() -> None:
    """Two steps of three plain ones' time each brought six tokens to one and two to each of three: 12 of 24."""
    budget = ProbeBudget()
    probe = started(budget)
    half = replace(READY, num_tested=READY.num_tested + 2, committed_len=READY.committed_len + 3, waiting_since_us=NOW_US + 3_000)
    probe.end_if_done(half, budget, PLAIN_US, num_sessions=4)
    assert probe.is_on
    over = replace(READY, num_tested=READY.num_tested + PROBE_TESTS, committed_len=READY.committed_len + 6, waiting_since_us=NOW_US + 6_000)
    probe.end_if_done(over, budget, PLAIN_US, num_sessions=4)
    assert plain_tokens_until_due(budget) == pytest.approx((4 * 6 - 6 - 3 * 2) / PROBE_SHARE, rel=0.01)
    again = replace(over, committed_len=over.committed_len + OWN_PROBE_AFTER)
    budget.count_plain(MAX_PROBE_AFTER)
    probe.begin_if_due(again, budget)
    ended = replace(again, num_tested=again.num_tested + PROBE_TESTS, committed_len=again.committed_len + 3)
    ended = replace(ended, waiting_since_us=NOW_US + 9_000)
    probe.end_if_done(ended, budget, PLAIN_US, num_sessions=4)
    assert plain_tokens_until_due(budget) == pytest.approx((4 * 3 - 3 - 3) / PROBE_SHARE, rel=0.01), "each is billed by itself"


@pytest.mark.parametrize("hopeless", [False, True])
@pytest.mark.parametrize("num_before", [0, PROBE_AFTER + 5])
def test_whether_a_probe_is_due_is_known_without_beginning_one(num_before: int, hopeless: bool) -> None:
    """With another session beside it, so that two tokens count for each of its own."""
    budget, probe, session = ProbeBudget(), Probe(READY.committed_len), READY
    budget.count_plain(num_before)
    while not probe.is_on:
        session = replace(session, committed_len=session.committed_len + 1)
        budget.count_plain(2)
        is_due = probe.is_due(session.committed_len, budget, hopeless=hopeless)
        probe.begin_if_due(session, budget, hopeless=hopeless)
        assert probe.is_on is is_due
    assert session.committed_len >= READY.committed_len + OWN_PROBE_AFTER
