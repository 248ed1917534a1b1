"""The Engine over any decoder forward: opens and closes sequences, lays steps flat, keeps the cache's promises, picks inside.

Knows the contract of engine/contract.py; numerics decide whether rows go through the model at once (`fast`) or in chunks of one fixed
row count (`invariant`, unless the model has a way whose bits do not depend on the count). One thread loads and steps it. Must not know
which model runs, nor frames, sessions or drafts.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from outrider.engine.attention import FastAttention, InvariantAttention
from outrider.engine.card_buckets import StepSizes
from outrider.engine.card_way import NUM_SPARE_BLOCKS, CardWay
from outrider.engine.config import EngineConfig
from outrider.engine.contract import EngineLimits
from outrider.engine.decoder_forward import ArrayForward, DecoderForward, RowChain
from outrider.engine.lone_step import LoneStep
from outrider.engine.paged_cache import LayerShape, PagedCache, bytes_per_slot
from outrider.engine.pick_follower import PickFollower
from outrider.engine.row_picker import Decided, RowPicker
from outrider.engine.sequence_table import SequenceTable
from outrider.engine.step_batch import StepBatch, build_batch
from outrider.engine.step_threads import FixedThreads, StepThreads
from outrider.engine.torch_settings import await_device
from outrider.types.identity import ModelIdentity, Numerics
from outrider.types.step import SequenceResult, SequenceSpec, StepPlan, StepResult
from outrider.types.tree import MAX_TREE_NODES, IntArray
from outrider_kernels.invariant_attention import InvariantShape
from outrider_kernels.thin_chain import ChainIds

_LOG = logging.getLogger(__name__)


class PagedEngine:
    """Engine over a DecoderForward. See engine/contract.py for every promise. chain: how rows of one sequence go, where that is another way
    than all others."""

    def __init__(
        self,
        forward: DecoderForward,
        identity: ModelIdentity,
        config: EngineConfig,
        dtype: torch.dtype,
        missing_ids: tuple[int, ...] = (),
        threads: StepThreads | None = None,
        card: CardWay | None = None,
    ) -> None:
        self._threads = threads or FixedThreads()
        self._num_lent = 0  # threads, as of the newest step
        self._forward = forward
        self._device = config.device
        sizes = config.invariant
        self._invariant = identity.numerics is Numerics.INVARIANT
        self._shape = InvariantShape(sizes.rows, sizes.block_len, sizes.max_tree_depth, sizes.group_blocks)
        shape = forward.shape
        num_blocks = config.num_blocks or blocks_within(config, shape.layers, dtype)
        self._identity = identity = _within_cache(identity, num_blocks * config.block_len, config.spare_len)
        num_spare = 0 if card is None else NUM_SPARE_BLOCKS
        self._cache = PagedCache(shape.layers, (num_blocks + num_spare) * config.block_len, dtype, config.device)
        arrays = forward.array_forward(self._cache) if config.array_rows else None
        self._arrays = arrays if arrays is not None and (arrays.is_invariant or not self._invariant) else None
        # a way whose bits do not depend on the row count takes all rows: what another computes has other bits
        self._array_rows = config.max_rows if arrays is not None and arrays.is_invariant else config.array_rows
        self._max_tree_depth = sizes.max_tree_depth if self._invariant and self._arrays is None else MAX_TREE_NODES
        most_lent = self._threads.most_lent
        self._limits = EngineLimits(config.max_rows, config.block_len, num_blocks, identity.max_context, config.prefix_cache, most_lent)
        self._sequences = SequenceTable(identity, self._limits)
        self._missing_ids = missing_ids
        self._picker = RowPicker(identity.vocab_size, config.device, missing_ids, None if self._arrays is None else self._arrays.picker)
        if config.shortlist and self._arrays is not None:
            self._arrays.shorten(config.shortlist, identity.eos_token_ids)
        self.chain, self._follower, self._lone = self._chained(self._arrays)
        self._card = None if card is None else card.steps(forward, self._cache, self._card_sizes(), identity.vocab_size, missing_ids)

    @property
    def identity(self) -> ModelIdentity:
        """Who the model is, for handshakes."""
        return self._identity

    @property
    def limits(self) -> EngineLimits:
        """Sizes fixed at load time."""
        return self._limits

    @property
    def max_tree_depth(self) -> int:
        """Levels a tree may have; deeper plans raise InvalidRequest."""
        return self._max_tree_depth

    @property
    def num_free_blocks(self) -> int:
        """KV blocks held by no open sequence; they may still hold prefixes."""
        return self._sequences.num_free_blocks

    def open(self, sequence: int, spec: SequenceSpec, prefix: IntArray | None = None) -> None:
        """Reserve blocks for max_len + max_nodes; what is cached of `prefix` is taken over.

        Raises DoesNotFit, Overloaded, AlreadyExists or InvalidRequest, holding nothing.
        """
        self._sequences.open(sequence, spec, prefix)

    def reserve(self, sequence: int, length: int) -> None:
        """Hold KV blocks for so many committed tokens, at most its max_len. Raises UnknownSession, or Overloaded, changing nothing."""
        self._settle()
        self._sequences.reserve(sequence, length)

    def match_prefix(self, sequence: int, prefix: IntArray) -> int:
        """Take over the KV of whole blocks of `prefix` that is there already; returns cached_len, less than len(tokens)."""
        return self._sequences.match_prefix(sequence, prefix)

    def step(self, plan: StepPlan) -> StepResult:
        """One forward over the plan's rows. Raises UnknownSession, InvalidRequest, ModelRefused (logits that are no numbers) or what
        the model raises; then every sequence is as it was."""
        started = time.perf_counter_ns()
        self._use(plan.lent_threads)
        return self._lone_result(plan, started) or self._general_result(plan, started)

    def _lone_result(self, plan: StepPlan, started: int) -> StepResult | None:
        """Of a step that is one call; else None."""
        if self._lone is None or len(plan.sequences) != 1:
            return None
        (rows,) = plan.sequences
        state = self._sequences.states.get(rows.sequence)
        if state is None or (result := self._lone.step(rows, state, started)) is None:
            return None
        self._sequences.share(state)
        return result

    def _general_result(self, plan: StepPlan, started: int) -> StepResult:
        self._picker.check(plan)
        self._settle()
        batch = build_batch(plan, self._sequences.states, self._limits, self._identity.vocab_size, self._max_tree_depth)
        try:
            if self._card is None and self._arrays is not None and batch.num_rows <= self._array_rows:
                # nothing of torch in the way of a small step: each of its calls costs microseconds there
                rows = self._arrays.logits(batch, batch.wanted())
                forwarded = time.perf_counter_ns()
                batch.apply()
                results = self._picker.results(batch, rows)
            else:
                with torch.inference_mode():
                    logits, decided = self._forwarded(batch)
                    forwarded = time.perf_counter_ns()
                    batch.apply()
                    results = self._picked(batch, logits, decided)
            results = self._followed(batch, results)
        except BaseException:
            batch.revert()
            raise
        for segment in batch.segments:
            if segment.num_wanted:  # only what led to logits that are numbers: a fault of the hardware must not be found again
                self._sequences.share(segment.state)
        ended = time.perf_counter_ns()
        return StepResult(results, (forwarded - started) // 1000, (ended - started) // 1000, batch.num_rows)

    def end_loan(self) -> None:
        """Threads that steps were lent do nothing more until the next step that is lent some."""
        self._use(0)

    def own_loan(self) -> None:
        """What steps could be lent is this engine's own from now on: somebody's whose cores are at hand whenever it steps."""
        self._threads.own_loan()

    def keep(self, sequence: int, path: tuple[int, ...], *, subtree: bool = False) -> IntArray:
        """Commit the live nodes of `path`; returns the old indices of the nodes that stay live."""
        kept = self._sequences.keep(sequence, path, subtree)
        if kept.source != kept.destination:
            self._settle()
            with torch.inference_mode():
                self._cache.move(kept.table, kept.source, kept.destination)
        if path:
            self._sequences.share(self._sequences.state(sequence))
        return np.asarray(kept.survivors, np.int32)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget committed tokens from `length` on, and every live node."""
        self._settle()
        copy = self._sequences.truncate(sequence, length)
        if copy.source:
            with torch.inference_mode():
                self._cache.copy(copy.source, copy.destination)

    def cached_len(self, sequence: int) -> int:
        """Committed tokens whose KV is present."""
        return self._sequences.state(sequence).cached_len

    def close(self, sequence: int) -> None:
        """Free everything of the sequence."""
        self._settle()
        self._sequences.close(sequence)

    def _use(self, num_lent: int) -> None:
        if num_lent < self._num_lent:
            self._settle()  # what they compute ahead
        self._num_lent = num_lent
        self._threads.use(num_lent)

    def _settle(self) -> None:
        if self.chain is not None:
            self.chain.settle()

    def _chained(self, arrays: ArrayForward | None) -> tuple[RowChain | None, PickFollower | None, LoneStep | None]:
        """A chain, who follows picks on it, and who takes whole steps in one call."""
        if arrays is None or not arrays.is_invariant:
            return None, None, None  # a chain would have other bits than a step for each of its rows
        identity, limits = self._identity, self._limits
        chain = arrays.row_chain(ChainIds(identity.vocab_size, self._missing_ids, identity.eos_token_ids))
        if chain is None:
            return None, None, None
        follower = PickFollower(chain, self._picker, self._max_tree_depth, limits.max_context)
        return chain, follower, LoneStep(chain, self._picker, follower, limits, identity.vocab_size)

    def _followed(self, batch: StepBatch, results: tuple[SequenceResult, ...]) -> tuple[SequenceResult, ...]:
        follower = self._follower
        if follower is None:
            return results
        both = zip(batch.segments, results, strict=True)
        return tuple(follower.follow(segment, result, wish) if (wish := segment.rows.follow) else result for segment, result in both)

    def _card_sizes(self) -> StepSizes:
        limits = self._limits
        return StepSizes(limits.max_rows, limits.max_context, limits.block_len, limits.num_blocks)

    def _forwarded(self, batch: StepBatch) -> tuple[Tensor, Decided | None]:
        """Logits of the wanted rows, in plan order, and what was picked beside them."""
        if self._card is None:
            return self._logits(batch), None
        answer = self._card.run(batch, batch.wanted())
        return answer.logits, answer.decided

    def _picked(self, batch: StepBatch, logits: Tensor, decided: Decided | None) -> tuple[SequenceResult, ...]:
        if decided is None:
            return self._picker.results(batch, logits)
        return self._picker.decided_results(batch, logits, decided)

    def _logits(self, batch: StepBatch) -> Tensor:
        """float32 [wanted rows, num_logits], in plan order."""
        wanted = batch.wanted()
        tokens = torch.from_numpy(batch.tokens).to(self._device)
        positions = torch.from_numpy(batch.positions).to(self._device)
        if self._invariant:
            return self._chunked_logits(batch, tokens, positions, torch.from_numpy(wanted).to(self._device))
        hidden = self._forward.hidden(tokens, positions, FastAttention(self._cache, batch))
        if len(wanted) == 0:
            await_device(hidden.device)
            return hidden.new_empty(0, self._forward.shape.num_logits, dtype=torch.float32)
        if len(wanted) < batch.num_rows:
            hidden = hidden.index_select(0, torch.from_numpy(wanted).to(self._device))
        return self._forward.logits(hidden)

    def _chunked_logits(self, batch: StepBatch, tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        chunk_len = self._shape.num_rows
        chunks = []
        for begin in range(0, batch.num_rows, chunk_len):
            end = min(begin + chunk_len, batch.num_rows)
            attention = InvariantAttention(self._cache, batch, begin, end, self._shape)
            own_tokens, own_positions = _padded(tokens[begin:end], chunk_len), _padded(positions[begin:end], chunk_len)
            chunks.append(self._forward.hidden(own_tokens, own_positions, attention))
        if len(wanted) == 0:
            await_device(tokens.device)
            return torch.empty(0, self._forward.shape.num_logits, device=self._device)
        hidden = torch.cat(chunks).index_select(0, wanted)
        heads = []
        for begin in range(0, len(hidden), chunk_len):
            own = hidden[begin : begin + chunk_len]
            heads.append(self._forward.logits(_padded(own, chunk_len))[: len(own)])
        return torch.cat(heads)


def _padded(rows: Tensor, num_rows: int) -> Tensor:
    if len(rows) == num_rows:
        return rows.contiguous()
    full = rows.new_zeros(num_rows, *rows.shape[1:])
    full[: len(rows)] = rows
    return full


def _within_cache(identity: ModelIdentity, num_positions: int, spare_len: int | None) -> ModelIdentity:
    """With the context cut to what a cache of so many positions holds of one text, beside spare_len tree rows; None: as it is."""
    if spare_len is None or identity.max_context + spare_len <= num_positions:
        return identity
    max_context = max(1, num_positions - spare_len)
    reason = "the KV cache holds %d tokens, %d of them tree rows: a text may have %d of the model's %d positions; --kv-mib makes it larger"
    _LOG.warning(reason, num_positions, spare_len, max_context, identity.max_context)
    return replace(identity, max_context=max_context)


def blocks_within(config: EngineConfig, layers: tuple[LayerShape, ...], dtype: torch.dtype) -> int:
    """KV blocks that fit the budget, at least one."""
    return max(1, config.kv_budget_mib * 2**20 // (bytes_per_slot(layers, dtype) * config.block_len))
