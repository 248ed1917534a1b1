"""Whose texts are kept for guesses from them: those of kinds that such guesses pay, one session in a few of any other, and a text that
repeats itself whatever its kind. Run: pytest tests/unit/test_pacing_text_taking.py"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fakes import TruthTable
from fakes_pacing import NOW_US, READY
from fakes_simulation import spec_of
from outrider.session.events import RoundPlanned, RoundVerified
from outrider.session.lookup_guesses import LookupGuesses
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.by_lookup import ByLookup
from outrider.session.pacing.contract import CostCurve, StepView
from outrider.session.pacing.registry import PACINGS, make_pacing
from outrider.session.pacing.text_taking import COST_TIMES, HANDED_ON, LEAST_TOKENS, TRY_EVERY, TextTaking
from outrider.session.shared_lookup import NO_TEXTS
from outrider.session.text_watch import END_LEN, WATCH_EVERY, WATCH_SHARE, TextWatch, repeats_itself
from outrider.session.verifier import VerifierSession
from outrider.types.tree import Verdict

STEP_US = 400.0
COST = CostCurve(((1, STEP_US), (16, 2 * STEP_US)))
KEEPING_US = 20.0  # a token
GOOD = (0.95,) * 8
LONG_STEP = CostCurve(((1, 100 * STEP_US), (16, 200 * STEP_US)))


# --- the account ---------------------------------------------------------------------------------------------------------------


def test_nothing_is_held_against_it_before_enough_is_known() -> None:
    texts = TextTaking()
    texts.count(int(LEAST_TOKENS) - 1, 0.0, 10.0)
    assert texts.pays
    texts.count(2, 0.0, 0.1)
    assert not texts.pays


def test_it_pays_where_it_saves_more_than_all_it_takes() -> None:
    for saved, pays in ((COST_TIMES * 1.01, True), (COST_TIMES * 0.99, False)):
        texts = TextTaking()
        for _ in range(60):
            texts.count(2, saved, 1.0)
        assert texts.pays is pays


def test_one_long_copy_among_half_a_dozen_answers_is_remembered() -> None:
    texts = TextTaking()
    texts.count(100, 60.0, 4.0)
    for _ in range(6):
        texts.count(40, 0.0, 1.5)
        assert texts.pays
    for _ in range(60):
        texts.count(40, 0.0, 1.5)
    assert not texts.pays


def test_one_session_in_a_few_tries_again() -> None:
    texts = TextTaking()
    assert [texts.begins() for _ in range(3)] == [True] * 3
    texts.count(100, 0.0, 4.0)
    begun = [texts.begins() for _ in range(4 * TRY_EVERY)]
    at = [place for place, taken in enumerate(begun) if taken]
    assert {right - left for left, right in pairwise(at)} == {TRY_EVERY}
    texts.count(100, 100.0, 4.0)
    assert [texts.begins() for _ in range(3)] == [True] * 3


def test_a_kind_begins_with_some_of_what_is_known_of_the_one_before() -> None:
    before = TextTaking()
    before.count(1_000, 0.0, 40.0)
    kind = TextTaking(before)
    assert not kind.pays
    kind.count(int(HANDED_ON), 3 * COST_TIMES * 4.0, 4.0)
    assert kind.pays, "a few answers of its own are enough"
    assert not before.pays


# --- the policy ----------------------------------------------------------------------------------------------------------------


def answer(policy: AdaptivePacing, number: int, *, rights: tuple[float, ...] = (), kind: int = 1, cost: CostCurve = COST) -> bool:
    """Forty tokens of one session that decodes plainly, or by its text where that is kept. Whether it was."""
    taken = policy.takes_up_text(kind, 0)
    committed, now_us, spent_us = 100, float(NOW_US + 10_000_000 * number), 0.0
    while committed < 140:
        own = replace(READY, session=number, kind=kind, has_drafter=False, max_draft_len=8, committed_len=committed)
        own = replace(
            own, remaining=141 - committed, waiting_since_us=int(now_us), lookup_us=spent_us, lookup_rights=rights if taken else ()
        )
        plan = policy.plan(StepView((own,), cost, 64, int(now_us)))
        num_guesses = sum(part.max_nodes for part in plan.take if part.from_lookup)
        now_us += cost.verify_us(1 + num_guesses)
        committed += 1 + num_guesses  # all of them are right
        spent_us += KEEPING_US * (1 + num_guesses) * taken
    return taken


def test_texts_that_never_repeat_themselves_are_kept_by_one_session_in_a_few() -> None:
    policy = AdaptivePacing()
    taken = [answer(policy, number) for number in range(40)]
    assert taken[:2] == [True, True]
    assert sum(taken[4:]) == 36 // TRY_EVERY


def test_texts_that_offer_much_are_kept() -> None:
    policy = AdaptivePacing()
    assert [answer(policy, number, rights=GOOD) for number in range(40)] == [True] * 40


def test_beside_a_large_target_keeping_them_is_nothing() -> None:
    """As often as there is anything to be saved at all, here by one session of ten."""
    policy = AdaptivePacing()
    assert [answer(policy, number, rights=() if number % 10 else GOOD, cost=LONG_STEP) for number in range(40)] == [True] * 40


def test_kinds_are_told_apart() -> None:
    policy = AdaptivePacing()
    for number in range(0, 40, 2):
        answer(policy, number, kind=1)
        assert answer(policy, number + 1, rights=GOOD, kind=2)
    assert not policy.takes_up_text(1, 0)
    assert policy.takes_up_text(2, 0)


def test_a_kind_that_grew_out_of_another_begins_as_that_one_is() -> None:
    policy = AdaptivePacing()
    for number in range(3):
        answer(policy, number)
    assert not policy.takes_up_text(2, 1)
    assert policy.takes_up_text(3, 0)


def test_what_keeping_it_took_is_counted_once() -> None:
    policy = AdaptivePacing()
    answer(policy, 0)
    answer(policy, 1)
    texts = policy._sessions._kind(1, 0).texts
    assert texts._spent / texts._num_tokens == pytest.approx(KEEPING_US / STEP_US, rel=0.05)
    assert texts._saved == 0.0


def test_guesses_save_what_the_same_tokens_would_have_taken_without() -> None:
    by_text, rights = ByLookup(8), (0.9, 0.8)
    session = replace(READY, committed_len=100, remaining=40, max_draft_len=8, lookup_rights=rights)
    by_text.observe(StepView((session,), COST, 64, 0), 50.0, 30.0)
    plain = 1.0 / (STEP_US + 50.0)
    assert by_text.num_guesses(session, plain, plainly=True) == 2
    tokens, took_us = 1.0 + 0.9 + 0.9 * 0.8, COST.verify_us(3) + 50.0 + 30.0
    assert by_text.saved_us(READY.session, 100) == pytest.approx(tokens / plain - took_us)
    assert by_text.saved_us(READY.session, 101) == 0.0
    drafted = ByLookup(8)
    drafted.observe(StepView((session,), COST, 64, 0), 50.0, 30.0, 30.0)
    assert drafted.num_guesses(session, 1.5 * plain) == 2
    assert drafted.saved_us(READY.session, 100) == pytest.approx(tokens / (1.5 * plain) - took_us)


@pytest.mark.parametrize("name", sorted(PACINGS))
def test_who_looks_up_takes_the_first_text_up_and_nobody_else_any(name: str) -> None:
    policy = make_pacing(name)
    assert policy.takes_up_text(0, 0) is policy.looks_up


# --- the session ---------------------------------------------------------------------------------------------------------------


class Resting(AdaptivePacing):
    """Says of each session that its text is not worth it. num_asked: how often it was asked."""

    num_asked = 0

    def takes_up_text(self, kind: int, shorter_kind: int) -> bool:
        self.num_asked += 1
        return False


class Clock:
    """Ten microseconds between any two looks at it."""

    now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 10_000
        return self.now_ns


class Silent:
    """Other answers, which say nothing."""

    def find(self, end: Sequence[int]) -> tuple[int, Sequence[int]]:
        return 0, ()


def commit(session: VerifierSession, tokens: Sequence[int]) -> None:
    for token in tokens:
        session.step(RoundPlanned(64, 0, 20))
        session.step(RoundVerified(Verdict((), token, bonus=True), 10, 30))


def session_of(policy: AdaptivePacing, prompt: Sequence[int]) -> VerifierSession:
    return VerifierSession(spec_of(1, list(prompt), 400, TruthTable(vocab_size=1000), lookup=True), policy, 0, NO_TEXTS, Clock())


def test_a_text_that_is_not_kept_offers_nothing_and_takes_nothing() -> None:
    policy = Resting()
    session = session_of(policy, [1, 2, 1, 2, 1])
    commit(session, [2, 1, 2, 1])
    view = session.view(0)
    assert (view.lookup_rights, view.lookup_us, policy.num_asked) == ((), 0.0, 1)


def test_a_text_that_is_kept_tells_what_that_took() -> None:
    session = session_of(AdaptivePacing(), [1, 2, 1, 2, 1])
    commit(session, [2, 1, 2])
    view = session.view(0)
    assert view.lookup_rights
    assert view.lookup_us == 30.0, "ten for each time it grew"


def test_one_that_begins_to_repeat_itself_is_kept_from_then_on_with_all_that_it_had() -> None:
    prompt, new = list(range(100, 160)), list(range(500, 520))
    session = session_of(Resting(), prompt)
    commit(session, new)
    assert session.view(0).lookup_rights == ()
    commit(session, prompt[10 : 10 + END_LEN])
    assert session.view(0).lookup_rights == (), "it is not looked at with each token"
    commit(session, prompt[10 + END_LEN : 10 + END_LEN + WATCH_EVERY])
    view = session.view(0)
    assert view.lookup_rights
    whole = LookupGuesses(session.spec)
    whole.observe_commit([*new, *prompt[10 : 10 + END_LEN + WATCH_EVERY]])
    assert view.lookup_rights == whole.rights
    session.step(RoundPlanned(64, 4, 20, from_lookup=True))
    assert session._round is not None
    assert session._round.tree.tokens.tolist() == prompt[10 + END_LEN + WATCH_EVERY :][:4]


def test_a_text_is_searched_seldom() -> None:
    watch, length, looks = TextWatch(1_000), 1_000, list[int]()
    while length < 4_000:
        length += 1
        if watch.is_due(length):
            looks.append(length)
    assert looks[0] == 1_000 + WATCH_EVERY
    assert all(right - left == max(WATCH_EVERY, left // WATCH_SHARE) for left, right in pairwise(looks))


def test_its_end_stands_in_it_before_or_does_not() -> None:
    draw = np.random.default_rng(4)
    text = draw.integers(0, 100_000, 300).tolist()
    assert not repeats_itself(text)
    assert not repeats_itself(text[:END_LEN])
    assert not repeats_itself([])
    assert repeats_itself([*text, *text[50 : 50 + END_LEN]])
    assert not repeats_itself([*text, *text[50 : 50 + END_LEN - 1]])
    assert repeats_itself([7] * (END_LEN + 1))


def test_other_answers_are_taken_up_whatever_the_policy_thinks_of_the_text() -> None:
    policy = Resting()
    VerifierSession(spec_of(1, [1, 2, 3], 40, TruthTable(vocab_size=1000), lookup=True), policy, 0, Silent())
    assert policy.num_asked == 0
