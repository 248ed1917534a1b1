"""Cells with replayed drafts, predicted by the simulator from micro-benchmarks alone, beside what was measured.

A cell is a world: an acceptance, a pace of drafting, a way between the two. Its requests are simulated as they are asked for, with the very
positions at which the replaying drafter errs: a first request, then all prompts in turn, again and again, under one policy, which goes on
learning. Nothing is fitted on a cell: the difference is what the simulator does not know.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from outrider.drafting.follow_cost import most_followed
from outrider.session.pacing.contract import CostCurve
from outrider.session.pacing.registry import make_pacing
from outrider_bench.contestants import DraftWishes
from outrider_bench.markdown_table import markdown_table
from outrider_bench.measurement import Prompt, times
from outrider_bench.micro import DRAFTED, PLAIN_POLICY, MicroBenchmark, MicroBenchmarks, steps_text
from outrider_bench.results import PLAIN, Cell, Recorder, Row
from outrider_bench.simulation.event_loop import simulate
from outrider_bench.simulation.world import Phase, Shape, World
from verifier_service.settings import DraftDefaults

NUM_PASSES = 5  # over the prompts: as many as a cell's repetitions, or half
HEADINGS = ("cell", "contestant", "simulated tokens/s", "measured tokens/s", "simulated / measured")
MICRO_HEADINGS = (
    "cell",
    "a round beside its step us",
    "a request beside its steps us",
    "a drafted token us",
    "a message us",
    "guesses in a round us",
    "plans in a round us",
    "drafting beside the target x",
    "a step by rows, ms",
    "the same beside a drafter at work, ms",
)


Shapes = Callable[[Cell], list[Shape]]


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What replayed drafts meet in a cell. acceptance: of each token, decided by seed and position. delay_us: the network's, one way.
    hedge_acceptance: of the second choice where the first is wrong; 0: the drafter sends none. by_repetition: the micro-benchmarks of each
    repetition of the cell alone; empty: they were not told apart."""

    micro: MicroBenchmarks
    acceptance: float
    seed: int
    delay_us: int
    hedge_acceptance: float = 0.0
    by_repetition: tuple[MicroBenchmarks, ...] = ()

    @property
    def message_us(self) -> int:
        """What a message takes beside the delay, one way."""
        return max(0, round(self.micro.round_trip_us / 2) - self.delay_us)


def circumstances(micro: MicroBenchmark, acceptance: float, seed: int, delay_us: int = 0, hedge_acceptance: float = 0.0) -> Circumstances:
    """Of a cell that was measured: what is sampled of it is over."""
    return Circumstances(micro.result(), acceptance, seed, delay_us, hedge_acceptance, micro.by_repetition())


@dataclass(frozen=True, slots=True)
class Prediction:
    """A measured row and the simulator's tokens per second for it, and from what. by_repetition: of each repetition, from its own
    micro-benchmarks; empty where they were not told apart."""

    row: Row
    at: Circumstances
    tokens_per_s: float
    by_repetition: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """Predicted over measured: within each repetition, whose minute is that of its micro-benchmarks, and the median of those."""
        if not self.by_repetition:
            return self.tokens_per_s / self.row.summary.tokens_per_s
        return times(self.by_repetition, self.row.speeds)

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return abs(self.ratio - 1.0)

    def as_json(self) -> dict[str, object]:
        """For the RESULT line."""
        row = self.row
        speeds = {"simulated_tokens_per_s": round(self.tokens_per_s, 1), "tokens_per_s": round(row.summary.tokens_per_s, 1)}
        return {"task": row.cell.task, "temperature": row.cell.temperature, "contestant": row.contestant} | speeds


def predicted_tokens_per_s(wishes: DraftWishes, at: Circumstances, shapes: Sequence[Shape]) -> float:
    """What a contestant reaches over requests of these shapes. Raises StuckError when its policy makes no progress."""
    world = planned_by(policy_name(wishes), replace(world_of(wishes, at, shapes[0]), shapes=tuple(shapes)), at.micro.plan_us)
    first_len, pass_len = shapes[0].output_len, sum(shape.output_len for shape in shapes)
    first_us, all_us = (_simulated_us(world, policy_name(wishes), first_len + num * pass_len) for num in (0, NUM_PASSES))
    return 1e6 * pass_len / ((all_us - first_us) / NUM_PASSES + len(shapes) * at.micro.request_us)


def _simulated_us(world: World, policy: str, num_tokens: int) -> float:
    return float(simulate(world, make_pacing(policy), num_tokens).elapsed_us)


def planned_by(policy: str, world: World, plan_us: Mapping[str, float]) -> World:
    """The world in which every round takes as long as this policy's plans let it, with guesses or without: what one is known to take beside
    its step is plain decoding's, and what guesses add is that of the policy it was measured with. plan_us: of a round in the service, by
    policy; as that one's of a policy that was not asked."""
    known_us, plain_us = plan_us.get(DRAFTED.pacing, 0.0), plan_us.get(PLAIN_POLICY, 0.0)
    own_us = plain_us if policy == PLAIN_POLICY else plan_us.get(policy, known_us)
    overhead_us = max(0, round(world.step_overhead_us + own_us - plain_us))
    return replace(world, step_overhead_us=overhead_us, guess_us=max(0, round(world.guess_us + plain_us - known_us)))


def world_of(wishes: DraftWishes, at: Circumstances, shape: Shape) -> World:
    """Replayed drafts take no core while they pause, so that nobody slows the other down; but cores are lent only while they rest."""
    defaults, micro = DraftDefaults(), at.micro
    return World(
        verify=micro.verify,
        unlent=micro.unlent,
        draft=CostCurve(((1, micro.draft_us),)),
        max_followed=0 if at.hedge_acceptance else most_followed(micro.draft_us),
        phases=((Phase(at.acceptance),),),
        delay_us=at.delay_us,
        message_us=at.message_us,
        step_overhead_us=micro.step_overhead_us,
        guess_us=micro.guess_us,
        draft_slowdown=micro.draft_slowdown,
        hedge_acceptance=at.hedge_acceptance,
        luck_by_position=True,
        prompt_len=shape.prompt_len,
        output_len=shape.output_len,
        max_rows=micro.max_rows,
        max_draft_len=min(wishes.max_len or defaults.max_len, defaults.max_len),
        max_nodes=defaults.max_nodes,
        seed=at.seed,
    )


def policy_name(wishes: DraftWishes) -> str:
    """Of the registry."""
    return PLAIN_POLICY if wishes.pacing == "off" else wishes.pacing


def predicted(rows: Sequence[Row], wishes: Mapping[str, DraftWishes], at: Mapping[Cell, Circumstances], shapes: Shapes) -> list[Prediction]:
    """A prediction for every row. wishes: by contestant; at, shapes: by cell."""
    found = []
    for row in rows:
        wanted, where, asked = wishes[row.contestant], at[row.cell], shapes(row.cell)
        speeds = tuple(predicted_tokens_per_s(wanted, replace(where, micro=micro), asked) for micro in where.by_repetition)
        speed = statistics.median(speeds) if speeds else predicted_tokens_per_s(wanted, where, asked)
        found.append(Prediction(row, where, speed, speeds))
    return found


def shapes_in(recorder: Recorder, prompts: Sequence[Prompt]) -> Shapes:
    """Of the plain answers to these prompts."""

    def shapes(cell: Cell) -> list[Shape]:
        answers = recorder.answers[cell, PLAIN, 0]
        return [Shape(len(prompt.token_ids), len(answer.tokens)) for prompt, answer in zip(prompts, answers, strict=True)]

    return shapes


def as_result(predictions: Sequence[Prediction]) -> dict[str, object]:
    """Of the RESULT line; nothing where nothing was predicted."""
    if not predictions:
        return {}
    worst = max(predictions, key=lambda each: each.error)
    return {
        "sim_max_error": round(worst.error, 3),
        "sim_max_error_at": f"{worst.row.contestant}, {worst.row.cell.name}",
        "sim_mean_error": round(sum(each.error for each in predictions) / len(predictions), 3),
    }


def tables(predictions: Sequence[Prediction]) -> list[str]:
    """Every prediction, and the micro-benchmarks it came from, as markdown."""
    lines = markdown_table(HEADINGS, (_cells(each) for each in predictions))
    worlds = {each.row.cell: each.at for each in predictions}
    return [*lines, "", *markdown_table(MICRO_HEADINGS, (_micro_cells(cell, at) for cell, at in worlds.items()))]


def _cells(each: Prediction) -> tuple[str, ...]:
    row = each.row
    return row.cell.name, row.contestant, f"{each.tokens_per_s:.0f}", f"{row.summary.tokens_per_s:.0f}", f"{each.ratio:.2f}"


def _micro_cells(cell: Cell, at: Circumstances) -> tuple[str, ...]:
    micro = at.micro
    beside = str(micro.step_overhead_us), f"{micro.request_us:.0f}", f"{micro.draft_us:.0f}", str(at.message_us), str(micro.guess_us)
    drafting = ", ".join(f"{name} {us:.0f}" for name, us in micro.plan_us.items()), f"{micro.draft_slowdown:.2f}"
    return cell.name, *beside, *drafting, steps_text(micro.verify), "the same" if micro.unlent is None else steps_text(micro.unlent)
