"""When `adaptive` looks for better courses, and what it leaves out of a look.

Run: pytest tests/unit/test_pacing_looks.py
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from fakes_adaptive import FLAT, Driver, successor, taught
from outrider.session.pacing import adaptive
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import SessionView, StepView
from outrider.session.pacing.hedge_worth import SETTLED_COMMITS, HedgeWorth
from outrider.session.pacing.look_times import CALM_LOOKS, LOOK_EVERY_US, PLAIN_LOOKS
from outrider.session.pacing.round_model import Pace, RoundRates
from outrider.session.pacing.surprise import EVERY_US, SURPRISE


@pytest.mark.parametrize(("acceptance", "times_as_seldom"), [(0.02, (PLAIN_LOOKS,)), (0.97, (1, 2, 3, CALM_LOOKS))])
def test_looks_that_find_nothing_become_seldom(
    acceptance: float, times_as_seldom: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes as long as a step of a quick target; who goes without guesses is looked at seldom from the first on."""
    driver, looked_at_us = taught(acceptance), list[int]()
    look = AdaptivePacing._look

    def noted(self: AdaptivePacing, view: StepView) -> None:
        looked_at_us.append(view.now_us)
        look(self, view)

    monkeypatch.setattr(AdaptivePacing, "_look", noted)
    driver.policy._look_times.changed()
    driver.policy._look_times.at_us = driver.now_us
    for _ in range(150):
        driver.now_us += 10_000
        ready: dict[str, Any] = {"committed_len": driver.session.committed_len + 1, "waiting_since_us": driver.now_us}
        driver.session = replace(driver.session, **ready, draft_deadline_us=driver.now_us + 50_000)
        driver.policy.plan(StepView((driver.session,), FLAT, 64, driver.now_us))
    apart = [(after - before) // LOOK_EVERY_US for before, after in itertools.pairwise(looked_at_us)]
    assert apart == sorted(apart)
    assert tuple(sorted(set(apart))) == times_as_seldom


@pytest.mark.parametrize(("pace", "num_tested", "num_looks"), [(Pace.SERIAL, 1, [0, 1]), (Pace.SERIAL, 9, [1, 1]), (Pace.AHEAD, 1, [1, 1])])
def test_a_look_that_is_due_waits_until_an_answers_first_draft_in_turns_is_being_verified(
    pace: Pace, num_tested: int, num_looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind that step there is a wait for the drafter anyway."""
    driver, looked = taught(0.97), list[int]()
    own = driver.policy._sessions.of(driver.session)
    own.course = own.course._replace(pace=pace)
    look = AdaptivePacing._look

    def noted(self: AdaptivePacing, view: StepView) -> None:
        looked.append(view.now_us)
        look(self, view)

    monkeypatch.setattr(AdaptivePacing, "_look", noted)
    driver.policy._look_times.at_us = driver.now_us
    found = []
    for depth in (12, 0):
        driver.policy.plan(driver.view(replace(driver.session, num_nodes=depth, depth=depth, num_tested=num_tested)))
        found.append(len(looked))
    assert found == num_looks


def test_a_whole_draft_from_elsewhere_goes_at_once_and_promises_what_it_would_if_it_were_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighing it takes most of a plan's time, between the draft and its step."""
    driver = taught(0.97)
    own = driver.policy._sessions.of(driver.session)
    own.course = own.course._replace(pace=Pace.SERIAL, hit_len=6, miss_len=6, wait_us=4_000.0)
    view = driver.view(replace(driver.session, num_nodes=6, depth=6, tail_ended=True))
    with monkeypatch.context() as patch:
        patch.setattr(adaptive, "plan_together", None)
        plan = driver.policy.plan(view)
    promised, own.expected_us = own.expected_us, 0.0
    monkeypatch.setattr(adaptive, "whole_draft", lambda *_, **__: None)
    assert driver.policy.plan(view) == plan
    assert own.expected_us == promised > 0.0


def looks_apart(driver: Driver) -> int:
    """How long until the next look that is nobody's surprise, in looks of the usual distance."""
    at_us, looked_us = driver.policy._look_times.at_us, driver.policy._surprises._looked_us
    assert at_us is not None
    assert looked_us is not None
    return (at_us - looked_us) // LOOK_EVERY_US


def test_promises_are_made_anew_when_the_price_of_guesses_proves_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: what came of the old ones would be held against them until the next look."""
    driver, looked = taught(0.97), list[float]()
    look = AdaptivePacing._look

    def noted(self: AdaptivePacing, view: StepView) -> None:
        looked.append(view.guess_us)
        look(self, view)

    monkeypatch.setattr(AdaptivePacing, "_look", noted)
    other = replace(driver.session, session=driver.session.session + 1)
    driver.policy._look_times.at_us = driver.now_us
    for guess_us in (0.0, 15.0, 150.0, 170.0):
        driver.policy.plan(StepView((driver.session, other), FLAT, 64, driver.now_us, guess_us=guess_us))
        driver.now_us += 1
    assert looked == [0.0, 150.0], "one that was due, and one for the price"


def test_a_course_that_changes_brings_looks_back() -> None:
    driver = taught(0.97)
    assert looks_apart(driver) == CALM_LOOKS
    driver.policy.plan(StepView((replace(driver.session, acceptance=0.6),), FLAT, 64, driver.now_us))
    assert looks_apart(driver) == 1


@pytest.mark.parametrize(("reads", "beside", "is_known", "is_looked_at"), [
    (1, 0, True, True), (80, 0, True, False), (80, 1, True, True), (80, 80, True, False), (80, 0, False, True),
])  # fmt: skip
def test_nobody_is_looked_at_while_all_read_their_prompts(
    reads: int, beside: int, is_known: bool, is_looked_at: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was chosen would be looked at again behind that step, for which the first token waits. reads, beside: uncached tokens of a
    session that begins, and of another in the step, if there is one."""
    driver = taught(0.9) if is_known else Driver()
    driver.now_us += 1_000_000
    begins = replace(successor(driver), num_uncached=reads)
    sessions = (begins, replace(begins, session=begins.session + 1, num_uncached=beside)) if beside else (begins,)
    looked = list[StepView]()
    monkeypatch.setattr(AdaptivePacing, "_look", lambda _, view: looked.append(view))
    driver.policy.plan(StepView(sessions, FLAT, 128, driver.now_us))
    assert bool(looked) is is_looked_at


def test_who_decodes_plainly_is_looked_at_for_guesses_that_are_right_and_not_for_wrong_ones() -> None:
    for acceptance, is_looked_at in ((0.0, False), (0.5, True)):
        driver = taught(0.02)
        driver.session = successor(driver, hope=0.02)
        driver.policy.plan(StepView((driver.session,), FLAT, 64, driver.now_us))
        assert driver.policy._sessions.of(driver.session).course.pace is Pace.PLAIN
        at_us, driver.now_us = driver.policy._look_times.at_us, driver.now_us + 1_000
        shown: dict[str, Any] = {"committed_len": 11, "num_tested": 2, "acceptance": acceptance, "waiting_since_us": driver.now_us}
        driver.policy.plan(StepView((replace(driver.session, **shown),), FLAT, 64, driver.now_us))
        assert (driver.policy._look_times.at_us != at_us) is is_looked_at


def test_side_branches_are_weighed_at_looks_that_are_due_once_it_is_known_what_guesses_take_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They take longer to weigh than all the rest of a look."""
    weighed, looked = list[float](), list[int]()
    pays, look = HedgeWorth.pays, AdaptivePacing._look

    def noted_pays(self: HedgeWorth, rates: RoundRates, session: SessionView, *, is_on: bool) -> bool:
        weighed.append(session.acceptance)
        return pays(self, rates, session, is_on=is_on)

    def noted_look(self: AdaptivePacing, view: StepView) -> None:
        looked.append(view.now_us)
        look(self, view)

    monkeypatch.setattr(HedgeWorth, "pays", noted_pays)
    monkeypatch.setattr(AdaptivePacing, "_look", noted_look)
    driver = taught(0.9)
    assert driver.policy._sessions.of(driver.session).course.pace is Pace.AHEAD
    assert not driver.policy._hedge_worth.is_comparable
    assert looked
    assert not weighed
    for _ in range(SETTLED_COMMITS):  # its policy answers each commit, as a verifier asks it to
        driver.policy.hedge_nodes(driver.session)
    driver.policy._look_times.at_us = driver.now_us
    driver.policy.plan(StepView((driver.session,), FLAT, 64, driver.now_us))
    assert driver.policy._hedge_worth.is_comparable
    assert len(weighed) == 1
    num_looked = len(looked)
    driver.policy.plan(StepView((replace(driver.session, acceptance=0.7),), FLAT, 64, driver.now_us + 1_000))
    assert len(looked) == num_looked + 1, "a surprise"
    assert len(weighed) == 1


def begins_anew(num_against: int = 0, moved: float = 0.0, beside: int = 0, was_beside: int = 0) -> bool:
    """Whether a session that begins as the one before it went is looked at before the clock says so. num_against: sessions of its kind
    since whose drafts did not pay; moved: acceptance less than theirs, once its first guesses were judged; beside, was_beside: others that
    share its steps, and shared those of the newest look."""
    driver = taught(0.9)
    policy = driver.policy
    policy._look(StepView((driver.session, *sharing(driver, was_beside)), FLAT, 64, driver.now_us))
    for _ in range(num_against):
        policy._sessions.kind(driver.session).asking.judged(drafts=False)
    driver.session = successor(driver)
    driver.now_us += 2 * EVERY_US  # those who share steps are looked at no sooner, and the clock is not due yet
    at_us = policy._look_times.at_us
    assert at_us is not None
    assert at_us > driver.now_us + 10_000
    for num_tested, acceptance in ((0, 0.9), (4, 0.9 - moved)):
        session = replace(driver.session, num_tested=num_tested, acceptance=acceptance)
        policy.plan(StepView((session, *sharing(driver, beside)), FLAT, 64, driver.now_us))
        driver.now_us += 1_000
    return policy._look_times.at_us != at_us


def sharing(driver: Driver, num: int) -> list[SessionView]:
    return [replace(driver.session, session=100 + at) for at in range(num)]


def test_who_goes_as_usual_is_not_looked_at_before_it_turns_out_otherwise() -> None:
    """A look takes a millisecond with cold caches, of an answer that takes some fifty."""
    assert not begins_anew()
    assert not begins_anew(moved=0.9 * SURPRISE)
    assert begins_anew(moved=1.1 * SURPRISE)


def test_who_begins_is_looked_at_where_the_newest_of_its_kind_found_nothing_or_others_share_its_steps() -> None:
    """How deep to guess depends on who shares the step; and whether a drafter pays for reading prompts is counted at looks."""
    assert begins_anew(num_against=1)
    assert begins_anew(beside=1)
    assert begins_anew(was_beside=1)
