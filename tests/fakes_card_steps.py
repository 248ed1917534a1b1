"""One random schedule through two engines of one model: plain torch operations, and the card's own way. For an interpreted process.

Chunks, chains, trees over trees, several sequences, rows nobody wants, every kind of sampling; no choice depends on a pick, so that both
engines get the same plans. Names a broken twin by what it breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

import fakes_models
from fakes_card import HostInRecording, RecordingGraphs
from outrider.engine import card_buckets, card_penalties, card_steps
from outrider.engine.attention import Scoring
from outrider.engine.card_attention import CardAttention
from outrider.engine.card_filling import fill_rows
from outrider.engine.card_mover import CardMover
from outrider.engine.card_probe import probed_way
from outrider.engine.card_steps import CardSteps
from outrider.engine.card_way import CardWay
from outrider.engine.config import DType, EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.engine.model_files import find_model
from outrider.engine.own_rows import ComputedRows
from outrider.engine.paged_cache import PagedCache
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.row_picker import Decided
from outrider.engine.step_batch import StepBatch
from outrider.engine.torch_settings import TORCH_DTYPES
from outrider.engine.transformers_engine import load_model, own_logits
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceResult, SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray
from outrider_kernels.compact import compact
from outrider_kernels.thin_pick import LEFT

MAX_NODES, MAX_LEN = 9, 90
BUCKET_ROWS, BUCKET_SEQUENCES = 8, 2
NUM_IDS = fakes_models.VOCAB - 3  # the last columns of the logits are padding
MISSING_IDS = (5, 17)
SAMPLINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=1.0, top_k=12, min_p=0.01, presence_penalty=-2.0, frequency_penalty=-2.0),
    SamplingParams(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, logit_bias=((3, 2.0), (40, -1.5))),
)
NUM_PROMPT = 10


@dataclass
class Report:
    """What came of a schedule. largest_error: of logits. num_left: picks that the fused pick left. num_penalised: picks under penalties
    that it made. different_picks, different_results: against today's pick of the very same logits. num_played, num_own: steps that were
    played, or ran with their own sizes. num_moved: rows of the cache. played: rows and sequences of buckets."""

    largest_error: float = 0.0
    num_picks: int = 0
    num_left: int = 0
    num_penalised: int = 0
    different_picks: int = 0
    different_results: int = 0
    num_played: int = 0
    num_own: int = 0
    num_moved: int = 0
    num_recordings: int = 0
    played: set[tuple[int, int]] = field(default_factory=set)


class FailingGraphs(RecordingGraphs):
    """Records some, and then fails as a card would that has no memory left."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See GraphCapture."""
        if len(self.recorded) == 2:
            raise RuntimeError("out of memory")
        return super().capture(work)


WAYS: dict[str, CardWay] = {
    "recorded": CardWay(RecordingGraphs),
    "launched": CardWay(None),
    "failing": CardWay(FailingGraphs),
}


def compare(
    folder: str,
    num_steps: int,
    seed: int,
    max_context: int = 100,
    graphs: str = "recorded",
    broken: str = "",
    dtype: str = "float32",
    kind: str = "lean",
) -> dict[str, Any]:
    """Run the schedule through both engines, or through a broken twin of the second. graphs: one of WAYS. kind: an EngineKind."""
    torch.set_num_threads(1)
    card_buckets.MAX_BUCKET_ROWS, card_buckets.MAX_BUCKET_SEQUENCES = BUCKET_ROWS, BUCKET_SEQUENCES
    config = EngineConfig(
        folder, EngineKind(kind), DType(dtype), num_blocks=30, block_len=16, max_rows=64, array_rows=0, num_threads=1, probe=False,
        thin_products=False, max_context=max_context,
    )  # fmt: skip
    loaded: Any = load_engine(config)
    identity = replace(loaded.identity, vocab_size=NUM_IDS)
    plain = PagedEngine(loaded._forward, identity, config, TORCH_DTYPES[config.dtype], MISSING_IDS)
    restore = TWINS[broken]() if broken else lambda: None
    try:
        card = CardEngine(loaded._forward, identity, config, TORCH_DTYPES[config.dtype], MISSING_IDS, None, WAYS[graphs])
        return asdict(_run(plain, card, num_steps, seed))
    finally:
        restore()


class CardEngine(PagedEngine):
    """Notes what each step did, and asks today's pick about the same logits."""

    def __init__(self, *arguments: Any) -> None:
        self.report = Report()
        super().__init__(*arguments)
        assert self._card is not None
        self.report.num_recordings = self._card.num_recordings
        self.newest_logits = torch.empty(0)

    def _forwarded(self, batch: StepBatch) -> tuple[Tensor, Decided | None]:
        assert self._card is not None
        bucket = self._card._buckets.bucket_for(batch) if self._card.num_recordings else None
        if bucket is None:
            self.report.num_own += 1
        else:
            self.report.num_played += 1
            self.report.played.add((bucket.rows, bucket.sequences))
        return super()._forwarded(batch)

    def _picked(self, batch: StepBatch, logits: Tensor, decided: Decided | None) -> tuple[SequenceResult, ...]:
        assert decided is not None
        report = self.report
        self.newest_logits = logits.clone()
        report.num_picks += len(decided.picks)
        report.num_left += int(np.count_nonzero(decided.picks == LEFT))
        begin = 0
        for segment in batch.segments:
            end = begin + segment.num_wanted
            if segment.state.spec.sampling.has_penalties:
                report.num_penalised += int(np.count_nonzero(decided.picks[begin:end] != LEFT))
            begin = end
        results = super()._picked(batch, logits, decided)
        for own, today in zip(results, self._picker.results(batch, logits), strict=True):
            report.different_picks += int(np.count_nonzero(own.picks != today.picks))
            report.different_results += not _same(own, today)
        return results


def _same(own: SequenceResult, today: SequenceResult) -> bool:
    """Everything but the picks, which are counted apart."""
    if (own.choices is None) != (today.choices is None) or own.verdict != today.verdict:
        return False
    if (own.pick_probs is None) != (today.pick_probs is None):
        return False
    if (
        own.pick_probs is not None
        and today.pick_probs is not None
        and not np.allclose(own.pick_probs, today.pick_probs, rtol=1e-4, atol=1e-7)
    ):
        return False
    return own.logprobs is None or (today.logprobs is not None and np.array_equal(own.logprobs.top_ids, today.logprobs.top_ids))


class PlainLogits:
    """The logits of an engine's newest step."""

    def __init__(self, engine: PagedEngine) -> None:
        self.newest = torch.empty(0)
        original = engine._picked

        def spy(batch: StepBatch, logits: Tensor, decided: Decided | None) -> tuple[SequenceResult, ...]:
            self.newest = logits.clone()
            return original(batch, logits, decided)

        engine._picked = spy  # type: ignore[method-assign]


def _run(plain: PagedEngine, card: CardEngine, num_steps: int, seed: int) -> Report:
    report, watched = card.report, PlainLogits(plain)
    moved = card._cache._move

    def count(source: list[int], destination: list[int]) -> int:
        num_rows = moved(source, destination)
        report.num_moved += num_rows
        return num_rows

    card._cache.move_with(count)
    steps = [_Schedule(engine, seed) for engine in (plain, card)]
    for _ in range(num_steps):
        for step in steps:
            step.run()
        left, right = watched.newest[:, :NUM_IDS], card.newest_logits
        if len(left):
            left = left.index_fill(1, torch.tensor(MISSING_IDS), 0.0)
            error = (left - right.index_fill(1, torch.tensor(MISSING_IDS), 0.0)).abs().max()
            report.largest_error = max(report.largest_error, float(error.nan_to_num(torch.inf)))
    return report


class _Schedule:
    """The plans of one engine, from a seed alone."""

    def __init__(self, engine: PagedEngine, seed: int) -> None:
        self._engine = engine
        self._chance = np.random.default_rng(seed)
        self._live = dict.fromkeys(range(len(SAMPLINGS)), 0)
        for index, num_blocks in enumerate((1, 2, 1)):  # holes, so that a sequence lies in several runs
            engine.open(100 + index, SequenceSpec(SAMPLINGS[0], NoiseAddress(0), 0, 16 * num_blocks, 0))
        engine.close(101)
        for sequence, sampling in enumerate(SAMPLINGS):
            engine.open(sequence, SequenceSpec(sampling, NoiseAddress(sequence), NUM_PROMPT, MAX_LEN, MAX_NODES))

    def run(self) -> None:
        """One step."""
        chance = self._chance
        rows = [self._rows(sequence) for sequence in chance.permutation(len(SAMPLINGS))[: int(chance.choice([1, 1, 2, 3]))].tolist()]
        self._engine.step(StepPlan(tuple(rows)))

    def _rows(self, sequence: int) -> SequenceRows:
        engine, chance = self._engine, self._chance
        if self._live[sequence] and (self._live[sequence] > MAX_NODES - 3 or chance.random() < 0.6):
            tree = engine._sequences.state(sequence).tree
            path = tuple(tree.path_to(int(chance.integers(-1, self._live[sequence]))))
            self._live[sequence] = len(engine.keep(sequence, path, subtree=bool(chance.random() < 0.4) and bool(path)))
        live, num_committed = self._live[sequence], 0
        if not live:
            if engine.cached_len(sequence) > MAX_LEN - 40:
                engine.truncate(sequence, int(chance.integers(1, 20)))
            num_committed = int(chance.choice([1, 1, 1, 3, 14 if engine.cached_len(sequence) else 20]))
        num_nodes = int(chance.integers(0 if num_committed else 1, min(4, MAX_NODES - live) + 1)) if num_committed < 5 else 0
        parents = np.asarray([int(chance.integers(-1, live + index)) for index in range(num_nodes)], np.int32)
        self._live[sequence] += num_nodes
        return self._asking(sequence, num_committed, parents)

    def _asking(self, sequence: int, num_committed: int, parents: IntArray) -> SequenceRows:
        chance = self._chance
        tokens = chance.choice(np.setdiff1d(np.arange(NUM_IDS), MISSING_IDS), num_committed + len(parents)).astype(np.int32)
        kind = float(chance.random())
        judged = (
            bool(num_committed)
            and kind > 0.8
            and len(set(zip(parents.tolist(), tokens[num_committed:].tolist(), strict=True))) == len(parents)
        )
        return SequenceRows(
            sequence,
            tokens[:num_committed],
            tokens[num_committed:],
            parents,
            wanted=kind > 0.1,
            num_choices=2 if 0.1 < kind < 0.2 else 0,
            top_logprobs=3 if 0.2 < kind < 0.3 else None,
            pick_probs=kind > 0.5,
            acceptance="coupled" if judged else "",
        )


def _reads_python_when_played() -> Callable[[], None]:
    """Attention that writes where the step of the moment says, from the host: played again, it writes where the recording's step did."""
    attend, run = CardAttention.attend, CardSteps.run
    slots: list[Tensor] = []

    def run_with_slots(self: CardSteps, batch: StepBatch, wanted: Any) -> Any:
        slots[:] = [torch.from_numpy(batch.slots)]
        return run(self, batch, wanted)

    def attend_there(self: Any, layer: int, query: Tensor, keys_values: Tensor, *rest: Any) -> Tensor:
        if slots:
            self._cache.write(layer, 0, 0, slots[0], keys_values[:, :, : len(slots[0])])
        return attend(self, layer, query, keys_values, *rest)

    def write(self: PagedCache, layer: int, begin: int, end: int, index: Tensor | None, keys_values: Tensor) -> None:
        if index is not None and not any(index is one for one in slots):
            return  # the inputs' own slots are not used
        original(self, layer, begin, end, index, keys_values)

    original = PagedCache.write
    return _replaced((CardSteps, "run", run_with_slots), (CardAttention, "attend", attend_there), (PagedCache, "write", write))


def _changed_filling(change: Callable[[Any, Any, StepBatch], None]) -> Callable[[], None]:
    """Inputs that are filled in and then spoilt."""

    def fill(inputs: Any, shape: Any, batch: StepBatch, *rest: Any) -> None:
        fill_rows(inputs, shape, batch, *rest)
        change(inputs, shape, batch)

    return _replaced((card_steps, "fill_rows", fill))


def _replaced(*changes: tuple[Any, str, Any]) -> Callable[[], None]:
    """Set attributes; what is returned sets them back."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)

    def restore() -> None:
        for owner, name, value in before:
            setattr(owner, name, value)

    return restore


def _padding_in_a_sequence(inputs: Any, shape: Any, batch: StepBatch) -> None:
    if batch.segments:
        segment = batch.segments[0]
        inputs.slots[batch.num_rows :] = segment.state.table.slots[max(0, segment.base - 2)]


def _padding_behind_everything(inputs: Any, shape: Any, batch: StepBatch) -> None:
    if batch.segments:
        inputs.wanted[:] = shape.rows - 1


def _blind_nodes(inputs: Any, shape: Any, batch: StepBatch) -> None:
    inputs.row_ancestry[:] = 0


def _first_blocks(inputs: Any, shape: Any, batch: StepBatch) -> None:
    inputs.block_table[1:] = inputs.block_table[1:, :1]


def _no_sinks() -> Callable[[], None]:
    attend = CardAttention.attend

    def attend_without(self: CardAttention, layer: int, query: Tensor, keys_values: Tensor, scoring: Scoring) -> Tensor:
        return attend(self, layer, query, keys_values, replace(scoring, sinks=None))

    return _replaced((CardAttention, "attend", attend_without))


def _nothing_touched(inputs: Any, batch: StepBatch) -> int:
    inputs.touched_lens[:] = 0
    return 0


def _no_path(before: Any, path: IntArray) -> Any:
    return before


TWINS: dict[str, Callable[[], Callable[[], None]]] = {
    "penalties forget the path": lambda: _replaced((card_penalties, "_with_path", _no_path)),
    "penalties are never sent": lambda: _replaced((card_steps, "fill_touched", _nothing_touched)),
    "reads Python when played": _reads_python_when_played,
    "padding writes into a sequence": lambda: _changed_filling(_padding_in_a_sequence),
    "padding is picked at": lambda: _changed_filling(_padding_behind_everything),
    "no head has a sink": _no_sinks,
    "nodes see no node": lambda: _changed_filling(_blind_nodes),
    "one block a sequence": lambda: _changed_filling(_first_blocks),
}


def records_a_question() -> str:
    """What comes of work that asks the card for a number."""
    numbers = torch.ones(3)
    try:
        RecordingGraphs().capture(lambda: print(float(numbers.sum())))
    except HostInRecording as error:
        return type(error).__name__
    return "nothing"


def moved_both_ways(num_rows: int) -> bool:
    """Whether the card's mover leaves what torch's leaves, for rows that move one slot on, over one another."""
    pools = [torch.randn(2, 2, num_rows + 8, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
    expected = [pool.clone() for pool in pools]
    source, destination = list(range(num_rows)), list(range(1, num_rows + 1))
    moved = CardMover(pools)(source, destination)
    compact(expected, source, destination)
    return moved == num_rows and all(torch.equal(one, other) for one, other in zip(pools, expected, strict=True))


def probed(folder: str, graphs: str, broken: str = "") -> str:
    """Which of WAYS the load-time probe leaves of one, or "plain"; broken: TWINS."""
    torch.set_num_threads(1)
    config = EngineConfig(folder, EngineKind.LEAN, num_threads=1, thin_products=False, array_rows=0, probe=False)
    forward = cast(PagedEngine, load_engine(config))._forward
    own = ComputedRows(own_logits(load_model(find_model(folder, ""), config)))
    restore = TWINS[broken]() if broken else lambda: None
    try:
        left = probed_way(WAYS[graphs], forward, own, torch.float32, "cpu")
    finally:
        restore()
    return "plain" if left is None else next(name for name, way in WAYS.items() if way == left)
