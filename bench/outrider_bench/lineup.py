"""Who takes part in a peers run: transformers and OpenVINO GenAI, each plain, with the draft model and with prompt lookup, and our stack.

Every contestant comes with its bill (cost.Metered). On a card all models are there, and OpenVINO stays away: it has no way to compute on
one. Must not know cells, prompts or results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from outrider_bench.baseline import ASSISTANTS, LOOKUPS, GenerateSettings, generate_candidates
from outrider_bench.contestants import DRAFTLESS, Contestant, Stack, Transformers
from outrider_bench.cost import Metered, cores_of, cpu_s
from outrider_bench.openvino_folder import converted
from outrider_bench.openvino_peer import (
    OpenVinoPeer,
    OpenVinoSettings,
    OpenVinoWorker,
    draft_candidates,
    lookup_candidates,
    plain_candidates,
)
from outrider_bench.results import ASSISTED, GENERATE, PLAIN
from outrider_bench.stage import Stage

LOOKUP = "transformers lookup"
OPENVINO = "openvino plain"
OPENVINO_DRAFT = "openvino draft"
OPENVINO_LOOKUP = "openvino lookup"
WITHOUT_OPENVINO = "OpenVINO GenAI is left out: it does not compute on CUDA cards, and on the processor it would be compared with a card"
CARD_THREADS = 1  # of transformers beside a card: one thread prepares its steps
POLICIES = ("serial", "lookup", "adaptive")
# Label in the RESULT line -> contestant.
OTHERS = {
    "generate": GENERATE,
    "assisted": ASSISTED,
    "lookup": LOOKUP,
    "openvino": OPENVINO,
    "openvino_draft": OPENVINO_DRAFT,
    "openvino_lookup": OPENVINO_LOOKUP,
    "own_plain": PLAIN,
}


@dataclass(frozen=True, slots=True)
class OpenVinoWorkers:
    """A process for each way OpenVINO decodes, so that their thread pools do not meet."""

    plain: OpenVinoWorker
    draft: OpenVinoWorker
    lookup: OpenVinoWorker


def start_openvino(target: str, draft: str, dtype: str, num_cores: int, stack: ExitStack) -> OpenVinoWorkers:
    """Convert both models where that was not done yet, and start the workers; the stack ends them."""
    large, small = converted(target), converted(draft)
    return OpenVinoWorkers(
        plain=stack.enter_context(OpenVinoWorker(large, None, dtype, num_cores)),
        draft=stack.enter_context(OpenVinoWorker(large, small, dtype, num_cores)),
        lookup=stack.enter_context(OpenVinoWorker(large, None, dtype, num_cores, lookup=True)),
    )


def thread_counts(num_cores: int) -> tuple[int, ...]:
    """Every core, and half of them: a small model may be faster on fewer."""
    return tuple(dict.fromkeys((num_cores, max(1, num_cores // 2))))


def families(stage: Stage, openvino: OpenVinoWorkers | None, quick: bool) -> list[list[Contestant]]:
    """Candidates by kind, to choose one of each from; the quick run takes each kind's first. openvino: None leaves it out."""
    peers = [*_transformers(stage), *(() if openvino is None else _openvino(stage, openvino))]
    policies = [policy for policy in POLICIES if policy in stage.policies]
    ours = [[*stage.plain(quick)], *([*stage.candidates(policy, quick)] for policy in policies)]
    return [*(family[:1] if quick else family for family in peers), *([_billed(stage, each) for each in family] for family in ours)]


def _transformers(stage: Stage) -> Iterator[list[Contestant]]:
    kinds: dict[str, Sequence[GenerateSettings]] = {
        GENERATE: generate_candidates(stage.device),
        ASSISTED: [GenerateSettings(assistant=each) for each in ASSISTANTS],
        LOOKUP: [GenerateSettings(lookup=each) for each in LOOKUPS],
    }
    counts = (CARD_THREADS,) if stage.device == "cuda" else thread_counts(stage.num_cores)
    for name, candidates in kinds.items():
        yield [
            Metered(Transformers(name, baseline, replace(each, num_threads=threads), threads), (baseline.pid,), threads, cpu_s)
            for baseline in stage.baselines
            for threads in counts
            for each in candidates
        ]


def _openvino(stage: Stage, workers: OpenVinoWorkers) -> Iterator[list[Contestant]]:
    kinds = {
        OPENVINO: (workers.plain, plain_candidates),
        OPENVINO_DRAFT: (workers.draft, draft_candidates),
        OPENVINO_LOOKUP: (workers.lookup, lookup_candidates),
    }
    for name, (worker, candidates_of) in kinds.items():
        chosen = [each for threads in thread_counts(stage.num_cores) for each in candidates_of(threads)]
        yield [_billed_openvino(OpenVinoPeer(name, worker, each), worker, each) for each in chosen]


def _billed_openvino(peer: OpenVinoPeer, worker: OpenVinoWorker, settings: OpenVinoSettings) -> Contestant:
    return Metered(peer, (worker.pid,), settings.num_threads, cpu_s)


def _billed(stage: Stage, ours: Stack) -> Contestant:
    served = stage.serving(ours.gateway)
    pids = tuple(process.pid for process in served.deployment.processes.values())
    num_cores = cores_of(served.threads, stage.num_cores, drafting=ours.wishes.pacing not in DRAFTLESS)
    return Metered(ours, pids, num_cores, cpu_s)
