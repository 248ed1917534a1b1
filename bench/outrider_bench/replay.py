"""Replayed drafts of fixed acceptance: what each pacing policy makes of drafts that are right with probability 0.6 to 0.9.

The drafter is started again at its address with a source that knows the target's answers and errs on purpose, at the pace of the
reference draft model. Everything else (gateway, verifier, frames, rounds) is the deployment that was measured before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.cli.connection import Connection
from outrider.cli.starting import await_pair
from outrider.launch.deployment import Deployment
from outrider.v1 import verifier_pb2
from outrider_bench.contestants import DRAFTLESS, DraftWishes, Stack
from outrider_bench.goals import stack_name
from outrider_bench.measurement import Prompt
from outrider_bench.micro import MicroBenchmark, replayed_text
from outrider_bench.predictions import Circumstances, circumstances
from outrider_bench.results import PLAIN, Cell, Recorder
from outrider_bench.schedule import turns

ACCEPTANCES = (0.6, 0.7, 0.8, 0.9)
REPLAY_SEED = 5
# Of the micro-benchmark, in each repetition: one answer of a restless machine says as little as one repetition of a cell does.
MAX_SAMPLES_A_REPETITION = 4


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """What to ask: prompts at one temperature, each policy `repeats` times. step_us: what one replayed draft token costs."""

    prompts: tuple[Prompt, ...]
    temperature: float
    max_tokens: int
    repeats: int
    step_us: int


@dataclass(frozen=True, slots=True)
class MicroOfCells:
    """begin: a fresh micro-benchmark for a drafter at an address. text: that it asks for, and the drafter must know."""

    begin: Callable[[str], MicroBenchmark]
    text: tuple[int, ...]


def replay_cell(acceptance: float, temperature: float) -> Cell:
    """The cell of one acceptance."""
    return Cell(f"replayed drafts, acceptance {acceptance:g}", temperature)


def replay_contestants(gateway: Connection, policies: Sequence[str], threads: str) -> list[Stack]:
    """Plain decoding, and each policy that drafts, with draft lengths of its own finding and no guesses but the drafter's."""
    names = {PLAIN: "off"} | {stack_name(policy): policy for policy in policies if policy not in DRAFTLESS}
    return [Stack(name, gateway, DraftWishes(policy, no_lookup=True), threads) for name, policy in names.items()]


def micro_of_cells(
    contestants: Sequence[Stack], info: verifier_pb2.VerifierServiceGetInfoResponse, apart: Prompt, temperature: float
) -> MicroOfCells:
    """For the cells of one temperature, asked at that temperature: what picking a token costs is not taken from another one's.
    contestants: as `replay_contestants` has them. info: of the verifier before its first request. apart: none of the cells' prompts."""
    plain, policies = contestants[0], [each.wishes.pacing for each in contestants]

    def begin(drafter: str) -> MicroBenchmark:
        return MicroBenchmark(plain, info, drafter, apart, temperature, policies)

    return MicroOfCells(begin, replayed_text(plain, apart, temperature))


def measure_replay(
    deployment: Deployment,
    contestants: Sequence[Stack],
    run: ReplayRun,
    recorder: Recorder,
    micro: MicroOfCells,
    on_answers: Callable[[], None],
) -> dict[Cell, Circumstances]:
    """Record every acceptance in turn; returns what each cell was like.

    The deployment's drafter replays afterwards: it is of no further use.
    """
    plain, drafter = contestants[0], deployment.drafter
    assert drafter is not None, "there is a draft model"
    answers = [plain.answer(prompt, run.max_tokens, run.temperature, seed).tokens for seed, prompt in enumerate(run.prompts)]
    texts = deployment.folder / "replayed.json"
    known = [[*prompt.token_ids, *answer] for prompt, answer in zip(run.prompts, answers, strict=True)]
    texts.write_text(json.dumps({"texts": [*known, list(micro.text)]}))
    cells: dict[Cell, Circumstances] = {}
    for acceptance in ACCEPTANCES:
        deployment.restart("drafter", extra=replay_arguments(str(texts), acceptance, run.step_us))
        await_pair(deployment)
        cell = replay_cell(acceptance, run.temperature)
        samples = micro.begin(drafter)
        record(cell, contestants, run, recorder, samples, on_answers)
        cells[cell] = circumstances(samples, acceptance, REPLAY_SEED)
    return cells


def record(
    cell: Cell, contestants: Sequence[Stack], run: ReplayRun, recorder: Recorder, micro: MicroBenchmark, on_answers: Callable[[], None]
) -> None:
    """Every contestant in one cell with replayed drafts, in balanced orders, with samples of the micro-benchmark among their turns."""
    for contestant in contestants:  # warm, and let policies learn this cell
        contestant.answer(run.prompts[0], run.max_tokens, run.temperature, 0)
    every = math.ceil(len(contestants) / MAX_SAMPLES_A_REPETITION)
    for place, turn in enumerate(turns([cell], len(contestants), run.repeats)):
        if place % every == 0:
            micro.sample(turn.repetition)
        contestant = contestants[turn.contestant]
        for seed, prompt in enumerate(run.prompts):
            recorder.add(cell, contestant.name, turn.repetition, contestant.answer(prompt, run.max_tokens, run.temperature, seed))
        on_answers()


def replay_arguments(texts: str, acceptance: float, step_us: int) -> tuple[str, ...]:
    """A drafter's command line for replayed drafts. texts: a file of prompts with their answers."""
    return (
        *("--source", "replay", "--replay-texts", texts, "--replay-acceptance", str(acceptance)),
        *("--replay-seed", str(REPLAY_SEED), "--replay-step-us", str(step_us)),
    )
