"""Plans by acceptance by depth: lengths, sessions in company, running ahead; and worlds whose drafter drifts, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mostly_slow import mostly_slow_rows
from outrider.errors import InvalidRequest
from outrider.session.pacing.company import Present, Split, company_courses
from outrider.session.pacing.contract import CostCurve
from outrider.session.pacing.depth_bands import NUM_BANDS, rights_by_depth
from outrider.session.pacing.registry import make_pacing
from outrider.session.pacing.round_model import MAX_WAIT_LEN, best_ahead_course, chains, measured_rates, serial_courses
from outrider_bench.simulation.curves import CURVE_SHAPES
from outrider_bench.simulation.event_loop import simulate
from outrider_bench.simulation.profile import Profile
from outrider_bench.simulation.text import text_of
from outrider_bench.simulation.world import Phase, World

STEP_US, DRAFT_US = 6_000.0, 300.0
FLAT = CostCurve(((1, STEP_US),))
RATES = measured_rates(FLAT, 1, DRAFT_US, 100.0, 0.0)
NO_DIFFERENCE, FALLING, RISING = (0.0,) * NUM_BANDS, (1.5, 0.0, -2.0, -3.0), (-1.5, 0.0, 2.0, 3.0)
WORLD = World(FLAT, CostCurve(((1, STEP_US / 10),)), message_us=130, step_overhead_us=100, output_len=192)
DRIFTING = replace(WORLD, phases=(Profile.parse("0.95/0.8/0.5/0.2").phases(192)))


def best_len(offsets: tuple[float, ...]) -> int:
    """In turns."""
    return max(serial_courses(RATES, 0.7, 1.0, offsets), key=lambda course: course.tokens_per_us).hit_len


def test_offsets_of_nothing_are_the_model_as_it_was() -> None:
    for acceptance, continue_prob in ((0.3, 1.0), (0.7, 0.9), (0.95, 1.0)):
        plain = [course.tokens_per_us for course in serial_courses(RATES, acceptance, continue_prob)]
        assert [course.tokens_per_us for course in serial_courses(RATES, acceptance, continue_prob, NO_DIFFERENCE)] == pytest.approx(plain)
        ahead, same = (best_ahead_course(RATES, acceptance, continue_prob, 0.0, offsets) for offsets in ((), NO_DIFFERENCE))
        assert (same.miss_len, same.hit_len) == (ahead.miss_len, ahead.hit_len)
        assert same.tokens_per_us == pytest.approx(ahead.tokens_per_us)


def test_drafts_are_as_long_as_what_is_deep_in_them_is_right() -> None:
    assert best_len(FALLING) < best_len(()) < best_len(RISING)
    assert best_len(FALLING) == 3


def test_expected_tokens_are_products_of_what_each_depth_is_worth() -> None:
    emitted, sent = chains(0.7, 0.5, 4, FALLING)
    rights = 0.5 * rights_by_depth(0.7, FALLING)
    assert emitted[3] == pytest.approx(1 + rights[0] + rights[0] * rights[1] + rights[0] * rights[1] * rights[2])
    assert sent.tolist() == chains(0.7, 0.5, 4)[1].tolist()


def test_running_ahead_is_worth_less_where_guesses_far_from_the_truth_err() -> None:
    slow = measured_rates(FLAT, 1, STEP_US / 10, 100.0, 0.0)
    gains = []
    for offsets in ((), FALLING):
        turns = max(course.tokens_per_us for course in serial_courses(slow, 0.7, 1.0, offsets))
        gains.append(best_ahead_course(slow, 0.7, 1.0, 0.0, offsets).tokens_per_us / turns)
    assert gains[1] < 1.0 < gains[0]


def test_rounds_ahead_emit_what_a_chain_of_rounds_does() -> None:
    """The closed form against rounds played out: a drafter that always guesses far enough, never waited for."""
    course = best_ahead_course(replace(RATES, draft_us=60.0), 0.7, 1.0, 0.0, FALLING)
    rights = rights_by_depth(0.7, FALLING)
    luck, tokens, now_us, begin = np.random.default_rng(1), 0, 0.0, -1
    for _ in range(20_000):
        length = course.miss_len if begin < 0 else course.hit_len
        depths = np.arange(length + 1) + max(0, begin)
        outcomes = luck.random(length + 1) < rights[np.minimum(depths, len(rights) - 1)]
        num_right = length + 1 if outcomes.all() else int(np.argmin(outcomes))
        tokens += min(num_right, length) + 1
        now_us += course.miss_us if begin < 0 else course.hit_us
        begin = length + 1 if num_right > length else -1
    assert course.miss_len > 0
    assert tokens / now_us == pytest.approx(course.tokens_per_us, rel=0.03)


def test_in_company_each_has_its_own_depths() -> None:
    measured = CostCurve(((1, STEP_US), (64, 4 * STEP_US)))
    rates = measured_rates(measured, 2, 30.0, 100.0, 0.0)
    shares = [(0.9, 1.0), (0.9, 1.0)]
    offsets = ((), [FALLING] * 2, [FALLING, ()])
    alike, falling, own = (company_courses([Split(1, rates)], shares, MAX_WAIT_LEN, Present(), of) for of in offsets)
    assert falling[0].hit_len == falling[1].hit_len < alike[0].hit_len == alike[1].hit_len
    assert own[0].hit_len < own[1].hit_len


@pytest.mark.parametrize(
    ("acceptance", "cost_ratio", "floor"),
    mostly_slow_rows((("0.95/0.8/0.5/0.2", 10, 1.12), ("0.9/0.8/0.6/0.4/0.2", 10, 1.04), ("0.95/0.8/0.5/0.2", 30, 1.03)), 1),
)
def test_a_drafter_that_drifts_is_asked_for_less(acceptance: str, cost_ratio: float, floor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = CostCurve(((1, STEP_US / cost_ratio),))
    world = replace(WORLD, draft=draft, phases=Profile.parse(acceptance).phases(WORLD.output_len))
    found = simulate(world, make_pacing("adaptive"), 3_000).tokens_per_s
    monkeypatch.setattr("outrider.session.depth_record.EVIDENCE", 1e9)
    assert found > floor * simulate(world, make_pacing("adaptive"), 3_000).tokens_per_s


@pytest.mark.parametrize("acceptance", ["0.6", "0.9", "0.95>0.1"])
def test_a_drafter_that_does_not_is_asked_as_ever(acceptance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = replace(WORLD, phases=Profile.parse(acceptance).phases(WORLD.output_len))
    found = simulate(world, make_pacing("adaptive"), 1_500).tokens_per_s
    monkeypatch.setattr("outrider.session.depth_record.EVIDENCE", 1e9)
    assert found == simulate(world, make_pacing("adaptive"), 1_500).tokens_per_s


@pytest.mark.parametrize("acceptance", [0.97, 0.99])
def test_rounds_with_few_guesses_are_not_quick_by_merit_of_a_course_that_wants_many(acceptance: float) -> None:
    """Short answers, rows that cost something: 0.48 and 0.28 of PEARL while a step with two guesses was held against the time of one
    with thirty, so that the course seemed two and a half times as good as it promised, and time too dear to wait for guesses."""
    world = replace(WORLD, verify=CURVE_SHAPES["measured"].verify_curve(STEP_US), phases=((Phase(acceptance),),), output_len=100)
    adaptive, pearl = (simulate(world, make_pacing(name), 1_000).tokens_per_s for name in ("adaptive", "pearl"))
    assert adaptive > pearl


def test_a_profile_by_depth_is_what_a_simulated_drafter_guesses_by() -> None:
    text = text_of(replace(DRIFTING, output_len=20_000, phases=(Profile.parse("0.9/0.5/0.1").phases(20_000))), 0, 0)
    for num_live, share in ((0, 0.9), (1, 0.5), (2, 0.1), (30, 0.1)):
        right = [text.guess(position, num_live) == text.truth[position] for position in range(16, 20_016)]
        assert sum(right) / len(right) == pytest.approx(share, abs=0.01)


def test_profiles_by_depth_are_written_with_a_stroke() -> None:
    assert Profile.parse("0.9/0.5>0.3").phases(100) == ((Phase(0.9, 50, (0.5,)), Phase(0.3)),)
    with pytest.raises(InvalidRequest, match="acceptances"):
        Profile.parse("0.9/1.5")
    with pytest.raises(InvalidRequest, match=r"world\.phases"):
        replace(DRIFTING, hedge_acceptance=0.5).check()
    with pytest.raises(InvalidRequest, match=r"world\.phases"):
        replace(WORLD, phases=((Phase(0.9, None, (-0.1,)),),)).check()
