"""Predictions from micro-benchmarks: theory where theory knows the answer, the replaying drafter's own luck, and the micro-benchmarks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from outrider.cli.connection import CollectedAnswer, CollectedSample
from outrider.drafting.follow_cost import most_followed
from outrider.drafting.replay_source import ReplayOptions, ReplaySource
from outrider.session.pacing.contract import CostCurve
from outrider.session.pacing.registry import make_pacing
from outrider.v1 import generation_pb2, verifier_pb2
from outrider_bench import micro as micro_module
from outrider_bench.contestants import DraftWishes, Stack
from outrider_bench.measurement import Answer, Prompt, Summary
from outrider_bench.micro import MAX_ASKED, PLAIN_TOKENS, MicroBenchmark, MicroBenchmarks, Pace, replayed_text, steps_text, token_us
from outrider_bench.predictions import Circumstances, circumstances, planned_by, predicted, predicted_tokens_per_s, shapes_in, world_of
from outrider_bench.replay import MAX_SAMPLES_A_REPETITION, ReplayRun, micro_of_cells, record, replay_cell, replay_contestants
from outrider_bench.results import PLAIN, Cell, Recorder, Row
from outrider_bench.simulation.event_loop import Simulation, simulate
from outrider_bench.simulation.text import text_of
from outrider_bench.simulation.world import Shape

MICRO = MicroBenchmarks(CostCurve(((1, 2000.0), (16, 2000.0))), 100, 0.0, 300.0, 100.0, 512)
AT = Circumstances(MICRO, 0.8, seed=5, delay_us=0)
SHAPE = Shape(20, 100)
LENT, UNLENT = CostCurve(((1, 500.0), (16, 1300.0), (64, 5000.0))), CostCurve(((1, 750.0), (16, 2500.0), (64, 9500.0)))


def test_plain_decoding_is_a_step_and_its_overhead_a_token() -> None:
    expected = 1e6 / 2100
    assert predicted_tokens_per_s(DraftWishes("off"), AT, [SHAPE]) == pytest.approx(expected, rel=0.02)
    slow_to_begin = replace(AT, micro=replace(MICRO, request_us=21_000.0))
    assert predicted_tokens_per_s(DraftWishes("off"), slow_to_begin, [SHAPE]) == pytest.approx(expected / 1.1, rel=0.02)


def test_prompts_are_asked_for_in_turn_under_one_policy() -> None:
    """A policy of tens of answers is predicted as one: with the second and third of a fresh one, `adaptive` was still finding out."""
    shapes = [Shape(20, 60), Shape(20, 140)]
    world = replace(world_of(DraftWishes("off"), AT, shapes[0]), shapes=tuple(shapes))
    assert [len(text_of(world, 0, request).truth) for request in range(3)] == [80, 160, 80]
    assert predicted_tokens_per_s(DraftWishes("off"), AT, shapes) == pytest.approx(
        predicted_tokens_per_s(DraftWishes("off"), AT, [SHAPE]), rel=0.01
    )


def test_a_policy_is_predicted_as_one_that_has_had_many_answers() -> None:
    """As it was measured; a fresh one finds out in its first answers that drafts do not pay."""
    lends = MicroBenchmarks(LENT, 60, 0.0, 190.0, 170.0, 256, 400, UNLENT)
    wishes, at, shape = DraftWishes("adaptive"), Circumstances(lends, 0.5, 5, 0), Shape(80, 90)
    fresh = 1e6 * shape.output_len / simulate(world_of(wishes, at, shape), make_pacing("adaptive"), shape.output_len).elapsed_us
    assert predicted_tokens_per_s(wishes, at, [shape, shape]) > 1.1 * fresh


def test_right_drafts_pay_and_a_distance_costs() -> None:
    right = replace(AT, acceptance=1.0)
    near = predicted_tokens_per_s(DraftWishes("serial", 4), right, [SHAPE, SHAPE])
    far = predicted_tokens_per_s(
        DraftWishes("serial", 4), replace(right, delay_us=5_000, micro=replace(MICRO, round_trip_us=10_100.0)), [SHAPE, SHAPE]
    )
    # Five tokens for four drafted ones, two messages and a step; 10 ms more at a distance.
    assert near == pytest.approx(5e6 / (4 * 300 + 100 + 2100), rel=0.05)
    assert far == pytest.approx(5e6 / (4 * 300 + 100 + 2100 + 10_000), rel=0.05)


def test_a_simulated_drafter_errs_where_the_replaying_one_does() -> None:
    text = text_of(world_of(DraftWishes("serial"), AT, SHAPE), client=0, request=7)
    source = ReplaySource(ReplayOptions((), AT.acceptance, 1000, seed=AT.seed))
    positions = range(SHAPE.prompt_len, SHAPE.prompt_len + SHAPE.output_len)
    replayed = [source._choice(0, position).first == 0 for position in positions]
    assert (text.guesses == text.truth)[SHAPE.prompt_len :].tolist() == replayed
    assert 0 < sum(replayed) < len(replayed)


def test_a_simulated_drafters_guesses_follow_each_other_as_the_replaying_ones_do() -> None:
    """300 us each; with side branches they come one by one."""
    assert world_of(DraftWishes("serial"), AT, SHAPE).max_followed == most_followed(300.0) == 5
    assert world_of(DraftWishes("serial"), replace(AT, hedge_acceptance=0.5), SHAPE).max_followed == 0


def test_a_request_may_hold_drafts_shorter() -> None:
    assert world_of(DraftWishes("serial", 2), AT, SHAPE).max_draft_len == 2
    assert world_of(DraftWishes("serial"), AT, SHAPE).max_draft_len == world_of(DraftWishes("serial", 60), AT, SHAPE).max_draft_len == 24


def test_shapes_are_those_of_the_plain_answers() -> None:
    recorder, cell = Recorder(), Cell("replayed", 0.0)
    recorder.add(cell, PLAIN, 0, Answer((1, 2, 3), 1.0, 1.0))
    assert shapes_in(recorder, [Prompt("copying", (1, 2))])(cell) == [Shape(2, 3)]


def test_a_token_takes_the_time_between_arrivals_without_the_first() -> None:
    sample = CollectedSample(token_ids=[1] * 6, arrivals=[(0.5, 2), (0.6, 1), (0.9, 3)])
    assert token_us(CollectedAnswer(samples={0: sample})) == pytest.approx(100_000)


@dataclass
class Gateway:
    """Answers in the given times: (first token, every further token), seconds. Drafted: 16 rounds of 3 guesses in 8 ms, 1.2 of drafting.

    step_us: of each plain step but the first, as the verifier counts it; that takes 4 ms. drafted_us: of each step of four rows.
    beside_us: the same with the drafter at work, where the first takes 3 ms longer. num_guessed: by it, of which 48 are verified.
    """

    times_s: list[tuple[float, float]]
    step_us: int = 2000
    drafted_us: int = 5000
    beside_us: int = 7000
    num_guessed: int = 48

    def ask(self, request: generation_pb2.GenerateRequest) -> CollectedAnswer:
        assert request.ignore_eos
        if request.draft.off:
            first_s, each_s = self.times_s.pop(0) if request.max_tokens > 1 else (9.0, 9.0)
            arrivals = [(first_s + number * each_s, 1) for number in range(request.max_tokens)]
            steps_us = 4000 + (request.max_tokens - 1) * self.step_us
            counted = generation_pb2.DraftStatistics(num_rounds=request.max_tokens, verify_us=steps_us, plan_us=60)
            plainly = generation_pb2.Finished(statistics=counted)
            return CollectedAnswer(samples={0: CollectedSample(token_ids=[1] * request.max_tokens, arrivals=arrivals, finished=plainly)})
        assert request.draft.pacing in ("serial", "pearl", "adaptive")
        begin_s, steps_us = (
            (0.020, 4000 + 16 * self.drafted_us) if request.draft.pacing == "serial" else (0.013, 7000 + 16 * self.beside_us)
        )
        counted = generation_pb2.DraftStatistics(num_rounds=17, num_drafted=48, draft_us=19_200, verify_us=steps_us)
        counted.plan_us, counted.num_guessed = 17 * 60, self.num_guessed
        finished = generation_pb2.Finished(statistics=counted)
        arrivals = [(begin_s + number * 0.008, 4) for number in range(17)]
        return CollectedAnswer(samples={0: CollectedSample(token_ids=[1] * 68, arrivals=arrivals, finished=finished)})


def test_a_micro_benchmark_is_the_median_of_its_samples_beside_the_measured_step(monkeypatch: pytest.MonkeyPatch) -> None:
    trips_us = iter([[300.0, 320.0, 9000.0], [310.0], [290.0]])
    monkeypatch.setattr(micro_module, "round_trips_us", lambda drafter, identity: next(trips_us))
    gateway = Gateway([(0.010, 0.0025), (0.012, 0.0024), (9.0, 9.0)])
    info = verifier_pb2.VerifierServiceGetInfoResponse(cost_rows=[1, 4], cost_us=[2000.0, 5000.0], max_rows=256)
    plain = Stack(PLAIN, cast(Any, gateway), DraftWishes("off"), "")
    micro = MicroBenchmark(plain, info, "unix:drafter", Prompt("copying", (1, 2, 3)), policies=("lookup", "serial", "adaptive"))
    for _ in range(3):
        micro.sample()
    found = micro.result()
    assert (found.step_overhead_us, found.max_rows) == (500, 256)
    assert found.request_us == pytest.approx(12_000 - 4_000 - 500)
    assert found.draft_us == 400.0
    assert found.round_trip_us == 310.0
    assert found.guess_us == 8000 - 5000 - 500 - 3 * 400 - 310, (
        "a round less its step of four rows, overhead, drafts and a message and back"
    )
    assert steps_text(found.verify) == "1: 2.00, 4: 5.00"
    assert found.plan_us == {"plain": 0.0, "serial": 60.0, "adaptive": 60.0}, "of sixteen rounds, the first left out"
    assert found.draft_slowdown == 1.0, "no cores are shared"


def test_each_repetition_has_the_micro_benchmarks_of_its_own_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_module, "round_trips_us", lambda drafter, identity: [300.0])
    gateway = Gateway([(0.010, 0.0025), (0.010, 0.0035), (0.010, 0.0045)])
    info = verifier_pb2.VerifierServiceGetInfoResponse(cost_rows=[1, 4], cost_us=[2000.0, 5000.0])
    micro = MicroBenchmark(Stack(PLAIN, cast(Any, gateway), DraftWishes("off"), ""), info, "unix:drafter", Prompt("copying", (1,)))
    for repetition in (0, 1, 1):
        micro.sample(repetition)
    assert [each.step_overhead_us for each in micro.by_repetition()] == [500, 2000]
    assert micro.result().step_overhead_us == 1500
    assert circumstances(micro, 0.7, 5, 1000, 0.2) == Circumstances(micro.result(), 0.7, 5, 1000, 0.2, micro.by_repetition())


def test_a_machine_whose_pace_changes_between_repetitions_is_predicted_in_each_of_them() -> None:
    """Medians over a cell may be of different minutes: here three repetitions of five are twice as slow, and the measured median is of
    another than the predicted one."""
    cell, wishes = Cell("replayed", 0.0), DraftWishes("off")
    slow = replace(MICRO, verify=CostCurve(((1, 4200.0), (16, 4200.0))), step_overhead_us=0)
    micros = (MICRO, slow, slow, MICRO, slow)
    speeds = tuple(predicted_tokens_per_s(wishes, replace(AT, micro=micro), [SHAPE]) for micro in micros)
    row = Row(cell, PLAIN, Summary(speeds[0], 1.0, 0.0, 1.0, 0.0, 0.9, 0.0, 100), 0.5, None, speeds)
    at = {cell: replace(AT, by_repetition=micros)}
    (found,) = predicted([row], {PLAIN: wishes}, at, lambda _: [SHAPE])
    assert found.tokens_per_s == speeds[1]
    assert found.ratio == 1.0
    assert replace(found, by_repetition=()).error == pytest.approx(0.5, abs=0.02), "by medians of the cell"


@pytest.mark.parametrize("num_stalled", [1, 4, 5])
def test_an_answer_that_comes_all_at_once_is_asked_for_again(num_stalled: int) -> None:
    """A client that was stalled for forty milliseconds: it knows when the last token came, and no other."""
    left = num_stalled

    class Stalling(Gateway):
        def ask(self, request: generation_pb2.GenerateRequest) -> CollectedAnswer:
            nonlocal left
            answer = super().ask(request)
            if left:
                left -= 1
                answer.first.arrivals[:] = [(0.2, request.max_tokens)]
            return answer

    plain = Stack(PLAIN, cast(Any, Stalling([(0.01, 0.002)] * (num_stalled + 1))), DraftWishes("off"), "")
    if num_stalled < MAX_ASKED:
        assert token_us(micro_module._ask(plain, Prompt("copying", (1,)), 0.0)) == pytest.approx(2000.0)
        return
    with pytest.raises(RuntimeError, match="in one message"):
        micro_module._ask(plain, Prompt("copying", (1,)), 0.0)


def test_a_step_costs_no_more_than_a_round_that_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_module, "round_trips_us", lambda drafter, identity: [300.0])
    gateway = Gateway([(0.010, 0.0015)], drafted_us=9000)
    info = verifier_pb2.VerifierServiceGetInfoResponse(cost_rows=[1, 4], cost_us=[2000.0, 5000.0], max_rows=256)
    micro = MicroBenchmark(Stack(PLAIN, cast(Any, gateway), DraftWishes("off"), ""), info, "unix:drafter", Prompt("copying", (1,)))
    micro.sample()
    found = micro.result()
    assert found.step_overhead_us == 0
    assert [found.verify.verify_us(rows) for rows in (1, 4)] == pytest.approx([1500.0, 8000.0 - 3 * 400.0])
    assert found.unlent is None, "it lends nothing"


@pytest.mark.parametrize("step_us", [1200, 2600])
def test_steps_are_taken_at_the_pace_of_the_minutes_in_which_rounds_were_measured(monkeypatch: pytest.MonkeyPatch, step_us: int) -> None:
    monkeypatch.setattr(micro_module, "round_trips_us", lambda drafter, identity: [300.0])
    gateway = Gateway([(0.010, (step_us + 400) / 1e6)], step_us, round(2.5 * step_us))
    info = verifier_pb2.VerifierServiceGetInfoResponse(cost_rows=[1, 4], cost_us=[2000.0, 5000.0], max_rows=256)
    micro = MicroBenchmark(Stack(PLAIN, cast(Any, gateway), DraftWishes("off"), ""), info, "unix:drafter", Prompt("copying", (1,)))
    micro.sample()
    found = micro.result()
    assert found.step_overhead_us == 400
    assert [found.verify.verify_us(rows) for rows in (1, 4)] == pytest.approx([step_us, 2.5 * step_us])


def test_many_rows_have_a_pace_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits for memory, which others may use at times, where many compute: predicted by the one's pace, steps of sixteen rows of a
    large target took 33 ms that took 24."""
    monkeypatch.setattr(micro_module, "round_trips_us", lambda drafter, identity: [300.0])
    info = verifier_pb2.VerifierServiceGetInfoResponse(cost_rows=[1, 2, 4, 16], cost_us=[2000.0, 3000.0, 4000.0, 9000.0], max_rows=256)
    gateway = Gateway([(0.010, 0.0034)], step_us=3000, drafted_us=4400)
    micro = MicroBenchmark(Stack(PLAIN, cast(Any, gateway), DraftWishes("off"), ""), info, "unix:drafter", Prompt("copying", (1,)))
    micro.sample()
    found = micro.result()
    assert [found.verify.verify_us(rows) for rows in (1, 2, 4, 16)] == pytest.approx([3000.0, 3000.0 * 1.3, 4400.0, 9900.0])
    assert found.guess_us == 8000 - 4400 - 400 - 3 * 400 - 300


def test_a_pace_never_makes_more_rows_cheaper_than_fewer() -> None:
    paced = Pace(1.0, 2.0, 4.0, 0.5).apply(CostCurve(((1, 100.0), (2, 110.0), (4, 130.0), (64, 900.0))))
    assert [us for _, us in paced.points] == pytest.approx([200.0, 200.0, 200.0, 450.0])
    assert Pace(1.0, 2.0, 1.0, 0.5).of(8) == 2.0, "nobody guessed: there is no other"


def test_a_pace_is_between_those_of_few_and_of_many_rows_and_no_more_beyond_them() -> None:
    assert [Pace(2.0, 1.0, 32.0, 2.0).of(rows) for rows in (1, 2, 8, 32, 100)] == pytest.approx([1.0, 1.0, 1.5, 2.0, 2.0])


@pytest.mark.parametrize(("num_read", "expected_us"), [(1, [3000.0, 7000.0, 14_000.0]), (64, [3000.0, 7000.0, 12_600.0])])
def test_steps_beside_a_drafter_at_work_have_a_pace_of_their_own(
    monkeypatch: pytest.MonkeyPatch, num_read: int, expected_us: list[float]
) -> None:
    """By those of an overlapped answer, and by what its prompt took: told from the pace of the others, prompts that are read while a
    drafter is asked took far longer than they do."""
    monkeypatch.setattr(micro_module, "round_trips_us", lambda drafter, identity: [300.0])
    info = verifier_pb2.VerifierServiceGetInfoResponse(
        cost_rows=[1, 4, 64], cost_us=[2000.0, 5000.0, 9600.0], cost_unlent_us=[3000.0, 7000.0, 14_000.0]
    )
    gateway = Gateway([(0.010, 0.0025)])
    prompt = Prompt("copying", (1,) * num_read)
    micro = MicroBenchmark(Stack(PLAIN, cast(Any, gateway), DraftWishes("off"), ""), info, "unix:drafter", prompt)
    micro.sample()
    unlent = micro.result().unlent
    assert unlent is not None
    assert [unlent.verify_us(rows) for rows in (1, 4, 64)] == pytest.approx(expected_us)


@pytest.mark.parametrize(("num_guessed", "slowdown"), [(24, 2.0), (48, 1.0), (96, 1.0)])
def test_a_token_beside_the_target_takes_as_long_as_all_that_were_guessed_there(
    monkeypatch: pytest.MonkeyPatch, num_guessed: int, slowdown: float
) -> None:
    """Drafts in turns take 400 us a token; more than half of what a drafter that runs ahead guesses may never be verified."""
    monkeypatch.setattr(micro_module, "round_trips_us", lambda drafter, identity: [300.0])
    info = verifier_pb2.VerifierServiceGetInfoResponse(cost_rows=[1, 4], cost_us=[2000.0, 5000.0], cost_unlent_us=[3000.0, 7000.0])
    gateway = Gateway([(0.010, 0.0025)], num_guessed=num_guessed)
    micro = MicroBenchmark(Stack(PLAIN, cast(Any, gateway), DraftWishes("off"), ""), info, "unix:drafter", Prompt("copying", (1,)))
    micro.sample()
    assert micro.result().draft_slowdown == pytest.approx(slowdown)
    assert world_of(DraftWishes("pearl"), replace(AT, micro=micro.result()), SHAPE).draft_slowdown == pytest.approx(slowdown)


@pytest.mark.parametrize(("pacing", "overhead_us"), [("plain", 100), ("serial", 150), ("pearl", 120), ("adaptive", 240), ("unasked", 150)])
def test_a_round_takes_what_its_own_policys_plans_do(pacing: str, overhead_us: int) -> None:
    """What guesses add was measured under `serial`, 50 us of it plans beyond plain decoding's; `adaptive`, whose plans take longer, was
    predicted too quick: at first with guesses, and for long where it decodes plainly."""
    plan_us = {"plain": 10.0, "serial": 60.0, "pearl": 30.0, "adaptive": 150.0}
    world = world_of(DraftWishes("serial"), replace(AT, micro=replace(MICRO, guess_us=100)), SHAPE)
    planned = planned_by(pacing, world, plan_us)
    assert (planned.step_overhead_us, planned.guess_us) == (overhead_us, 50)
    assert planned_by(pacing, world, {}) == world, "a service that does not tell"


def test_plans_take_their_time_of_plain_rounds_too() -> None:
    """A drafter that is always wrong: `adaptive` decodes plainly nearly all along, and still plans."""
    plans_us = {"plain": 0.0, "serial": 0.0}
    quick, slow = (
        predicted_tokens_per_s(DraftWishes("adaptive"), replace(AT, acceptance=0.0, micro=replace(MICRO, plan_us=plans_us | own)), [SHAPE])
        for own in ({"adaptive": 0.0}, {"adaptive": 210.0})
    )
    assert quick / slow == pytest.approx(1.1, rel=0.03), "a tenth of a round"


def test_a_policy_whose_plans_take_longer_is_predicted_slower() -> None:
    quick, slow = (
        predicted_tokens_per_s(DraftWishes("pearl", 4), replace(AT, acceptance=1.0, micro=replace(MICRO, plan_us=known)), [SHAPE, SHAPE])
        for known in ({"serial": 60.0, "pearl": 60.0}, {"serial": 60.0, "pearl": 760.0})
    )
    assert quick > 1.1 * slow


def test_a_step_beside_a_drafter_at_work_is_never_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_module, "round_trips_us", lambda drafter, identity: [300.0])
    info = verifier_pb2.VerifierServiceGetInfoResponse(cost_rows=[1, 4], cost_us=[2000.0, 5000.0], cost_unlent_us=[3000.0, 8000.0])
    gateway = Gateway([(0.010, 0.0025)], beside_us=4000)
    micro = MicroBenchmark(Stack(PLAIN, cast(Any, gateway), DraftWishes("off"), ""), info, "unix:drafter", Prompt("copying", (1,)))
    micro.sample()
    unlent = micro.result().unlent
    assert unlent is not None
    assert [unlent.verify_us(rows) for rows in (1, 4)] == pytest.approx([2000.0, 5000.0])


@pytest.mark.parametrize(("pacing", "is_slower"), [("off", False), ("serial", False), ("pearl", True)])
def test_only_who_drafts_meanwhile_verifies_on_fewer_cores(pacing: str, *, is_slower: bool) -> None:
    """A drafter that costs next to nothing: then a step is all there is to a round."""
    slow = CostCurve(((1, 6000.0), (16, 6000.0)))
    worlds = [replace(AT, micro=replace(MICRO, draft_us=1.0, round_trip_us=0.0, unlent=unlent)) for unlent in (None, slow)]
    lends_always, lends = (predicted_tokens_per_s(DraftWishes(pacing, 4), at, [Shape(20, 400)]) for at in worlds)
    assert lends_always / lends == pytest.approx(6100 / 2100 if is_slower else 1.0, rel=0.1)


def test_steps_without_a_loan_teach_nothing_of_those_with_one() -> None:
    slow = CostCurve(((1, 6000.0), (16, 6000.0)))
    at = replace(AT, micro=replace(MICRO, draft_us=1.0, round_trip_us=0.0, unlent=slow))
    simulation = Simulation(world_of(DraftWishes("pearl", 4), at, Shape(20, 400)), make_pacing("pearl", 4), 400)
    simulation.run()
    assert simulation._verifier.cost.verify_us(4) == pytest.approx(2000.0)


def test_a_message_takes_half_a_trip_less_the_distance() -> None:
    far = replace(AT, delay_us=5_000, micro=replace(MICRO, round_trip_us=10_300.0))
    assert far.message_us == 150
    assert replace(far, delay_us=6_000).message_us == 0


def test_the_drafter_of_the_benchmark_knows_its_plain_answer() -> None:
    plain = Stack(PLAIN, cast(Any, Gateway([(0.01, 0.002)])), DraftWishes("off"), "")
    assert replayed_text(plain, Prompt("copying", (7, 8))) == (7, 8, *[1] * PLAIN_TOKENS)


def test_guesses_cost_a_simulated_round_what_they_are_said_to() -> None:
    """One of two worlds in which every guess is right: rounds are alike, and as much longer."""
    worlds = [
        world_of(DraftWishes("serial", 4), replace(AT, acceptance=1.0, micro=replace(MICRO, guess_us=us)), Shape(4, 200)) for us in (0, 700)
    ]
    quick, slow = (simulate(world, make_pacing("serial", 4), 200) for world in worlds)
    num_guessed = 200 / 5
    assert slow.elapsed_us - quick.elapsed_us == pytest.approx(700 * num_guessed, rel=0.1)


def test_a_round_beside_a_drafter_at_work_costs_as_much_though_it_has_no_guesses() -> None:
    """Its tails are taken in and it is told of commits: `pearl` was simulated a tenth too quick. Guesses that are always wrong leave
    every round of it without any."""
    worlds = [
        world_of(DraftWishes("pearl", 4), replace(AT, acceptance=0.0, micro=replace(MICRO, guess_us=us)), Shape(4, 200)) for us in (0, 700)
    ]
    quick, slow = (simulate(world, make_pacing("pearl", 4), 200) for world in worlds)
    assert slow.elapsed_us - quick.elapsed_us == pytest.approx(700 * 200, rel=0.1)


class Turns:
    """A contestant and a micro-benchmark that write down when it was whose turn."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self._log = name, log
        self.repetitions: list[int] = []

    def answer(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Answer:
        """One token."""
        self._log.append(self.name)
        return Answer((1,), 1.0, 1.0)

    def sample(self, repetition: int) -> None:
        """One."""
        self._log.append(self.name)
        self.repetitions.append(repetition)


@pytest.mark.parametrize("num_contestants", [1, 4, 10])
def test_the_micro_benchmark_is_sampled_all_along_a_cell(num_contestants: int) -> None:
    """Too few samples of a restless machine were most of what predictions seemed to be wrong by."""
    log: list[str] = []
    contestants = [Turns(str(number), log) for number in range(num_contestants)]
    run = ReplayRun((Prompt("copying", (1,)),), 0.0, 4, 3, 100)
    micro = Turns("micro", log)
    record(replay_cell(0.6, 0.0), cast(Any, contestants), run, Recorder(), cast(Any, micro), lambda: None)
    assert sorted(set(micro.repetitions)) == [0, 1, 2], "each repetition has its own"
    measured = log[num_contestants:]  # behind the answers that warm
    between = "".join("m" if name == "micro" else "." for name in measured).split("m")
    assert between[0] == "", "each turn has a sample before it"
    assert max(len(turns) for turns in between) <= math.ceil(num_contestants / MAX_SAMPLES_A_REPETITION)
    assert min(len(turns) for turns in between[1:]) >= 1
    assert len(measured) - measured.count("micro") == 3 * num_contestants


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_replayed_cells_are_predicted_from_answers_of_their_own_temperature(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    """All were from answers at 0; what a pick costs at one temperature is not taken for what it costs at another."""
    monkeypatch.setattr(micro_module, "round_trips_us", lambda drafter, identity: [300.0])
    asked: list[float] = []

    class Listening(Gateway):
        def ask(self, request: generation_pb2.GenerateRequest) -> CollectedAnswer:
            asked.append(request.sampling.temperature)
            return super().ask(request)

    info = verifier_pb2.VerifierServiceGetInfoResponse(cost_rows=[1, 4], cost_us=[2000.0, 5000.0])
    contestants = replay_contestants(cast(Any, Listening([(0.010, 0.0025)] * 2)), ["serial"], "")
    micro = micro_of_cells(contestants, info, Prompt("copying", (1,)), temperature)
    micro.begin("unix:drafter").sample()
    assert len(asked) == 4, "the text to replay; a first token, a plain answer and a drafted one"
    assert asked == pytest.approx([temperature] * 4)
