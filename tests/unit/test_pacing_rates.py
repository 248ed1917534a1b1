"""What drafting takes undisturbed and beside the target: whose measurement counts for which, and what is hoped until it is known.

Run: pytest tests/unit/test_pacing_rates.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes_pacing import NOW_US, session_view
from outrider.session.pacing.contract import CostCurve, StepView
from outrider.session.pacing.pace_rates import HOPED_RATIO, KEEP_UNSEEN, MAX_HOPES, MAX_VAIN, UP_RATE, PaceRates
from outrider.session.pacing.round_model import Pace, best_ahead_course, measured_rates
from outrider.session.statistics import DraftInterval, SessionStatistics

STEP_US = 10_000.0
CURVE = CostCurve(((1, STEP_US),))


def drafted(us: float) -> dict[Pace, list]:  # type: ignore[type-arg]
    return {Pace.SERIAL: [session_view(1, draft_us_per_token=us)]}


def ahead(us: float) -> dict[Pace, list]:  # type: ignore[type-arg]
    return {Pace.AHEAD: [session_view(1, draft_us_per_token=us)]}


# --- what a session measures ------------------------------------------------------------------------------------------------------


def test_only_drafts_beside_no_step_say_what_drafting_takes_undisturbed() -> None:
    stats = SessionStatistics()
    stats.count_verifying(0, 10_000)
    stats.count_drafting(DraftInterval(1_000, 9_000, 8_000), 4, verifying=False, first_us=2_000)
    assert (stats.draft_us_per_token, stats.draft_alone_us) == (2_000.0, 0.0), "the target was reading the prompt"
    stats.count_drafting(DraftInterval(20_000, 24_000, 4_000), 4, verifying=True, first_us=1_000)
    assert stats.draft_alone_us == 0.0, "a round is in flight: nobody knows yet"
    stats.count_drafting(DraftInterval(30_000, 34_000, 4_000), 4, verifying=False, first_us=1_000)
    assert stats.draft_alone_us == 1_000.0
    assert stats.draft_us_per_token > 1_500.0, "the mean of all still holds what was disturbed"


def test_two_clocks_may_disagree_a_little() -> None:
    stats = SessionStatistics()
    stats.count_verifying(0, 10_000)
    stats.count_drafting(DraftInterval(9_700, 13_700, 4_000), 4, verifying=False, first_us=1_000)
    assert stats.draft_alone_us == 1_000.0


def test_a_first_tail_that_holds_the_reading_of_the_prompt_is_no_undisturbed_drafting() -> None:
    stats = SessionStatistics()
    stats.count_drafting(DraftInterval(0, 50_000, 50_000), 1, verifying=False, first_us=50_000)
    assert (stats.holds_reading, stats.draft_alone_us) == (True, 0.0)


def test_a_drafter_that_says_its_guesses_take_no_time_stays_known_and_ends_no_policy() -> None:
    """Its times are its own word. Drafting beside a step was once divided by none, which ended the verifier with all its answers."""
    stats = SessionStatistics()
    for at in (0, 1_000):
        stats.count_drafting(DraftInterval(at, at + 300, 300), 4, verifying=False)  # not told what the first took
    rates = PaceRates()
    rates.observe(drafted(stats.draft_us_per_token), [stats.draft_alone_us])
    stats.count_drafting(DraftInterval(2_000, 2_300, 300), 4, verifying=False, first_us=300)  # and the other three took nothing
    assert 0.0 < stats.draft_us_per_token == stats.draft_alone_us
    rates.observe(ahead(100.0), [stats.draft_alone_us])
    assert rates.is_known
    assert rates.draft_us(Pace.AHEAD) >= rates.draft_us(Pace.SERIAL) > 0.0
    known = stats.draft_us_per_token, stats.draft_alone_us
    stats.count_drafting(DraftInterval(3_000, 3_000, 0), 4, verifying=False)
    assert (stats.draft_us_per_token, stats.draft_alone_us) == known, "no time at all is none that was measured"


@pytest.mark.parametrize(("is_anew", "alone_us"), [(False, 150.0), (True, 50.0)], ids=["goes on", "broken twin: a start taken off"])
def test_a_level_by_itself_that_goes_on_with_a_draft_has_no_start(is_anew: bool, alone_us: float) -> None:
    """Drafters send the levels of a draft one by one where one machine has room for both models."""
    stats = SessionStatistics()
    for at in (0, 1_000):
        stats.count_drafting(DraftInterval(at, at + 700, 700), 4, verifying=False, first_us=250)  # levels of 150, behind a start of 100
    for at in range(2_000, 22_000, 1_000):
        stats.count_drafting(DraftInterval(at, at + 150, 150), 1, verifying=False, first_us=150, is_anew=is_anew)
    assert stats.draft_alone_us == pytest.approx(alone_us, abs=10.0)


def test_a_tail_that_a_step_slowed_at_its_beginning_only_says_nothing_of_the_start_of_drafts() -> None:
    """Its first level took twice as long as the others, and passed for a start of a level's time."""
    stats = SessionStatistics()
    stats.count_drafting(DraftInterval(0, 4_000, 4_000), 4, verifying=False, first_us=1_000)
    stats.count_verifying(10_000, 20_000)
    stats.count_drafting(DraftInterval(18_000, 23_000, 5_000), 4, verifying=False, first_us=2_000)
    assert stats.draft_start_us == 0.0
    stats.count_drafting(DraftInterval(30_000, 34_400, 4_400), 4, verifying=False, first_us=1_400)
    assert stats.draft_start_us == pytest.approx(400.0)


def test_what_a_single_level_took_serves_until_levels_tell_its_start_from_the_rest() -> None:
    """One guess of a text that does not suit the drafter costs a start and a level: with the next ones it was a mean for whole answers."""
    stats = SessionStatistics()
    stats.count_drafting(DraftInterval(0, 900, 900), 1, verifying=False, first_us=900)
    stats.count_drafting(DraftInterval(2_000, 2_240, 240), 1, verifying=False, first_us=240)
    assert (stats.tells_start, stats.draft_us_per_token, stats.draft_alone_us) == (False, 240.0, 240.0)
    stats.count_drafting(DraftInterval(3_000, 3_220, 220), 4, verifying=False, first_us=100)
    assert (stats.tells_start, stats.draft_us_per_token, stats.draft_alone_us, stats.draft_start_us) == (True, 40.0, 40.0, 60.0)
    stats.count_drafting(DraftInterval(4_000, 4_300, 300), 4, verifying=False, first_us=100)
    assert 40.0 < stats.draft_us_per_token < 45.0, "it is followed from then on"
    assert 40.0 < stats.draft_alone_us < 45.0


# --- what is made of it -----------------------------------------------------------------------------------------------------------


def test_until_an_undisturbed_draft_was_seen_it_is_hoped_to_be_quicker_for_a_while() -> None:
    rates = PaceRates()
    assert MAX_HOPES < 5, "each costs rounds in turns"
    for _ in range(MAX_HOPES):
        rates.observe(drafted(2_000.0))
        assert rates.draft_us(Pace.SERIAL) == 2_000.0 / HOPED_RATIO
        assert rates.draft_us(Pace.AHEAD) == 2_000.0
    rates.observe(drafted(2_000.0))
    assert rates.draft_us(Pace.SERIAL) == rates.draft_us(Pace.AHEAD) == 2_000.0, "it may never be seen"


def test_an_undisturbed_draft_replaces_what_stood_for_it_and_says_how_much_slower_others_are() -> None:
    rates = PaceRates()
    rates.observe(drafted(2_000.0))
    rates.observe(drafted(1_900.0), [600.0])
    assert rates.is_sure
    assert rates.draft_us(Pace.SERIAL) == 600.0
    assert rates.draft_us(Pace.AHEAD) == 2_000.0
    rates.observe(drafted(5_000.0))
    assert rates.draft_us(Pace.SERIAL) == 600.0, "a draft in turns that was disturbed is no news of undisturbed ones"
    rates.observe({}, [700.0])
    assert rates.draft_us(Pace.SERIAL) == pytest.approx(600.0 + UP_RATE * 100.0)


def test_drafting_ahead_is_kept_as_a_multiple() -> None:
    rates = PaceRates()
    rates.observe({}, [1_000.0])
    rates.observe(ahead(1_500.0))
    assert rates.draft_us(Pace.AHEAD) == pytest.approx(1_000.0 * (1.0 + UP_RATE * 0.5))
    rates.observe(ahead(800.0))
    assert (rates.draft_us(Pace.SERIAL), rates.draft_us(Pace.AHEAD)) == (800.0, 800.0), "never quicker than undisturbed"


def seen_slow(ratio: float) -> PaceRates:
    """Drafting takes a millisecond a token in turns, and so many times that beside the target."""
    rates = PaceRates()
    rates.observe({}, [1_000.0])
    for _ in range(100):
        rates.observe(ahead(1_000.0 * ratio))
    assert rates.draft_us(Pace.AHEAD) == pytest.approx(1_000.0 * ratio, rel=1e-3)
    return rates


def looks_until_hoped(rates: PaceRates, ratio: float) -> int:
    """Looks at which nobody ran ahead until no more than that is expected of it."""
    for num in range(1_000):
        if rates.draft_us(Pace.AHEAD) <= 1_000.0 * ratio:
            return num
        rates.observe(drafted(1_000.0))
    raise AssertionError("it is believed for ever")


def test_what_was_seen_of_running_ahead_is_believed_less_and_less_while_nobody_does() -> None:
    """A verifier whose first drafter fought for its cores took every later one for as slow, and drafted in turns for good."""
    rates = seen_slow(5.0)
    num = looks_until_hoped(rates, 3.0)
    assert KEEP_UNSEEN**num <= 0.5 < KEEP_UNSEEN ** (num - 1)
    assert rates.draft_us(Pace.SERIAL) == 1_000.0
    assert looks_until_hoped(rates, 1.01) > num
    believed_us = rates.draft_us(Pace.AHEAD)
    rates.observe({})
    assert rates.draft_us(Pace.AHEAD) == believed_us > 1_000.0, "nobody drafted, so nobody looked"


def test_one_try_shows_whether_it_is_as_it_was() -> None:
    rates = seen_slow(5.0)
    looks_until_hoped(rates, 2.0)
    rates.observe(ahead(5_000.0))
    assert rates.draft_us(Pace.AHEAD) == pytest.approx(5_000.0, rel=1e-3), "at once, and not by an eighth"
    looks_until_hoped(rates, 2.0)
    rates.observe(ahead(40_000.0))
    assert rates.draft_us(Pace.AHEAD) == pytest.approx(5_000.0 + UP_RATE * 35_000.0, rel=1e-3), (
        "a stall of that try is no news of what it was"
    )
    looks_until_hoped(rates, 2.0)
    rates.observe(ahead(1_500.0))
    assert rates.draft_us(Pace.AHEAD) == pytest.approx(1_500.0)


def test_hopes_in_vain_come_more_and_more_seldom_until_one_comes_true() -> None:
    rates, waits = seen_slow(5.0), list[int]()
    for _ in range(MAX_VAIN + 2):
        waits.append(looks_until_hoped(rates, 2.0))
        rates.observe(ahead(5_000.0))
    assert waits == pytest.approx([waits[0] * 2 ** min(num, MAX_VAIN) for num in range(MAX_VAIN + 2)], rel=0.1)
    rates.observe(drafted(1_000.0))
    rates.observe(ahead(5_000.0))
    assert looks_until_hoped(rates, 2.0) == pytest.approx(waits[-1], rel=0.1), "one look's hope is none that could come true"
    rates.observe(ahead(2_000.0))
    for _ in range(100):
        rates.observe(ahead(5_000.0))
    assert looks_until_hoped(rates, 2.0) == pytest.approx(waits[0], abs=2)


# --- what a guess beside a step costs it ------------------------------------------------------------------------------------------


def test_on_shared_cores_a_guess_has_a_toll_and_on_cores_of_its_own_none() -> None:
    rates = PaceRates()
    rates.observe({}, [1_000.0])
    view = StepView((session_view(1),), CURVE, 64, NOW_US, CURVE)
    assert rates.of_rounds(view, Pace.AHEAD).toll_us == 0.0
    slowed = replace(view, cost_drafting=CostCurve(((1, 2 * STEP_US),)))
    assert rates.of_rounds(slowed, Pace.AHEAD).toll_us == pytest.approx(500.0)
    assert rates.of_rounds(slowed, Pace.SERIAL).toll_us == 0.0


def test_a_drafter_has_leave_for_guesses_that_bring_more_than_they_cost_the_target() -> None:
    free = measured_rates(CURVE, 1, 600.0, link_us=6_000.0, overhead_us=200.0)
    lengths = [best_ahead_course(replace(free, toll_us=toll_us), 0.9, 1.0).ahead_len for toll_us in (0.0, 1.0, 600.0)]
    assert lengths[0] == lengths[1] > lengths[2] >= best_ahead_course(free, 0.9, 1.0).hit_len
    tight = best_ahead_course(replace(free, toll_us=600.0), 0.9, 1.0)
    assert 0.9 ** (tight.ahead_len - 1) >= 600.0 * tight.tokens_per_us or tight.ahead_len == tight.hit_len


@pytest.mark.parametrize(("takes_turns", "tells_start"), [(True, False), (True, True), (False, False)])
def test_a_drafter_that_begins_anew_with_each_guess_says_what_beginning_takes_and_nothing_of_a_token(
    *, takes_turns: bool, tells_start: bool
) -> None:
    """After prose a token was thought to take five times as long as it does, and arithmetic was decoded plainly."""
    rates = PaceRates()
    known = session_view(1, draft_us_per_token=20.0, draft_alone_us=20.0, draft_start_us=60.0, takes_turns=True)
    assert not rates.knows_better_than(replace(known, tells_start=False)), "better than nothing"
    rates.observe({Pace.SERIAL: [known]}, [20.0])
    single = replace(known, draft_us_per_token=140.0, draft_alone_us=140.0, draft_start_us=40.0)
    single = replace(single, takes_turns=takes_turns, tells_start=tells_start)
    assert rates.knows_better_than(single) is (takes_turns and not tells_start)
    rates.observe({Pace.SERIAL: [single]})
    expected_us = 60.0 + UP_RATE * (160.0 - 60.0) if takes_turns and not tells_start else 40.0
    assert rates.start_us == pytest.approx(expected_us), "all that one of a token took longer than a token"


def test_rounds_with_guesses_of_a_company_take_what_is_done_for_those_of_the_others() -> None:
    known = PaceRates()
    known.observe(drafted(200.0))
    for num in (1, 4):
        view = StepView(tuple(session_view(at) for at in range(num)), CURVE, 64, NOW_US, guess_us=300.0)
        assert {known.of_rounds(view, pace).others_us for pace in Pace} == {(num - 1) * 300.0}
