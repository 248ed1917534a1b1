"""`adaptive`: its model of rounds, its memory of promises, and that it neither clings to bad drafts nor oscillates."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from fakes_adaptive import FLAT, TARGET_US, Driver, successor, taught
from fakes_pacing import READY
from outrider.session.pacing import company_speed
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import FIRST_HOPE, CostCurve, StepView
from outrider.session.pacing.course_choice import HOPEFUL_TESTS, hoped_acceptance
from outrider.session.pacing.draft_length import Rates, pearl_tokens_per_us, serial_tokens_per_us
from outrider.session.pacing.first_lessons import FIRST_TESTS, MAX_FIRST_TOKENS
from outrider.session.pacing.outlooks import FIRST_LEN, PROBE_LEN
from outrider.session.pacing.pace_memory import KEEP_UNUSED, PaceMemory
from outrider.session.pacing.pace_rates import KEEP_UNSEEN
from outrider.session.pacing.probing import HOPELESS_PROBE_AFTER, PROBE_AFTER
from outrider.session.pacing.round_model import (
    Pace,
    best_ahead_course,
    measured_rates,
    plain_course,
    serial_courses,
    serial_speed,
)
from outrider.session.pacing.surprise import SURPRISE

STEEP = CostCurve(((1, 1_000.0), (64, 64_000.0)))


# --- the model of rounds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acceptance", [0.3, 0.8, 0.95])
def test_serial_courses_are_the_classical_throughput(acceptance: float) -> None:
    rates = measured_rates(FLAT, 1, draft_us=3_000.0, link_us=0.0, overhead_us=500.0)
    for course in serial_courses(rates, acceptance, continue_prob=1.0):
        known = serial_tokens_per_us(Rates(FLAT, 3_000.0, acceptance, 500.0), course.hit_len)
        assert course.tokens_per_us == pytest.approx(known, rel=1e-6)


@pytest.mark.parametrize("length", [1, 4, 32])
def test_the_speed_of_one_serial_course_is_that_of_the_list(length: int) -> None:
    rates = measured_rates(STEEP, 2, draft_us=70.0, link_us=30.0, overhead_us=20.0, start_us=15.0)
    assert serial_speed(rates, 0.8, length) == pytest.approx(serial_courses(rates, 0.8, 1.0)[length - 1].tokens_per_us)


@pytest.mark.parametrize("acceptance", [0.6, 0.8, 0.9])
def test_running_ahead_promises_about_what_pearl_does_at_its_own_block(acceptance: float) -> None:
    """PEARL's rounds are (0, gamma - 1); the best pair promises at least that, less what is lost when a commit contradicts."""
    gamma = 8
    rates = measured_rates(FLAT, 1, TARGET_US / gamma, 0.0, 0.0)
    course = best_ahead_course(rates, acceptance, 1.0)
    assert course.tokens_per_us == pytest.approx(pearl_tokens_per_us(Rates(FLAT, TARGET_US / gamma, acceptance), gamma), rel=0.12)


def test_pauses_shorten_drafts_and_acceptance_alone_does_not_make_up_for_them() -> None:
    rates = measured_rates(FLAT, 1, 1_000.0, 0.0, 0.0)
    steady, pausing = (max(serial_courses(rates, 0.9, share), key=lambda c: c.tokens_per_us) for share in (1.0, 0.6))
    assert pausing.tokens_per_us < 0.8 * steady.tokens_per_us


def test_a_far_drafter_is_not_worth_waiting_for_in_turns_but_may_run_ahead() -> None:
    rates = measured_rates(FLAT, 1, 3_000.0, link_us=0.5 * TARGET_US, overhead_us=0.0)
    turns = max(course.tokens_per_us for course in serial_courses(rates, 0.97, 1.0))
    assert best_ahead_course(rates, 0.97, 1.0).tokens_per_us > 1.15 * turns
    assert best_ahead_course(rates, 0.97, 1.0).miss_len == 0


def speed_of_never_waiting(acceptance: float, step_us: float, draft_us: float, link_us: float, num_tokens: int = 20_000) -> float:
    """Tokens per microsecond of a verifier that never waits and a drafter that never rests, played round by round: guess i is right with
    this acceptance whenever it is made, and a drafter starts over one way after a commit that it had not guessed."""
    luck = Random(1)
    is_right = [luck.random() < acceptance for _ in range(num_tokens + 100)]
    now_us = began_us = 0.0  # began_us: when the drafter began at `base`
    known = base = 0
    while known < num_tokens:
        num_heard = int(max(0.0, now_us - link_us - began_us) / draft_us)
        follows = all(is_right[base:known])
        guesses = min(8, max(0, base + num_heard - known)) if follows else 0
        emitted = 1 + next((at for at in range(guesses) if not is_right[known + at]), guesses)
        now_us += step_us
        known += emitted
        if not all(is_right[base:known]) and now_us + link_us > began_us:
            base, began_us = known, now_us + link_us
    return known / now_us


@pytest.mark.parametrize("acceptance", [0.7, 0.9])
@pytest.mark.parametrize("link_us", [0.25 * TARGET_US, TARGET_US, 3.0 * TARGET_US])
def test_decoding_on_until_a_far_drafter_is_heard_of_promises_what_it_yields(acceptance: float, link_us: float) -> None:
    rates = measured_rates(FLAT, 1, draft_us=TARGET_US / 10, link_us=link_us, overhead_us=0.0)
    course = best_ahead_course(rates, acceptance, 1.0)
    played = speed_of_never_waiting(acceptance, TARGET_US, TARGET_US / 10, link_us)
    assert course.tokens_per_us >= 0.9 * played
    if course.miss_len == 0:
        assert course.tokens_per_us == pytest.approx(played, rel=0.25)


@pytest.mark.parametrize("acceptance", [0.5, 0.7, 0.85])
def test_a_drafter_heard_of_just_after_a_step_is_worth_a_short_wait(acceptance: float) -> None:
    """Never to wait would cost a whole step, after which two tokens must have been guessed instead of one."""
    rates = measured_rates(FLAT, 1, draft_us=TARGET_US / 30, link_us=0.5 * TARGET_US, overhead_us=0.0)
    course = best_ahead_course(rates, acceptance, 1.0)
    assert course.miss_len == 0
    assert course.tokens_per_us > 1.03 * speed_of_never_waiting(acceptance, TARGET_US, TARGET_US / 30, 0.5 * TARGET_US)


@pytest.mark.parametrize("acceptance", [0.7, 0.9])
def test_a_slow_drafter_close_by_is_worth_a_short_wait_after_one_round(acceptance: float) -> None:
    """Two guesses a step: what it makes beside the first step is for that step's own token, and the next guess is there a little later.
    Never to wait would cost a second step, to wait for the first guess most of one."""
    rates = measured_rates(FLAT, 1, draft_us=TARGET_US / 2, link_us=0.02 * TARGET_US, overhead_us=0.0)
    course = best_ahead_course(rates, acceptance, 1.0)
    assert (course.miss_len, course.hit_len) == (0, 1)
    round_us = TARGET_US + (1.0 - acceptance) * 0.04 * TARGET_US  # played: a token for a mismatch, then two for each right guess
    hits = acceptance / (1.0 - acceptance**2)
    played = (1.0 + hits * (1.0 + acceptance)) / ((1.0 + hits) * round_us)
    assert course.tokens_per_us == pytest.approx(played, rel=0.02)


@pytest.mark.parametrize(("acceptance", "longest"), [(0.5, 9), (0.7, 18), (0.9, 60)])
def test_a_drafter_has_no_leave_for_guesses_that_the_truth_hardly_ever_reaches(acceptance: float, longest: int) -> None:
    """However far away it is: each tail costs the verifier something, used or not."""
    rates = measured_rates(FLAT, 1, draft_us=TARGET_US / 60, link_us=TARGET_US, overhead_us=0.0)
    course = best_ahead_course(rates, acceptance, 1.0)
    assert course.hit_len <= course.ahead_len <= longest
    assert acceptance**course.ahead_len < 0.005


def test_a_drafter_so_far_that_it_is_never_heard_of_in_time_promises_plain_decoding() -> None:
    rates = measured_rates(FLAT, 1, 3_000.0, link_us=100.0 * TARGET_US, overhead_us=0.0)
    assert best_ahead_course(rates, 0.5, 1.0).tokens_per_us == pytest.approx(plain_course(rates).tokens_per_us, rel=1e-3)


def test_when_every_row_costs_as_much_as_a_step_nothing_beats_plain_decoding() -> None:
    rates = measured_rates(STEEP, 1, 500.0, 0.0, 0.0)
    plain = plain_course(rates).tokens_per_us
    assert max(course.tokens_per_us for course in serial_courses(rates, 0.6, 1.0)) < plain


# --- promises kept ------------------------------------------------------------------------------------------------------------


def test_a_pace_whose_rounds_take_longer_than_expected_loses_trust_and_slowly_regains_it() -> None:
    memory = PaceMemory()
    assert memory.factor(Pace.AHEAD) == 1.0
    for _ in range(100):
        memory.count(Pace.AHEAD, took_us=2_000.0, expected_us=1_000.0)
    low = memory.factor(Pace.AHEAD)
    assert 0.5 < low < 0.62
    for _ in range(round(2 / (1 - KEEP_UNUSED))):
        memory.count(Pace.SERIAL, 1_000.0, 1_000.0)
    assert low < memory.factor(Pace.AHEAD) < 1.0
    assert memory.factor(Pace.SERIAL) == pytest.approx(1.0)


def test_a_pace_given_up_is_not_thought_better_of_within_ten_answers_of_another() -> None:
    memory = PaceMemory()
    for _ in range(60):
        memory.count(Pace.AHEAD, took_us=1_350.0, expected_us=1_000.0)
    low = memory.factor(Pace.AHEAD)
    for _ in range(160):
        memory.count(Pace.SERIAL, 1_000.0, 1_000.0)
    assert low < memory.factor(Pace.AHEAD) < low + 0.2 * (1.0 - low)


def test_in_company_it_is_thought_better_of_sooner() -> None:
    memories = PaceMemory(), PaceMemory(company_speed.KEEP_UNUSED)
    for memory in memories:
        for pace, took_us, num_rounds in ((Pace.AHEAD, 1_350.0, 60), (Pace.SERIAL, 1_000.0, 160)):
            for _ in range(num_rounds):
                memory.count(pace, took_us, 1_000.0)
    alone, together = (memory.factor(Pace.AHEAD) for memory in memories)
    assert alone < together < 1.0


def test_one_stalled_round_does_not_condemn_a_pace() -> None:
    memory = PaceMemory()
    for _ in range(50):
        memory.count(Pace.SERIAL, 1_000.0, 1_000.0)
    memory.count(Pace.SERIAL, 10_000_000.0, 1_000.0)
    assert memory.factor(Pace.SERIAL) > 0.9


def test_what_a_pace_took_is_forgotten_while_everybody_decodes_plainly() -> None:
    memory = PaceMemory()
    for _ in range(100):
        memory.count(Pace.SERIAL, took_us=2_500.0, expected_us=1_000.0)
    low = memory.factor(Pace.SERIAL)
    memory.count_plain(100)
    assert low < memory.factor(Pace.SERIAL) < low + 0.1, "not at once: it may be what that pace takes"
    memory.count_plain(4_000)
    assert memory.factor(Pace.SERIAL) > 0.95


# --- the policy ----------------------------------------------------------------------------------------------------------------


def test_a_way_that_was_measured_anew_is_taken_in_though_drafting_takes_as_long_as_before() -> None:
    driver = Driver()
    for _ in range(2 * FIRST_TESTS):
        driver.round(link_us=3_000.0)
    assert driver.policy._rates.link_us == 3_000.0
    for _ in range(4):
        driver.round(link_us=200.0)
    assert driver.policy._rates.link_us == 200.0


def test_a_drafter_that_is_slow_only_while_it_runs_ahead_is_used_in_turns() -> None:
    """On shared cores it is; taken for its speed in turns, that would look as bad, and guesses would be given up altogether."""
    driver = Driver()
    for _ in range(2 * FIRST_TESTS):
        driver.round(acceptance=0.95, draft_us_per_token=2_000.0)
    assert driver.policy.draft_ahead(driver.session) > driver.wait_len(), "with a drafter so fast it runs ahead"
    for _ in range(20):
        driver.round(acceptance=0.95, draft_us_per_token=30_000.0)
    assert driver.policy.draft_ahead(driver.session) == driver.wait_len() > 1


@pytest.mark.parametrize(("keeps", "runs_ahead"), [(KEEP_UNSEEN, True), (1.0, False)], ids=["as it is", "broken twin: believed for ever"])
def test_a_drafter_that_is_slow_no_more_while_it_runs_ahead_does_so_again(
    keeps: float, runs_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another took its place, or whoever else wanted its core has gone: drafts in turns say nothing of that."""
    monkeypatch.setattr("outrider.session.pacing.pace_rates.KEEP_UNSEEN", keeps)
    driver = Driver()
    for draft_us in (2_000.0, 30_000.0):
        for _ in range(20):
            driver.round(acceptance=0.95, draft_us_per_token=draft_us)

    def pace_after_a_round(draft_us: float) -> Pace:
        return driver.policy._sessions.of(driver.round(acceptance=0.95, draft_us_per_token=draft_us)).course.pace

    assert pace_after_a_round(30_000.0) is Pace.SERIAL
    paces = [pace_after_a_round(2_000.0 + at % 2) for at in range(1_000)]
    assert (Pace.AHEAD in paces) is runs_ahead


@pytest.mark.parametrize(("draft_us", "contention", "waits"), [(2_000.0, 1.5, PROBE_LEN), (30_000.0, 1.5, 0), (2_000.0, 1.2, 0)])
def test_a_probe_waits_for_its_guesses_unless_that_takes_longer_than_drafting_beside_steps(
    draft_us: float, contention: float, waits: int
) -> None:
    driver = Driver()
    driver.contention = contention
    for _ in range(40):
        driver.round(acceptance=0.01, draft_us_per_token=draft_us)
    assert driver.wait_len() == 0
    while driver.policy.draft_ahead(driver.session) == 0:
        driver.round()
    driver.policy.plan(driver.view(driver.session))
    assert driver.wait_len() == waits


def test_guesses_that_are_never_right_are_given_up_and_probed_now_and_then() -> None:
    driver = Driver()
    for _ in range(20):
        driver.round(acceptance=0.02, draft_us_per_token=30_000.0)
    assert driver.policy.draft_ahead(driver.session) == 0
    assert driver.wait_len() == 0
    probed = sum(driver.policy.draft_ahead(driver.round()) > 0 for _ in range(PROBE_AFTER))
    assert 1 <= probed <= 8


def test_good_guesses_are_waited_for_again_when_a_probe_finds_them() -> None:
    driver = Driver()
    for _ in range(40):
        driver.round(acceptance=0.02, draft_us_per_token=30_000.0)
    for _ in range(40):
        driver.round(acceptance=0.95, draft_us_per_token=1_000.0)
    assert driver.policy.draft_ahead(driver.session) > 4


def test_guesses_given_up_while_the_machine_was_slow_are_tried_again() -> None:
    """Nobody guesses then, so nothing but forgetting can mend the verdict."""
    driver = Driver()
    for _ in range(MAX_FIRST_TOKENS):
        driver.round(acceptance=0.6, draft_us_per_token=8_000.0)
    for pace in (Pace.SERIAL, Pace.AHEAD):
        for _ in range(100):
            driver.policy._memory.count(pace, took_us=2_500.0, expected_us=1_000.0)
            driver.policy._sessions.count_drafted(driver.session, num_steps=10.0)
    for _ in range(100):
        driver.round()
    assert driver.policy._sessions.of(driver.session).course.pace is Pace.PLAIN
    for _ in range(1_500):
        driver.round()
        if driver.policy._sessions.of(driver.session).course.pace is not Pace.PLAIN:
            return
    raise AssertionError("it never tries again")


@pytest.mark.parametrize(("remaining", "runs_ahead"), [(5_000, True), (40, False)])
def test_nobody_runs_ahead_who_would_not_be_heard_of_before_the_answer_ends(remaining: int, *, runs_ahead: bool) -> None:
    """A drafter forty steps away that is always right: it catches up after some forty tokens, and until then only slows the target."""
    driver = Driver()
    driver.contention = 1.2
    for _ in range(2 * MAX_FIRST_TOKENS):
        driver.round(acceptance=0.9999, draft_us_per_token=1_000.0, link_us=20.0 * TARGET_US, remaining=remaining)
    course = driver.policy._sessions.of(driver.session).course
    assert (course.pace is Pace.AHEAD) is runs_ahead


def test_noise_at_a_switching_point_does_not_make_it_oscillate() -> None:
    """Acceptance estimates that wander by two points either way around the point where drafts begin to pay."""
    driver, switches, before = Driver(), 0, None
    for _ in range(MAX_FIRST_TOKENS):
        driver.round(acceptance=0.35, draft_us_per_token=8_000.0)
    for at in range(300):
        driver.round(acceptance=0.35 + (0.02 if at % 2 else -0.02), draft_us_per_token=8_000.0)
        course = driver.policy._sessions.of(driver.session).course  # the course itself: its effects look alike
        switches += before is not None and course.pace is not before
        before = course.pace
    assert switches <= 2


def test_drafts_off_in_the_request_gives_no_credit() -> None:
    assert AdaptivePacing().draft_ahead(replace(READY, max_draft_len=0)) == 0


def test_a_given_draft_length_bounds_every_course() -> None:
    policy = AdaptivePacing(3)
    driver = Driver()
    driver.policy = policy
    many = replace(driver.session, num_nodes=9, depth=9, draft_deadline_us=driver.now_us + 50_000)
    (first,) = policy.plan(StepView((many,), FLAT, 64, driver.now_us)).take
    assert first.max_nodes == 3
    for _ in range(60):
        driver.round(acceptance=0.97, draft_us_per_token=500.0)
    assert driver.wait_len() <= 3
    assert policy.draft_ahead(driver.session) <= 6


# --- sessions that are new ---------------------------------------------------------------------------------------------------


def test_a_new_sessions_drafter_guesses_while_the_target_reads_a_little_or_as_far_as_its_kind_runs_ahead() -> None:
    assert taught(0.02).policy.draft_ahead(successor(taught(0.02), num_uncached=10)) == FIRST_LEN
    driver = taught(0.97)
    begun = successor(driver, num_uncached=10)
    course = driver.policy._sessions.of(begun).course
    assert course.pace is Pace.AHEAD
    assert driver.policy.draft_ahead(begun) == course.ahead_len > FIRST_LEN


def test_a_draft_in_turns_is_to_be_there_whole_when_the_prompt_is_read_unless_it_takes_time_from_the_reading() -> None:
    driver = taught(0.97)
    own = driver.policy._sessions.of(begun := successor(driver, num_uncached=10))
    own.course = own.course._replace(pace=Pace.SERIAL, hit_len=9)
    assert driver.policy._outlooks.first_leave(own, begun) == 10
    assert driver.policy._outlooks.first_leave(own, replace(begun, takes_turns=True)) == FIRST_LEN
    own.course = own.course._replace(hit_len=1)
    assert driver.policy._outlooks.first_leave(own, begun) == FIRST_LEN


def test_tails_are_as_few_as_a_step_beside_a_drafter_at_work_allows() -> None:
    """On shared cores such a step takes twice as long as one that has both of them, and a message costs the same."""
    driver = taught(0.97)
    policy, flat = driver.policy, FLAT.points
    lengths = []
    for slowdown in (1.0, 2.0):
        slowed = CostCurve(tuple((rows, slowdown * us) for rows, us in flat))
        policy.plan(StepView((driver.session,), FLAT, 64, driver.now_us, slowed))
        assert policy._sessions.of(driver.session).course.pace is Pace.AHEAD
        lengths.append(policy.flush_len(driver.session))
    assert 1 < lengths[0] < lengths[1] <= 2 * lengths[0] + 1


def test_a_session_that_turns_out_otherwise_than_expected_is_looked_at_at_once() -> None:
    """Answers may be over before the next look is due."""
    driver = taught(0.97)
    driver.session = successor(driver)
    driver.policy.plan(StepView((driver.session,), FLAT, 64, driver.now_us))
    course = driver.policy._sessions.of(driver.session).course
    for num_rounds in range(1, 8):
        driver.now_us += 1_000  # far less than between two looks
        driver.session = replace(
            driver.session, num_tested=num_rounds, acceptance=0.97 * 0.6**num_rounds, committed_len=10 + num_rounds,
            waiting_since_us=driver.now_us, draft_deadline_us=driver.now_us + 50_000,
        )  # fmt: skip
        driver.policy.plan(StepView((driver.session,), FLAT, 64, driver.now_us))
        assert abs(driver.policy._sessions.of(driver.session).looked_at - driver.session.acceptance) <= SURPRISE
    now = driver.policy._sessions.of(driver.session).course
    assert now.tokens_per_us < 0.5 * course.tokens_per_us


def test_hope_is_for_sessions_that_were_hardly_tested() -> None:
    view = replace(READY, acceptance=0.2)
    hopes = [hoped_acceptance(replace(view, num_tested=num)) for num in range(HOPEFUL_TESTS + 2)]
    assert hopes[0] == pytest.approx(FIRST_HOPE)
    assert hopes == sorted(hopes, reverse=True)
    assert hopes[-2:] == [0.2, 0.2]
    assert hoped_acceptance(replace(view, acceptance=0.95)) == 0.95
    assert hoped_acceptance(replace(view, num_tested=0, has_drafter=False)) == 0.2
    assert hoped_acceptance(replace(view, num_tested=0, max_draft_len=0)) == 0.2


# --- drafters that could not pay ---------------------------------------------------------------------------------------------


def test_a_drafter_too_far_to_pay_gets_no_leave_from_a_new_session_until_a_probe_is_due() -> None:
    """So that it is not even opened; one nearby, as often right, is tried while the prompt is read."""
    ahead = []
    for link_us in (15.0 * TARGET_US, 100.0):
        driver = Driver()
        for _ in range(60):
            driver.round(acceptance=0.1, draft_us_per_token=8_000.0, link_us=link_us)
        driver.session = successor(driver, num_uncached=10)
        ahead.append(driver.policy.draft_ahead(driver.session))
        if link_us < TARGET_US:
            continue
        num_plain = 0
        while driver.policy.draft_ahead(driver.session) == 0:
            driver.round(acceptance=0.1, draft_us_per_token=8_000.0, link_us=link_us)
            num_plain += 1
        assert PROBE_AFTER < num_plain <= HOPELESS_PROBE_AFTER
    assert ahead == [0, FIRST_LEN]
