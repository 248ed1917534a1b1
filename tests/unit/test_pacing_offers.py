"""What each pace offers sessions that share steps, a drafter and maybe its cores.

Run: pytest tests/unit/test_pacing_offers.py
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

import pytest

from fakes_pacing import session_view
from outrider.session.pacing.achieved_speed import AchievedSpeed
from outrider.session.pacing.contract import CostCurve
from outrider.session.pacing.course_choice import courses_of
from outrider.session.pacing.offers import Look, Margins, Offers
from outrider.session.pacing.probing import Probe
from outrider.session.pacing.remembered import RememberedSession
from outrider.session.pacing.round_model import Course, Pace, RoundRates, measured_rates, plain_course

STEP_US = 10_000.0
NUM = 8
LONGEST = 32


def rates_of(contention: float, draft_us: float) -> dict[Pace, RoundRates]:
    """contention: how much longer steps and drafts take beside each other."""
    alone = measured_rates(CostCurve(((1, STEP_US),)), NUM, draft_us, 100.0, 200.0)
    beside = measured_rates(CostCurve(((1, contention * STEP_US),)), NUM, contention * draft_us, 100.0, 200.0)
    return {Pace.PLAIN: alone, Pace.SERIAL: alone, Pace.AHEAD: beside}


def looks_of(rates: dict[Pace, RoundRates], acceptances: list[float]) -> list[Look]:
    paces = (Pace.SERIAL, Pace.AHEAD) if len(acceptances) == 1 else (Pace.AHEAD,)
    return [
        (session_view(at, acceptance=one, num_tested=99), courses_of(rates, paces, LONGEST, one, 1.0, 0.0))
        for at, one in enumerate(acceptances)
    ]


def offers(rates: dict[Pace, RoundRates], courses: list[Course] | None = None, asked_from: int = 0, brought: float = 0.0) -> Offers:
    """courses: that the sessions have now; plain decoding if not said. brought: by each session's guesses of late."""

    def own(session: int) -> RememberedSession:
        course = plain_course(rates[Pace.PLAIN]) if courses is None else courses[session]
        return RememberedSession(course, Probe(0), AchievedSpeed(), AchievedSpeed(), begin=0, committed_len=0, asked_from=asked_from)

    margins = Margins(start=0.05, keep=-0.02, switch=0.04)
    speed_of = attrgetter("tokens_per_us")
    return Offers(rates, margins, LONGEST, own, speed_of, lambda _, course: speed_of(course), lambda _: brought, lambda _: 1.0)


def paces(courses: list[Course]) -> list[Pace]:
    return [course.pace for course in courses]


def test_on_cores_of_its_own_a_drafter_runs_ahead_for_whom_it_pays() -> None:
    rates = rates_of(1.0, 1_000.0)
    chosen, total = offers(rates).of(Pace.AHEAD, looks_of(rates, [0.9] + [0.0] * (NUM - 1)))
    assert paces(chosen) == [Pace.AHEAD] + [Pace.PLAIN] * (NUM - 1)
    assert total == pytest.approx(sum(course.tokens_per_us for course in chosen))


def test_on_shared_cores_one_whose_guesses_pay_does_not_slow_all_the_others() -> None:
    """Alone it would run ahead; in company its gain is a token or two a step, and each of the others loses half of its own."""
    rates = rates_of(1.8, 1_000.0)
    chosen, total = offers(rates).of(Pace.AHEAD, looks_of(rates, [0.9] + [0.0] * (NUM - 1)))
    assert paces(chosen) == [Pace.PLAIN] * NUM
    assert total == pytest.approx(NUM * plain_course(rates[Pace.PLAIN]).tokens_per_us)
    assert paces(offers(rates).of(Pace.AHEAD, looks_of(rates, [0.9]))[0]) == [Pace.AHEAD]


def test_on_shared_cores_all_run_ahead_where_it_pays_for_all_together() -> None:
    rates = rates_of(1.8, 1_000.0)
    chosen, total = offers(rates).of(Pace.AHEAD, looks_of(rates, [0.9] * (NUM - 1) + [0.0]))
    assert paces(chosen) == [Pace.AHEAD] * (NUM - 1) + [Pace.PLAIN]
    assert chosen[-1].tokens_per_us == plain_course(rates[Pace.AHEAD]).tokens_per_us, "in the time of their steps"
    assert total == pytest.approx(sum(course.tokens_per_us for course in chosen))


def test_in_turns_all_of_them_draft_or_nobody() -> None:
    rates = rates_of(1.0, 1_000.0)
    good = looks_of(rates, [0.9] * (NUM - 1) + [0.1])
    chosen, _ = offers(rates).of(Pace.SERIAL, good)
    assert paces(chosen) == [Pace.SERIAL] * NUM
    assert [courses[Pace.SERIAL] for _, courses in good] == [[course] for course in chosen], "and they are told as weighed"
    chosen, total = offers(rates).of(Pace.SERIAL, looks_of(rates, [0.6] + [0.0] * (NUM - 1)))
    assert paces(chosen) == [Pace.PLAIN] * NUM
    assert total == pytest.approx(NUM * plain_course(rates[Pace.PLAIN]).tokens_per_us)


def test_who_is_asked_later_or_may_not_guess_has_no_guesses() -> None:
    rates = rates_of(1.0, 1_000.0)
    for pace in (Pace.SERIAL, Pace.AHEAD):
        looks = looks_of(rates, [0.9] * NUM)
        assert paces(offers(rates, asked_from=1_000).of(pace, looks)[0]) == [Pace.PLAIN] * NUM
        looks[0] = replace(looks[0][0], max_draft_len=0), looks[0][1]
        assert paces(offers(rates).of(pace, looks)[0]) == [Pace.PLAIN] + [pace] * (NUM - 1)


def test_guesses_are_kept_to_for_less_than_they_are_begun_for() -> None:
    """Their gain lies between the two margins."""
    for pace in (Pace.SERIAL, Pace.AHEAD):
        for draft_us in range(1_000, 12_000, 50):
            rates = rates_of(1.0, float(draft_us))
            looks = looks_of(rates, [0.6] * NUM)
            begun = offers(rates).of(pace, looks)[0]
            present = [plain_course(rates[Pace.PLAIN])._replace(pace=pace)] * NUM
            kept = offers(rates, present).of(pace, looks)[0]
            assert not (paces(begun)[0] is pace and paces(kept)[0] is Pace.PLAIN)
            if paces(begun)[0] is not paces(kept)[0]:
                break
        else:
            raise AssertionError(f"{pace}: no gain lies between the margins")


def test_in_turns_each_drafts_as_deep_as_it_is_right() -> None:
    rates = rates_of(1.8, 1_000.0)
    falling = [(replace(session, depth_offsets=(1.5, 0.0, -2.0, -3.0)), courses) for session, courses in looks_of(rates, [0.8] * NUM)]
    (alike, _), (shorter, _) = (offers(rates).of(Pace.SERIAL, looks) for looks in (looks_of(rates, [0.8] * NUM), falling))
    assert {course.pace for course in (*alike, *shorter)} == {Pace.SERIAL}
    assert max(course.hit_len for course in shorter) < max(course.hit_len for course in alike)


@pytest.mark.parametrize(("brought", "kept"), [(0.9, Pace.PLAIN), (1.5, Pace.SERIAL)])
def test_drafts_in_turns_that_brought_more_lately_than_they_promise_now_are_kept_to(brought: float, kept: Pace) -> None:
    """One wrong guess can halve a promise. brought: over plain decoding."""
    rates = rates_of(1.0, 1_000.0)
    plain = plain_course(rates[Pace.PLAIN])
    unpromising = Course(Pace.SERIAL, 4, 4, 4, 0.5 * plain.tokens_per_us, 1.0, 1.0)
    looks = [(session_view(0, acceptance=0.5, num_tested=99), {Pace.PLAIN: [plain], Pace.SERIAL: [unpromising]})]
    chosen, _ = offers(rates, [unpromising], brought=brought * plain.tokens_per_us).of(Pace.SERIAL, looks)
    assert paces(chosen) == [kept]


@pytest.mark.parametrize(("share", "chosen"), [(1.0, Pace.PLAIN), (0.8, Pace.SERIAL)])
def test_drafts_are_not_held_against_what_plain_decoding_does_not_bring(share: float, chosen: Pace) -> None:
    """They promise as much as plain decoding does, which lately brought less: margins for beginning are between the two."""
    rates = rates_of(1.0, 1_000.0)
    plain = plain_course(rates[Pace.PLAIN])
    alike = Course(Pace.SERIAL, 4, 4, 4, plain.tokens_per_us, 1.0, 1.0)
    looks = [(session_view(0, acceptance=0.5, num_tested=99), {Pace.PLAIN: [plain], Pace.SERIAL: [alike]})]
    found, _ = replace(offers(rates), plain_share=lambda _: share).of(Pace.SERIAL, looks)
    assert paces(found) == [chosen]


@pytest.mark.parametrize("share", [0.8, 0.95])
def test_what_plain_decoding_brings_one_alone_is_the_same_whichever_pace_it_is_held_against(share: float) -> None:
    """Else the pace that does not pay is chosen for its better plain decoding, and drafts in turns that do pay end for it."""
    rates = rates_of(1.0, 1_000.0)
    plain = plain_course(rates[Pace.PLAIN])
    drafted = {pace: plain._replace(pace=pace, hit_len=4, tokens_per_us=0.9 * plain.tokens_per_us) for pace in (Pace.SERIAL, Pace.AHEAD)}
    looks = [(session_view(0, acceptance=0.5, num_tested=99), {Pace.PLAIN: [plain], **{pace: [one] for pace, one in drafted.items()}})]
    alone = replace(offers(rates), plain_share=lambda _: share)
    (in_turns,), gain_in_turns = alone.of(Pace.SERIAL, looks)
    (beside,), gain_beside = alone.of(Pace.AHEAD, looks)
    assert gain_beside == pytest.approx(share * plain.tokens_per_us)
    assert gain_in_turns == pytest.approx(max(0.9, share) * plain.tokens_per_us)
    assert in_turns.pace is (Pace.SERIAL if share < 0.85 else Pace.PLAIN)
    assert beside.pace is Pace.PLAIN, "rounds of who runs ahead are mostly plain ones, and take as long as those"


@pytest.mark.parametrize(("share", "chosen"), [(1.0, Pace.AHEAD), (1.2, Pace.AHEAD), (1.4, Pace.PLAIN)])
def test_running_ahead_is_held_against_plain_decoding_that_is_quicker_than_expected(share: float, chosen: Pace) -> None:
    rates = rates_of(1.0, 1_000.0)
    plain = plain_course(rates[Pace.PLAIN])
    ahead = plain._replace(pace=Pace.AHEAD, hit_len=4, ahead_len=9, tokens_per_us=1.3 * plain.tokens_per_us)
    looks = [(session_view(0, acceptance=0.5, num_tested=99), {Pace.PLAIN: [plain], Pace.AHEAD: [ahead]})]
    found, gain = replace(offers(rates), plain_share=lambda _: share).of(Pace.AHEAD, looks)
    assert paces(found) == [chosen]
    assert gain == pytest.approx(max(1.3, share) * plain.tokens_per_us)


def test_a_share_that_one_had_alone_says_nothing_of_several() -> None:
    rates = rates_of(1.0, 1_000.0)
    alone = replace(offers(rates), plain_share=lambda _: 0.5)
    chosen, total = alone.of(Pace.AHEAD, looks_of(rates, [0.0] * NUM))
    assert paces(chosen) == [Pace.PLAIN] * NUM
    assert total == pytest.approx(NUM * plain_course(rates[Pace.PLAIN]).tokens_per_us)


def test_who_runs_ahead_must_promise_more_than_drafts_in_turns_bring() -> None:
    """As plain decoding must: where the promises of both are low for a run of wrong guesses, that of running ahead is no better."""
    rates = rates_of(1.0, 1_000.0)
    looks = looks_of(rates, [0.9])
    in_turns = looks[0][1][Pace.SERIAL][0]
    for times in (0.5, 1.5):
        _, gain = offers(rates, [in_turns], brought=times * in_turns.tokens_per_us).of(Pace.SERIAL, looks)
        assert gain == pytest.approx(max(1.0, times) * in_turns.tokens_per_us)
