"""The grid's parts without processes: shared cores by hand, a simulated grid against closed forms, costs from samples, traces, tables."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from fakes import TableEngine, TruthTable
from outrider.cli.bench import add_parser
from outrider.cli.connection import CollectedAnswer, CollectedSample
from outrider.errors import InvalidRequest, Overloaded
from outrider.rpc.convert.link import FromDrafter, ToDrafter
from outrider.session.pacing.contract import CostCurve
from outrider.types.frames import Open, Tail, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.v1 import generation_pb2
from outrider_bench.grid import simulated_grid
from outrider_bench.grid.costs import Costs, Pair, Trace, acceptance
from outrider_bench.grid.direct_drafts import Asked, DraftTimes, beginning, trace_of
from outrider_bench.grid.driver import PAIRS, Amount, Burst, Predicted, row_of
from outrider_bench.grid.micro import GridSamples, Lengths, Rounds, costs_of, crowding, read_too, rounds_between, session_counts
from outrider_bench.grid.processor_sharing import Kind, Piece, ProcessorSharing
from outrider_bench.grid.report import GridFound, GridRow, markdown, result
from outrider_bench.grid.simulated_grid import GridWorld, SimulatedGrid
from outrider_bench.grid.step_times import NUM_TOGETHER, StepTimes, time_together
from outrider_bench.link import DrafterLine
from outrider_bench.simulation.text import NEVER, traced_text
from verifier_service.cost_model import MEASURED_ROWS, NUM_REPEATS

STEP_US, OVERHEAD_US = 10_000.0, 500
COSTS = Costs(
    verify=CostCurve(((1, STEP_US), (64, STEP_US))), draft=CostCurve(((1, 400.0), (4, 500.0))), draft_start_us=300.0, read_us=5.0,
    step_overhead_us=OVERHEAD_US, session_us=0, guess_us=100, message_us=150.0, link_wait_us=0.0,
    request_cpu_us=0.0, request_wait_us=0.0, delta_us=0.0, verify_slowdown=1.0, draft_slowdown=1.0, max_rows=512,
)  # fmt: skip
LEN = 60
ALL_RIGHT = Trace(20, (True,) * LEN, (False,) * LEN, (NEVER,) * LEN)
ALL_WRONG = replace(ALL_RIGHT, right=(False,) * LEN)


def speed(pair: Pair, policy: str, trace: Trace, num_clients: int = 1, num_cores: int = 8, costs: Costs = COSTS) -> float:
    grid = SimulatedGrid(GridWorld(pair, costs, (trace,) * 4, num_clients, num_cores, policy))
    grid.burst()
    return grid.burst().tokens_per_s


# --- shared cores ---------------------------------------------------------------------------------------------------------


def test_three_that_compute_on_two_cores_get_two_thirds_of_one_each() -> None:
    cores = ProcessorSharing(2, {})
    pieces = [Piece(Kind.VERIFIER, 0), Piece(Kind.VERIFIER, 1), Piece(Kind.DRAFTER, 0)]
    for piece, work_us in zip(pieces, (200.0, 200.0, 400.0), strict=True):
        cores.start(piece, work_us, 1_000)
    assert cores.due_us() == 1_300
    assert cores.take_done(1_299) == []
    assert cores.take_done(1_300) == pieces[:2]
    assert cores.due_us() == 1_500, "200 are left, and it is alone"
    assert cores.take_done(1_500) == pieces[2:]
    assert cores.is_idle
    assert cores.due_us() is None


def test_a_neighbour_costs_each_kind_its_own_factor_and_only_while_it_computes() -> None:
    cores = ProcessorSharing(2, {Kind.VERIFIER: 1.5, Kind.DRAFTER: 2.0})
    verifier, drafter = Piece(Kind.VERIFIER, 0), Piece(Kind.DRAFTER, 0)
    cores.start(verifier, 300.0, 0)
    cores.start(drafter, 50.0, 60)
    assert cores.take_done(160) == [drafter]
    assert cores.due_us() == 334  # 60 alone, 100 at a speed of 2 / 3, the remaining 173.3 alone


# --- the simulated grid ---------------------------------------------------------------------------------------------------


def test_work_of_one_kind_side_by_side_has_a_slowdown_of_its_own() -> None:
    cores = ProcessorSharing(2, {Kind.VERIFIER: 1.2, Kind.DRAFTER: 2.0}, {Kind.VERIFIER: 1.5})
    cores.start(Piece(Kind.VERIFIER, 0), 1_000.0, 0)
    cores.start(Piece(Kind.VERIFIER, 1), 2_000.0, 0)
    assert cores.due_us() == 1_500
    assert cores.take_done(1_500) == [Piece(Kind.VERIFIER, 0)]
    assert cores.due_us() == 2_500, "alone again"
    cores.start(Piece(Kind.DRAFTER, 0), 5_000.0, 1_500)
    assert cores.due_us() == 1_500 + 1_200, "beside a drafter"


def test_plain_decoding_takes_a_step_and_its_overhead_a_token() -> None:
    assert speed(Pair(1, 1), "plain", ALL_RIGHT) == pytest.approx(1e6 / (STEP_US + OVERHEAD_US), rel=1e-3)


def test_each_further_session_of_a_step_takes_its_own() -> None:
    costs, unread = replace(COSTS, session_us=2_000), replace(ALL_RIGHT, prompt_len=1)
    four = speed(Pair(1, 1), "plain", unread, 4, costs=costs)
    assert four == pytest.approx(4e6 / (STEP_US + OVERHEAD_US + 3 * 2_000), rel=0.02)


def test_two_verifiers_are_worth_two_where_there_are_cores_and_one_where_there_are_not() -> None:
    """Steps that take twice as long for two sessions as for one: nothing is gained by sharing them."""
    dear = replace(COSTS, verify=CostCurve(((1, STEP_US), (2, 2 * STEP_US), (64, 64 * STEP_US))))
    unread = replace(ALL_RIGHT, prompt_len=1)
    alone = speed(Pair(1, 1), "plain", unread, costs=dear)
    both = {num_cores: speed(Pair(1, 2), "plain", unread, 2, num_cores, dear) for num_cores in (1, 2)}
    assert both[2] == pytest.approx(2 * alone, rel=0.02)
    assert both[1] == pytest.approx(alone, rel=0.02)


@pytest.mark.parametrize("policy", ["serial", "pearl", "adaptive"])
def test_right_guesses_pay_and_wrong_ones_do_not(policy: str) -> None:
    plain = speed(Pair(1, 1), "plain", ALL_RIGHT)
    assert speed(Pair(1, 1), policy, ALL_RIGHT) > 2.0 * plain
    assert speed(Pair(1, 1), policy, ALL_WRONG) < 1.01 * plain


def test_who_is_unsure_pauses() -> None:
    doubting = replace(ALL_RIGHT, unsure=(True,) * LEN)
    assert speed(Pair(1, 1), "serial", doubting) < 0.7 * speed(Pair(1, 1), "serial", ALL_RIGHT)


@pytest.mark.parametrize("pair", PAIRS)
def test_the_same_grid_gives_the_same_bursts_and_everybody_is_answered(pair: Pair) -> None:
    lengths = [20 + 4 * at for at in range(6)]
    rights = [tuple((length + place) % 3 > 0 for place in range(length)) for length in lengths]
    mixed = tuple(Trace(length, right, (False,) * length, (2,) * length) for length, right in zip(lengths, rights, strict=True))
    grids = [SimulatedGrid(GridWorld(pair, COSTS, mixed, 4, 2, "adaptive")) for _ in range(2)]
    first, again = ([grid.burst() for _ in range(2)] for grid in grids)
    assert first == again
    assert all(0.0 <= burst.drafted_share <= 1.0 and burst.tokens_per_s > 0.0 for burst in first)


def test_gateway_and_client_take_their_share_of_the_cores() -> None:
    busy = replace(COSTS, delta_us=STEP_US)
    free, crowded = (speed(Pair(1, 1), "plain", ALL_RIGHT, num_cores=1, costs=costs) for costs in (COSTS, busy))
    assert crowded < 0.6 * free
    assert speed(Pair(1, 1), "plain", ALL_RIGHT, num_cores=2, costs=busy) > 0.9 * free


def test_tokens_of_a_quick_target_travel_together_and_those_of_a_slow_one_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """One core, and messages as dear as a quick step: of 60 tokens in some 35 ms a client gets the first, one message every 5 ms, and the
    last, of four tokens the first and the last; steps that take longer than that have a message each."""
    monkeypatch.setattr(simulated_grid, "STREAM_INTERVAL_US", 5_000)
    long = replace(ALL_RIGHT, prompt_len=1)
    short = Trace(1, long.right[:4], long.unsure[:4], long.stray_lens[:4])
    for trace, step_us, num_messages in ((long, 500.0, 1 + 35_000 // 5_000), (short, 500.0, 2), (long, STEP_US, LEN)):
        free = replace(COSTS, verify=CostCurve(((1, step_us), (64, step_us))), step_overhead_us=0)
        told = replace(free, delta_us=500.0)
        num_tokens = len(trace.right)
        alone_us, told_us = (1e6 * num_tokens / speed(Pair(1, 1), "plain", trace, num_cores=1, costs=costs) for costs in (free, told))
        assert (told_us - alone_us) / 500.0 == pytest.approx(num_messages, rel=0.1), (num_tokens, step_us)
    quick = replace(COSTS, verify=CostCurve(((1, 500.0), (64, 500.0))), step_overhead_us=0)
    alone_us, told_us = (4e6 / speed(Pair(1, 1), "plain", short, costs=costs) for costs in (quick, replace(quick, delta_us=400.0)))
    assert told_us - alone_us == pytest.approx(400.0, rel=0.1), "with cores enough, the last message alone is waited for"


def test_what_a_message_waits_for_delays_guesses_once_for_all_sessions_and_keeps_no_core() -> None:
    """In turns: four sessions of a step wait for their guesses together; as work of the verifier it was four times as much."""
    unread = replace(ALL_RIGHT, prompt_len=1)
    near = {number: speed(Pair(1, 1), "serial", unread, number, num_cores=1) for number in (1, 4)}
    waits, works = replace(COSTS, link_wait_us=1_000.0), replace(COSTS, guess_us=COSTS.guess_us + 2_000)
    for num_clients, is_shared in ((1, False), (4, True)):
        slower = {
            name: near[num_clients] / speed(Pair(1, 1), "serial", unread, num_clients, num_cores=1, costs=costs)
            for name, costs in (("waits", waits), ("works", works))
        }
        assert slower["works"] > 1.05
        assert (slower["waits"] - 1.0 < 0.5 * (slower["works"] - 1.0)) == is_shared, slower


def test_what_a_request_waits_for_keeps_no_core() -> None:
    """Two clients wait at the same time, but the gateway serves one after the other."""
    waiting, serving = replace(COSTS, request_wait_us=1e6), replace(COSTS, request_cpu_us=1e6)
    assert speed(Pair(1, 2), "plain", ALL_RIGHT, 4, costs=waiting) > 2.0 * speed(Pair(1, 2), "plain", ALL_RIGHT, 4, costs=serving)


def test_a_traced_text_is_right_where_its_trace_says() -> None:
    text = traced_text(3, (True, False, True), (False, False, True), (NEVER, 0, NEVER))
    assert (text.guesses[3:] == text.truth[3:]).tolist() == [True, False, True]
    assert text.unsure.tolist() == [False] * 5 + [True]
    assert (text.prompt_len, len(text.truth), len(text.hashes)) == (3, 6, 7)
    assert [text.strays(begin, 5) for begin in (3, 4, 5)] == [True, True, False], "the second guess was wrong, and nothing follows it"
    assert not text.strays(3, 4)
    assert acceptance([replace(ALL_RIGHT, right=(True, False, True))]) == pytest.approx(2 / 3)


def test_a_chain_that_went_wrong_ends_where_its_trace_says() -> None:
    """Behind a mistake every guess is wasted: who soon pauses there has less to verify."""
    verify = CostCurve(((1, STEP_US), (2, STEP_US), (12, 3 * STEP_US)))
    astray = Trace(20, tuple(at % 4 > 0 for at in range(LEN)), (False,) * LEN, (NEVER,) * LEN)
    pausing = replace(astray, stray_lens=(0,) * LEN)
    endless, short = (speed(Pair(1, 1), "serial", trace, costs=replace(COSTS, verify=verify)) for trace in (astray, pausing))
    assert short > 1.05 * endless


# --- costs from samples ---------------------------------------------------------------------------------------------------


def answer(
    total_s: float, num_rounds: int, verify_us: int, num_drafted: int = 0, draft_us: int = 0, num_deltas: int = 1, wait_us: int = 0
) -> CollectedAnswer:
    statistics = generation_pb2.DraftStatistics(
        num_rounds=num_rounds, verify_us=verify_us, num_drafted=num_drafted, draft_us=draft_us, draft_wait_us=wait_us
    )
    sample = CollectedSample(arrivals=[(0.0, 1)] * num_deltas, finished=generation_pb2.Finished(statistics=statistics))
    return CollectedAnswer(samples={0: sample}, total_s=total_s)


def test_rounds_are_what_a_long_answer_has_more_than_a_short_one() -> None:
    found = rounds_between(answer(0.1, 8, 47_000, 14, 5_000, 4, 9_000), answer(0.6, 58, 297_000, 114, 57_000, 29, 59_000), 6e3, 16e3)
    assert (found.round_us, found.step_us, found.num_guesses, found.draft_us) == pytest.approx((10_000.0, 5_000.0, 2.0, 1_040.0))
    assert found.wait_us == 1_000.0
    assert (found.delta_us, found.reading_us, found.short_us) == pytest.approx((400.0, 12_000.0, 100_000.0))


def step_times(*times_us: float) -> StepTimes:
    """Of 1 and of 4 rows; the second and the third are those of 4."""
    return StepTimes({1: [times_us[0]], 4: list(times_us[1:])})


def test_costs_are_what_is_left_of_times_that_hold_others() -> None:
    plain = Rounds(6_000.0, 0.0, 0.0, 5_000.0, 0.0, 600.0, 8_000.0, 60_000.0, 8, 5_000.0, 5)
    drafted = replace(plain, round_us=10_000.0, num_guesses=3.0, step_us=6_000.0, draft_us=1_500.0, wait_us=2_900.0)
    samples = GridSamples(
        alone=step_times(4_000.0, 6_000.0, 6_500.0, 7_000.0), busy=step_times(5_200.0, 7_150.0), crowded=step_times(8_000.0, 9_750.0),
        plain=[plain] * 3, together=[replace(plain, round_us=8_500.0, step_us=6_000.0)] * 4, drafted=[drafted],
        drafts={1: [DraftTimes(200.0, 3_000.0)], 4: [DraftTimes(260.0, 9_000.0)]},
        short_drafts=[DraftTimes(200.0, 1_000.0)], message_cpu_us=[800.0, 800.0, 9_000.0],
        together_us=[7_100.0, 7_400.0, 9_000.0], busy_draft_us=[300.0],
    )  # fmt: skip
    costs = costs_of(samples, Lengths(40, 50, 256, 4), num_cores=2)
    assert costs.verify.points == ((1, 4_000.0), (4, 6_500.0), (40, 8_000.0))
    assert costs.draft.points == ((1, 200.0), (4, 260.0))
    assert (costs.draft_start_us, costs.read_us, costs.message_us) == (900.0, 40.0, 400.0)  # 1,500 - 3 * 200, after a rest
    quick = costs_of(replace(samples, drafted=[replace(drafted, draft_us=1_200.0)]), Lengths(40, 50, 256, 4), num_cores=2)
    assert quick.draft_start_us == 800.0, "never less than right after other work"
    assert (costs.step_overhead_us, costs.session_us) == (1_000, 800)  # (7,400 - 6,500 + 2,500 - 1,000) / 3
    assert costs.guess_us + 2 * costs.link_wait_us == 700  # 10,000 - 6,000 - 1,500 - 1,000 - 800
    assert costs.link_wait_us == 300, "2,900 - 1,500 - 800 is waited there and back, while others may have the core"
    unheard = costs_of(replace(samples, drafted=[replace(drafted, wait_us=9_000.0)]), Lengths(40, 50, 256, 4), num_cores=2)
    assert (unheard.guess_us, unheard.link_wait_us) == (0, 350.0), "no more than there is"
    assert (costs.request_cpu_us, costs.request_wait_us) == (2_000.0, 7_000.0)  # 60,000 - 8,000 - 1,000 - 7 * 6,000 = 9,000 in all
    assert (costs.verify_slowdown, costs.draft_slowdown) == pytest.approx((1.2, 1.5))
    assert costs.verify_crowding == pytest.approx(1.75 / crowding(0.1, 2)), "the other's client and gateway take a share of the cores"
    assert costs.max_rows == 256


def test_steps_are_timed_by_rows_and_compared_row_by_row() -> None:
    engine, alone, slower = TableEngine(TruthTable(vocab_size=40, seed=3), step_us=1_000), StepTimes(), StepTimes()
    alone.time(engine)
    alone.time(engine)
    counts = [rows for rows in MEASURED_ROWS if rows <= engine.limits.max_rows]
    assert {rows: len(times_us) for rows, times_us in alone.by_rows.items()} == dict.fromkeys(counts, 2 * NUM_REPEATS)
    assert alone.curve().verify_us(1) == 1_000
    slower.by_rows.update({1: [3_000.0], 2: [1.0], 4: [5_000.0]})
    alone.by_rows.update({1: [1_000.0, 5_000.0, 1_500.0], 2: [1.0], 4: [2_000.0]})
    assert slower.over(alone) == 2.0
    assert time_together(engine, 3, 40) == [1_000.0] * NUM_TOGETHER
    assert engine.num_open == 0
    small = TableEngine(TruthTable(vocab_size=40, seed=3), num_blocks=8)
    with pytest.raises(Overloaded):
        time_together(small, 3, 40)
    assert small.num_open == 0
    assert StepTimes({1: [5.0], 4: [3.0]}).curve().points == ((1, 5.0), (4, 5.0)), "a curve never falls"


def test_small_parts_of_the_costs() -> None:
    assert (session_counts(1), session_counts(4), session_counts(6)) == ([1], [1, 2, 4], [1, 2, 4, 6])
    assert crowding(0.0, 2) == crowding(1.0, 3) == 1.0
    assert crowding(1.0, 2) == pytest.approx(1.5)
    short = CostCurve(((1, 10.0), (64, 90.0)))
    assert read_too(short, 64, 5.0) == short
    assert read_too(short, 80, 50.0).points[-1] == (80, 90.0), "a curve never falls"


# --- what the draft model is asked ----------------------------------------------------------------------------------------

TRUTH = (1, 2, 3, 4, 5, 6, 7, 8)


class ScriptedDrafter:
    """Guesses by position; pauses before those it doubts, unless nothing else is guessed."""

    def __init__(self, guesses: dict[int, int], doubts: frozenset[int]) -> None:
        self.opened: list[Open] = []
        self._guesses, self._doubts = guesses, doubts

    def send(self, frame: ToDrafter) -> None:
        if isinstance(frame, Open):
            self.opened.append(frame)

    def received(self) -> Iterator[FromDrafter]:
        for at in count():
            opened = self.opened[at]
            tokens: list[int] = []
            end = TailEnd.CREDIT
            for position in range(opened.prefix_len, opened.draft_until):
                if position in self._doubts and tokens:
                    end = TailEnd.CONFIDENCE
                    break
                tokens.append(self._guesses.get(position, TRUTH[position]))
                if position in self._doubts:
                    end = TailEnd.CONFIDENCE
                    break
            scores = np.log(np.asarray([0.1 if opened.prefix_len in self._doubts else 0.9] * len(tokens), np.float32))
            nodes = np.asarray(tokens, np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32)
            yield Tail(opened.session, 1, 0, 0, opened.prefix_len, 0, *nodes, end, "scripted", 0, 0, 0, scores)


@pytest.mark.parametrize(
    ("wrong", "doubts"), [(set(), set()), ({2}, set()), ({2, 3, 7}, set()), (set(), {5}), ({4}, {3, 4, 6}), ({6}, {2, 3, 7})]
)
def test_a_trace_finds_every_guess_and_every_doubt(wrong: set[int], doubts: set[int]) -> None:
    drafter = ScriptedDrafter(dict.fromkeys(wrong, 99), frozenset(doubts))
    traced = trace_of(DrafterLine(drafter.send, drafter.received()), Asked(TRUTH, 2, SamplingParams(), NoiseAddress(3)))
    assert traced.prompt_len == 2
    assert traced.right == tuple(position not in wrong for position in range(2, 8))
    found = {2 + at for at, unsure in enumerate(traced.unsure) if unsure}
    assert found <= doubts
    for position in wrong - doubts:
        pause = min((doubt for doubt in doubts if doubt > position), default=None)
        assert traced.stray_lens[position - 2] == (NEVER if pause is None else pause - position - 1)
    if not wrong:
        assert found == doubts
    if not doubts:
        begun = sorted({2} | {position + 1 for position in wrong if position + 1 < len(TRUTH)})
        assert [opened.prefix_len for opened in drafter.opened] == begun, "every chain begins behind a mistake, none at one"
    assert all(opened.noise == NoiseAddress(3) and opened.tokens.tolist() == list(TRUTH[: opened.prefix_len]) for opened in drafter.opened)


def test_the_beginning_of_a_request_is_hardly_any_prompt() -> None:
    short = beginning(Asked(TRUTH, 5, SamplingParams(), NoiseAddress(3)))
    assert (short.tokens, short.prompt_len) == ((1, 2), 2)


# --- what is told ---------------------------------------------------------------------------------------------------------


def test_a_row_is_the_median_burst_beside_the_prediction() -> None:
    row = row_of(PAIRS[1], [Burst(90.0, 0, 2), Burst(100.0, 0, 4), Burst(120.0, 1, 3)], Predicted(110.0, 0.5), 4)
    assert [row.tokens_per_s, row.spread, row.drafted_share] == pytest.approx([100.0, 0.3, 0.75])
    assert row.error == pytest.approx(0.1)


def test_the_largest_error_counts_whichever_way_it_goes() -> None:
    rows = [GridRow(Pair(1, 1), 100.0, 0.1, 1.0, 112.0, 1.0), GridRow(Pair(2, 1), 100.0, 0.1, 1.0, 80.0, 0.9)]
    found = GridFound(rows, COSTS, 0, {"policy": "adaptive"})
    told = result(found, {"date": "today"})
    assert (told["grid_max_error"], told["grid_max_error_at"], told["identical"]) == (0.2, "2 x 1", True)
    assert result(replace(found, num_different=2), {})["identical"] is False
    report = markdown({"date": "today"}, found)
    assert "| 2 x 1 | 100.0 | 10% | 80.0 | -20.0% | 100% | 90% |" in report
    assert "| a message between verifier and drafter, us | 150 |" in report


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["bench", "grid", *arguments])


def test_the_amount_is_what_was_asked_or_the_usual_one() -> None:
    assert (Amount.of(parsed()).at_a_time, Amount.of(parsed()).policy) == (4, "adaptive")
    assert Amount.of(parsed("--quick", "--requests", "8", "--repeats", "2")) == Amount(
        ("arithmetic", "copying", "prose"), 1, 32, 2, 8, "adaptive"
    )
    for arguments, field in (
        (("--requests", "2", "4"), "requests"),
        (("--requests", "0"), "requests"),
        (("--policies", "a", "b"), "policies"),
    ):
        with pytest.raises(InvalidRequest, match=field):
            Amount.of(parsed(*arguments))
