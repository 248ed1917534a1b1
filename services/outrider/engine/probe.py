"""The load-time check that a model may be served: ragged batches and trees must give what one-by-one decoding gives.

Three questions. Does a row's output depend on the position of its neighbours (RoPE variants that choose frequencies from the longest
row)? Do a chunked prefill, a decode row and a tree in one flat batch give the logits of the model's own forward over each path alone,
in every way that the engine will run them? In `invariant`: do the bits stay when rows are scheduled otherwise? A model that fails is
refused with the reason.
Must not know sequences beyond its own two, nor sampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from outrider.engine.attention import FastAttention, InvariantAttention, Scoring
from outrider.engine.block_table import BlockTable
from outrider.engine.card_buckets import StepSizes
from outrider.engine.card_way import NUM_SPARE_BLOCKS, CardWay
from outrider.engine.contract import EngineLimits
from outrider.engine.decoder_forward import ArrayForward, DecoderForward
from outrider.engine.live_tree import LiveTree
from outrider.engine.own_rows import OwnRows
from outrider.engine.paged_cache import PagedCache
from outrider.engine.probe_judge import ProbedRows, ProbeJudge
from outrider.engine.sequence_state import SequenceState
from outrider.engine.step_batch import StepBatch, build_batch
from outrider.errors import ModelRefused
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray
from outrider_kernels.invariant_attention import InvariantShape

if TYPE_CHECKING:
    from outrider.engine.card_steps import CardSteps

_BLOCK_LEN = 16
_NUM_BLOCKS = 6
_PROMPT_LEN = 21
LONGEST_PATH = 24  # positions of the deepest node: three levels below the prompt
_PROBE_ROWS = 32  # all steps of the probe fit a bucket of a card
_PROBE_CONTEXT = 64
_TREE_PARENTS = (-1, -1, 0, 0, 2, 1)
_NEIGHBOUR_TOLERANCE = {torch.float32: 2e-3, torch.float16: 5e-2, torch.bfloat16: 1.5e-1}
# the later, the more another frequency turns a row; but texts of any of these are short for a model that is served
_NEAR_POSITIONS = (0, 1, 3, 7, 15, 31, 63, 127)
_NO_NODES: IntArray = np.empty(0, np.int32)


class _Echo:
    """A StepAttention that returns the rotated query: rows see only themselves, positions included."""

    def attend(self, layer: int, query: Tensor, keys_values: Tensor, scoring: Scoring) -> Tensor:
        """Returns the query plus the row's own key, [rows, heads, dim]."""
        keys = keys_values[0].transpose(0, 1)
        return query + keys.repeat_interleave(query.shape[1] // keys.shape[1], dim=1)


def probe_positions(forward: DecoderForward, device: str, max_context: int) -> None:
    """Raise ModelRefused when a neighbour at the end of this context changes a row: such a model cannot share a batch."""
    far_position = max(1, max_context - 1)
    near = torch.tensor([position for position in _NEAR_POSITIONS if position < max(1, far_position // 8)], device=device)
    tokens = torch.arange(len(near) + 1, device=device) % forward.shape.num_logits
    with torch.inference_mode():
        try:  # as many rows both times, so that nothing but the neighbour's position is another
            alone, beside = (
                forward.hidden(tokens, torch.cat([near, near.new_tensor([position])]), _Echo())[:-1] for position in (0, far_position)
            )
        except (IndexError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "out of bounds" not in str(error):  # as `gather` says it
                raise
            return  # a table of positions: rows cannot influence one another through it
    change = float((beside - alone).abs().max() / alone.abs().max().clamp_min(1e-6))
    if not change <= _NEIGHBOUR_TOLERANCE[alone.dtype]:
        raise ModelRefused(
            f"a neighbour at position {far_position} changes a row's output by {change:.2g} (RoPE frequencies chosen by the longest row, "
            "as in dynamic or longrope scaling); such a model cannot be batched exactly; a shorter --max-context may do"
        )


@dataclass(slots=True)
class _Bench:
    """Two sequences over a small cache of their own."""

    forward: DecoderForward
    cache: PagedCache
    sequences: dict[int, SequenceState]
    limits: EngineLimits
    invariant: InvariantShape | None
    arrays: ArrayForward | None = None
    card: CardSteps | None = None

    @property
    def is_invariant(self) -> bool:
        """Whether the engine would take this way in `invariant` numerics."""
        return self.arrays is not None and self.arrays.is_invariant

    def step(self, *rows: SequenceRows) -> Tensor:
        """float32 [wanted rows, num_logits]."""
        batch = build_batch(StepPlan(rows), self.sequences, self.limits, self.forward.shape.num_logits, 8)
        if self.arrays is not None:
            logits = torch.from_numpy(self.arrays.logits(batch, batch.wanted())).clone()
            batch.apply()
            return logits
        if self.card is not None:
            logits = self.card.run(batch, batch.wanted()).logits.clone()
            batch.apply()
            return logits
        device = self.cache.pools[0].device
        tokens, positions = torch.from_numpy(batch.tokens).to(device), torch.from_numpy(batch.positions).to(device)
        if self.invariant is None:
            hidden = self.forward.hidden(tokens, positions, FastAttention(self.cache, batch))
        else:
            hidden = self._invariant_hidden(batch, tokens, positions)
        batch.apply()
        hidden = hidden.index_select(0, torch.from_numpy(batch.wanted()).to(device))
        if self.invariant is None:
            return self.forward.logits(hidden)
        return self.forward.logits(_pad(hidden, self.invariant.num_rows))[: len(hidden)]

    def _invariant_hidden(self, batch: StepBatch, tokens: Tensor, positions: Tensor) -> Tensor:
        assert self.invariant is not None
        size = self.invariant.num_rows
        parts = []
        for begin in range(0, batch.num_rows, size):
            end = min(begin + size, batch.num_rows)
            attention = InvariantAttention(self.cache, batch, begin, end, self.invariant)
            parts.append(self.forward.hidden(_pad(tokens[begin:end], size), _pad(positions[begin:end], size), attention)[: end - begin])
        return torch.cat(parts)


def probe_batches(
    forward: DecoderForward,
    own_rows: OwnRows,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    device: str,
    num_ids: int,
    invariant: InvariantShape | None,
) -> None:
    """Raise ModelRefused when ragged rows or tree rows differ from the model's own forward by more than numbers of `dtype` may, or
    invariant bits from themselves."""
    if forward.shape.max_positions < LONGEST_PATH:
        raise ModelRefused(
            f"max_position_embeddings is {forward.shape.max_positions}; the load-time check of a model takes a context of {LONGEST_PATH}"
        )
    first, second, nodes = _probe_tokens(num_ids)
    with torch.inference_mode():
        bench = _bench(forward, cache_dtype, device, None, arrays=True)
        # a way whose bits do not depend on the row count takes all rows, and leaves torch none
        ways = [] if bench.is_invariant else [_bench(forward, cache_dtype, device, invariant)]
        ways += [bench] if bench.arrays is not None and (invariant is None or bench.is_invariant) else []
        judge = ProbeJudge(own_rows, dtype)
        for way in ways:
            got = _schedule(way, first, second, nodes, cut=5)
            judge.check(got)
        if invariant is not None:
            again = _schedule(_bench(forward, cache_dtype, device, invariant, arrays=bench.is_invariant), first, second, nodes, cut=18)
            changed = [name for (name, _, left), (_, _, right) in zip(got, again, strict=True) if not torch.equal(left, right)]
            if changed:
                raise ModelRefused(f"numerics=invariant fails on this machine: bits of the {changed[0]} depend on the schedule; use fast")


def probe_card(way: CardWay, forward: DecoderForward, own_rows: OwnRows, dtype: torch.dtype, device: str) -> None:
    """Raise ModelRefused when steps in the card's own way, played where they are recorded, differ from the model's own forward."""
    first, second, nodes = _probe_tokens(forward.shape.num_logits)
    with torch.inference_mode():
        bench = _bench(forward, dtype, device, None, card=way)
        if way.new_graphs is not None and (bench.card is None or not bench.card.num_recordings):
            raise ModelRefused("the card's graphs cannot be recorded")
        ProbeJudge(own_rows, dtype).check(_schedule(bench, first, second, nodes, cut=5))


def _probe_tokens(num_ids: int) -> tuple[IntArray, IntArray, IntArray]:
    """Two prompts and a tree's tokens."""
    generator = np.random.default_rng(7)
    first, second = (generator.integers(0, num_ids, length).astype(np.int32) for length in (_PROMPT_LEN, 3))
    return first, second, generator.integers(0, num_ids, len(_TREE_PARENTS)).astype(np.int32)


def _bench(
    forward: DecoderForward,
    dtype: torch.dtype,
    device: str,
    invariant: InvariantShape | None,
    *,
    arrays: bool = False,
    card: CardWay | None = None,
) -> _Bench:
    cache = PagedCache(forward.shape.layers, (_NUM_BLOCKS + NUM_SPARE_BLOCKS) * _BLOCK_LEN, dtype, device)
    limits = EngineLimits(256, _BLOCK_LEN, _NUM_BLOCKS, forward.shape.max_positions)
    spec = SequenceSpec(SamplingParams(), NoiseAddress(0), 0, 40, 8)
    tables = (BlockTable([4, 5, 0], _BLOCK_LEN), BlockTable([1, 2, 3], _BLOCK_LEN))
    sequences = {index: SequenceState(index, spec, table, LiveTree(8)) for index, table in enumerate(tables)}
    bench = _Bench(forward, cache, sequences, limits, invariant, forward.array_forward(cache) if arrays else None)
    if card is not None:
        sizes = StepSizes(_PROBE_ROWS, _PROBE_CONTEXT, _BLOCK_LEN, _NUM_BLOCKS, max_sequences=len(tables))
        bench.card = card.steps(forward, cache, sizes, forward.shape.num_logits, ())
    return bench


def _schedule(bench: _Bench, first: IntArray, second: IntArray, nodes: IntArray, cut: int) -> ProbedRows:
    """Prefill in two parts, the second together with a tree, beside a neighbour. (name, path tokens, logits) of each result row."""
    parents = np.asarray(_TREE_PARENTS, np.int32)
    beside = bench.step(SequenceRows(0, first[:cut], _NO_NODES, _NO_NODES, wanted=False), SequenceRows(1, second, _NO_NODES, _NO_NODES))
    after = bench.step(SequenceRows(1, first[:1], nodes[:2], parents[:2]), SequenceRows(0, first[cut:], nodes, parents))
    results = [("short prompt", second.tolist(), beside[0]), ("decode row", [*second.tolist(), int(first[0])], after[0])]
    results.append(("chunked prompt", first.tolist(), after[3]))
    tree = bench.sequences[0].tree
    for node in range(len(nodes)):
        path = [int(nodes[index]) for index in tree.path_to(node)]
        results.append((f"tree row {node}", [*first.tolist(), *path], after[4 + node]))
    return results


def _pad(rows: Tensor, size: int) -> Tensor:
    full = rows.new_zeros(size, *rows.shape[1:])
    full[: len(rows)] = rows
    return full
