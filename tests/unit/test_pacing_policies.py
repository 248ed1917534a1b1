"""What every registered policy owes its caller, and what each of ours decides in the states that matter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import InvalidRequest
from outrider.session.pacing.contract import CostCurve, PacingPlan, SessionView, StepView
from outrider.session.pacing.draft_length import LOOK_EVERY_US, DraftLength, Rates, pearl_tokens_per_us, serial_tokens_per_us
from outrider.session.pacing.pearl import PearlPacing
from outrider.session.pacing.registry import PACINGS, make_pacing
from outrider.session.pacing.row_budget import Wanted, share_rows
from outrider.session.pacing.serial import SerialPacing

COST = CostCurve(((1, 10_000.0), (64, 12_000.0)))
READY = SessionView(
    session=1,
    committed_len=20,
    num_uncached=1,
    num_nodes=0,
    depth=0,
    tail_ended=False,
    has_drafter=True,
    following=True,
    waiting_since_us=1000,
    draft_deadline_us=50_000,
    max_draft_len=16,
    remaining=100,
    draft_us_per_token=2_000.0,
    acceptance=0.8,
)
VIEWS = st.builds(
    SessionView,
    session=st.integers(1, 5),
    committed_len=st.integers(1, 100),
    num_uncached=st.sampled_from([1, 1, 1, 7, 500]),
    num_nodes=st.integers(0, 40),
    depth=st.integers(0, 20),
    tail_ended=st.booleans(),
    has_drafter=st.booleans(),
    following=st.booleans(),
    waiting_since_us=st.integers(0, 1000),
    draft_deadline_us=st.integers(0, 2000),
    max_draft_len=st.integers(0, 24),
    remaining=st.integers(1, 50),
    draft_us_per_token=st.sampled_from([0.0, 100.0, 5_000.0]),
    acceptance=st.floats(0.0, 1.0),
)


def plan(name: str, *sessions: SessionView, now_us: int = 2000, max_rows: int = 64) -> PacingPlan:
    return make_pacing(name, 4).plan(StepView(sessions, COST, max_rows, now_us))


def takes(name: str, session: SessionView, now_us: int = 2000) -> bool:
    return bool(plan(name, session, now_us=now_us).take)


@pytest.mark.parametrize("name", sorted(PACINGS))
@settings(max_examples=100, deadline=None)
@given(
    sessions=st.lists(VIEWS, max_size=5, unique_by=lambda view: view.session),
    max_rows=st.integers(1, 48),
    draft_len=st.sampled_from([None, 1, 4]),
)
def test_a_plan_fits_its_rows_and_never_holds_the_overdue(
    name: str, sessions: list[SessionView], max_rows: int, draft_len: int | None
) -> None:
    policy = make_pacing(name, draft_len)
    now_us = 1000
    made = policy.plan(StepView(tuple(sessions), COST, max_rows, now_us))
    views = {view.session: view for view in sessions}
    assert sum(entry.max_feed + entry.max_nodes for entry in made.take) <= max_rows
    assert len({entry.session for entry in made.take}) == len(made.take)
    for entry in made.take:
        view = views[entry.session]
        assert 1 <= entry.max_feed <= view.num_uncached
        assert 0 <= entry.max_nodes <= view.num_nodes
        assert entry.max_nodes == 0 or entry.max_feed == view.num_uncached, "guesses follow the newest committed token only"
    overdue = [view for view in sessions if now_us >= view.draft_deadline_us or not view.has_drafter or view.num_uncached > 1]
    assert made.take or not overdue
    if not made.take and sessions:
        assert made.wake_us is not None
        assert made.wake_us > now_us
    for view in sessions:
        assert policy.draft_ahead(view) >= 0
        assert view.max_draft_len or not policy.draft_ahead(view)
        assert not policy.lets_rest(view.session, view.committed_len) or not policy.draft_ahead(view), "who is let rest has no leave"


def test_plain_never_waits() -> None:
    assert takes("plain", READY)
    assert make_pacing("plain").draft_ahead(READY) == 0


def test_serial_waits_for_its_draft_a_pause_or_the_deadline() -> None:
    assert not takes("serial", READY)
    assert not takes("serial", replace(READY, depth=3, num_nodes=3))
    assert takes("serial", replace(READY, depth=4, num_nodes=4))
    assert takes("serial", replace(READY, depth=1, num_nodes=1, tail_ended=True))
    assert takes("serial", READY, now_us=50_000)
    assert takes("serial", replace(READY, has_drafter=False))
    assert plan("serial", READY).wake_us == 50_000


def test_serial_lets_the_drafter_run_one_draft_ahead() -> None:
    policy = SerialPacing(6)
    assert policy.draft_ahead(READY) == 6
    assert policy.draft_ahead(replace(READY, max_draft_len=3)) == 3
    assert policy.draft_ahead(replace(READY, max_draft_len=0)) == 0


def test_pearl_pre_verifies_at_once_when_the_drafter_starts_over() -> None:
    assert takes("pearl", replace(READY, following=False))


def test_pearl_waits_for_the_block_when_it_may_be_followed() -> None:
    assert not takes("pearl", READY)
    assert not takes("pearl", replace(READY, depth=2, num_nodes=2))
    assert takes("pearl", replace(READY, depth=3, num_nodes=3)), "the block's first token was tested by the last pick"
    assert takes("pearl", READY, now_us=50_000)


def test_pearl_runs_through_the_next_block_and_sends_by_blocks() -> None:
    policy = PearlPacing(5)
    assert policy.draft_ahead(READY) == 9
    assert policy.flush_len(READY) == 5
    assert policy.draft_ahead(replace(READY, max_draft_len=2)) == 3


@pytest.mark.parametrize("wish", [None, 1])
def test_pearl_keeps_to_blocks_that_leave_something_to_verify(wish: int | None) -> None:
    """A slow draft token promises nothing, and may only seem slow: with blocks of one no guess would ever be verified to find out."""
    policy = PearlPacing(wish)
    seen = replace(READY, draft_us_per_token=10.0 * COST.verify_us(1), acceptance=0.3, following=False)
    for at in range(5):
        policy.plan(StepView((seen,), COST, 64, at * LOOK_EVERY_US))
    assert policy.draft_len == 2
    assert policy.draft_ahead(seen) == 3
    assert policy.draft_ahead(replace(seen, max_draft_len=1)) == 3
    assert not takes("pearl", replace(READY, max_draft_len=1)), "one guess is to be verified"


def test_near_the_end_nobody_waits_for_a_whole_draft() -> None:
    assert takes("serial", replace(READY, remaining=3, depth=2, num_nodes=2))
    assert takes("pearl", replace(READY, remaining=3, depth=1, num_nodes=1))
    assert takes("pearl", replace(READY, remaining=1))


def test_one_waits_while_another_goes() -> None:
    ready = replace(READY, session=2, depth=4, num_nodes=4)
    made = plan("serial", READY, ready)
    assert [entry.session for entry in made.take] == [2]
    assert made.wake_us == READY.draft_deadline_us


def test_rows_go_to_decoding_first_then_to_nodes_evenly_then_to_prefill() -> None:
    first = replace(READY, session=1, num_nodes=10, waiting_since_us=5)
    second = replace(READY, session=2, num_nodes=2, waiting_since_us=9)
    prompt = replace(READY, session=3, num_uncached=100, waiting_since_us=0)
    made = {entry.session: entry for entry in share_rows([Wanted(view, 16) for view in (prompt, second, first)], 20)}
    assert (made[1].max_nodes, made[2].max_nodes) == (9, 2)
    assert made[3].max_feed == 20 - 2 - 11
    assert made[3].max_nodes == 0


def test_too_many_sessions_take_turns_by_waiting_time() -> None:
    sessions = [replace(READY, session=at, waiting_since_us=100 - at) for at in range(1, 6)]
    made = share_rows([Wanted(view, 0) for view in sessions], 3)
    assert [entry.session for entry in made] == [5, 4, 3]


def test_the_draft_length_follows_the_ratio_of_speeds() -> None:
    flat = CostCurve(((1, 10_000.0), (64, 10_000.0)))
    for ratio in (3, 5, 8):
        length = DraftLength(None, pearl_tokens_per_us)
        length.update(StepView((replace(READY, draft_us_per_token=10_000.0 / ratio, acceptance=0.9),), flat, 64, 0))
        assert length.value == ratio


def test_serial_drafts_longer_when_acceptance_is_high_and_drafting_cheap() -> None:
    def best(acceptance: float, draft_us: float) -> int:
        rates = Rates(COST, draft_us, acceptance)
        return max(range(1, 33), key=lambda length: serial_tokens_per_us(rates, length))

    assert best(0.5, 2_000.0) < best(0.8, 2_000.0) < best(0.95, 2_000.0)
    assert best(0.8, 4_000.0) < best(0.8, 500.0)


def test_what_a_round_costs_anyway_makes_longer_drafts_pay() -> None:
    def best(overhead_us: float) -> int:
        rates = Rates(COST, 500.0, 0.9, overhead_us)
        return max(range(1, 33), key=lambda length: serial_tokens_per_us(rates, length))

    assert best(0.0) < best(5_000.0) < best(50_000.0)


def test_a_session_that_has_not_measured_its_overhead_does_not_count_as_one_without() -> None:
    measured = replace(READY, draft_us_per_token=500.0, acceptance=0.9, overhead_us=50_000.0)
    everybody, one = DraftLength(None, serial_tokens_per_us), DraftLength(None, serial_tokens_per_us)
    others = [replace(measured, session=at) for at in range(2, 9)]
    everybody.update(StepView((measured, *others), COST, 64, 0))
    one.update(StepView((measured, *(replace(other, overhead_us=0.0) for other in others)), COST, 64, 0))
    assert one.value == everybody.value


def test_sessions_that_share_a_step_are_counted_with_their_rows() -> None:
    cost = CostCurve(((1, 2_000.0), (8, 4_000.0), (64, 20_000.0)))

    def chosen(num_sessions: int) -> int:
        length = DraftLength(None, pearl_tokens_per_us)
        sessions = tuple(replace(READY, session=at, draft_us_per_token=1_500.0, acceptance=0.9) for at in range(num_sessions))
        length.update(StepView(sessions, cost, 64, 0))
        return length.value

    assert chosen(1) < chosen(6)  # a step of six takes longer, so more is drafted meanwhile


def test_one_slow_first_draft_does_not_shorten_everybodys() -> None:
    flat = CostCurve(((1, 10_000.0), (64, 10_000.0)))
    length = DraftLength(None, pearl_tokens_per_us)
    length.update(StepView((replace(READY, draft_us_per_token=1_000.0, acceptance=0.95),), flat, 64, 0))
    before = length.value
    length.update(StepView((replace(READY, draft_us_per_token=9_000.0, acceptance=0.95),), flat, 64, 1_000_000))
    assert length.value > before // 3


def test_a_slightly_better_length_does_not_change_it() -> None:
    length = DraftLength(None, serial_tokens_per_us)
    length.update(StepView((replace(READY, acceptance=0.80),), COST, 64, 0))
    chosen = length.value
    length.update(StepView((replace(READY, acceptance=0.81),), COST, 64, LOOK_EVERY_US))
    assert length.value == chosen
    length.update(StepView((replace(READY, acceptance=0.97),), COST, 64, 2 * LOOK_EVERY_US))
    assert length.value > chosen


def test_the_length_is_looked_for_now_and_then_not_in_every_plan() -> None:
    num_asked = 0

    def throughput(rates: Rates, draft_len: int) -> float:
        nonlocal num_asked
        num_asked += 1
        return serial_tokens_per_us(rates, draft_len)

    length = DraftLength(None, throughput)
    length.update(StepView((replace(READY, draft_us_per_token=0.0),), COST, 64, 0))
    assert num_asked == 0
    length.update(StepView((READY,), COST, 64, 10))
    once = num_asked
    assert once > 0
    for now_us in range(11, 10 + LOOK_EVERY_US, 1000):
        length.update(StepView((READY,), COST, 64, now_us))
    assert num_asked == once
    length.update(StepView((READY,), COST, 64, 10 + LOOK_EVERY_US))
    assert num_asked == 2 * once


@pytest.mark.parametrize("draft_len", [1, 4, 9])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 0.99])
def test_pearls_throughput_is_that_of_its_published_sums(alpha: float, draft_len: int) -> None:
    emitted = sum(alpha**n * (1 - alpha) * (n + 1) for n in range(draft_len)) + draft_len * alpha**draft_len
    post_share = alpha / (alpha + 1 - alpha**draft_len)
    flat = CostCurve(((1, 1000.0),))
    expected = ((1 - post_share) + post_share * emitted) / 1500.0
    assert pearl_tokens_per_us(Rates(flat, 100.0, alpha, 500.0), draft_len) == pytest.approx(expected)


def test_a_fixed_length_stays() -> None:
    length = DraftLength(7, serial_tokens_per_us)
    length.update(StepView((READY,), COST, 64, 0))
    assert length.value == 7


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match=r"magic.*pearl"):
        make_pacing("magic")
