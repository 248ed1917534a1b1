"""The Engine over any decoder forward: opens and closes sequences, lays steps flat, keeps the cache's promises, picks inside.

Knows the contract of engine/contract.py; numerics decide whether rows go through the model at once (`fast`) or in chunks of one fixed
row count (`invariant`). One thread loads and steps it. Must not know which model runs, nor frames, sessions or drafts.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from outrider.engine.attention import FastAttention, InvariantAttention
from outrider.engine.config import EngineConfig
from outrider.engine.contract import EngineLimits
from outrider.engine.decoder_forward import DecoderForward
from outrider.engine.live_tree import LiveTree
from outrider.engine.paged_cache import LayerShape, PagedCache
from outrider.engine.row_picker import RowPicker
from outrider.engine.sequence_state import SequenceState
from outrider.engine.step_batch import StepBatch, build_batch
from outrider.errors import AlreadyExists, DoesNotFit, InvalidRequest, UnknownSession
from outrider.types.identity import ModelIdentity, Numerics
from outrider.types.step import SequenceSpec, StepPlan, StepResult
from outrider.types.tree import MAX_TREE_NODES, IntArray
from outrider_kernels.invariant_attention import InvariantShape


class PagedEngine:
    """Engine over a DecoderForward. See engine/contract.py for every promise."""

    def __init__(
        self,
        forward: DecoderForward,
        identity: ModelIdentity,
        config: EngineConfig,
        dtype: torch.dtype,
        missing_ids: tuple[int, ...] = (),
    ) -> None:
        self._forward = forward
        self._identity = identity
        self._device = config.device
        sizes = config.invariant
        self._invariant = identity.numerics is Numerics.INVARIANT
        self._shape = InvariantShape(sizes.rows, sizes.block_len, sizes.max_tree_depth, sizes.group_blocks)
        self._max_tree_depth = sizes.max_tree_depth if self._invariant else MAX_TREE_NODES
        shape = forward.shape
        num_blocks = config.num_blocks or blocks_within(config, shape.layers, dtype)
        self._cache = PagedCache(shape.layers, num_blocks, config.block_len, dtype, config.device, scratch=config.block_len)
        self._limits = EngineLimits(config.max_rows, config.block_len, num_blocks, identity.max_context)
        self._sequences: dict[int, SequenceState] = {}
        self._picker = RowPicker(identity.vocab_size, config.device, missing_ids)

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
        """KV blocks not reserved by any open sequence."""
        return self._cache.num_free_blocks

    def open(self, sequence: int, spec: SequenceSpec) -> None:
        """Reserve blocks for max_len + max_nodes. Raises DoesNotFit, Overloaded, AlreadyExists or InvalidRequest, holding nothing."""
        if sequence in self._sequences:
            raise AlreadyExists(f"sequence {sequence} is open already")
        self._check_spec(spec)
        needed = self._cache.num_blocks_for(spec.max_len + spec.max_nodes)
        if needed > self._limits.num_blocks:
            problem = f"{spec.max_len} tokens and {spec.max_nodes} tree nodes need {needed} KV blocks; there are {self._limits.num_blocks}"
            raise DoesNotFit("max_len", problem)
        table = self._cache.open(spec.max_len + spec.max_nodes)
        self._sequences[sequence] = SequenceState(sequence, spec, table, LiveTree(spec.max_nodes))

    def step(self, plan: StepPlan) -> StepResult:
        """One forward over the plan's rows. Raises UnknownSession or InvalidRequest before anything is touched."""
        started = time.perf_counter_ns()
        with torch.inference_mode():
            batch = build_batch(plan, self._sequences, self._limits, self._identity.vocab_size, self._max_tree_depth)
            try:
                logits = self._logits(batch)
            except BaseException:
                batch.revert()
                raise
            forwarded = time.perf_counter_ns()
            batch.apply()
            results = self._picker.results(batch, logits)
        ended = time.perf_counter_ns()
        return StepResult(results, (forwarded - started) // 1000, (ended - started) // 1000, batch.num_rows)

    def keep(self, sequence: int, path: tuple[int, ...], *, subtree: bool = False) -> IntArray:
        """Commit the live nodes of `path`; returns the old indices of the nodes that stay live."""
        state = self._state(sequence)
        if not state.tree.is_path(path):
            raise InvalidRequest("path", f"sequence {sequence}: {path} is not a path of live nodes from the root")
        if state.cached_len + len(path) > state.spec.max_len:
            raise InvalidRequest("path", f"sequence {sequence} would grow beyond its max_len of {state.spec.max_len}")
        survivors, source, destination = state.take(path, subtree)
        if source != destination:
            with torch.inference_mode():
                self._cache.move(state.table, source, destination)
        return np.asarray(survivors, np.int32)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget committed tokens from `length` on, and every live node."""
        state = self._state(sequence)
        if not 0 <= length <= state.cached_len:
            raise InvalidRequest("length", f"sequence {sequence} holds {state.cached_len} tokens, cannot be cut to {length}")
        state.cut(length)

    def cached_len(self, sequence: int) -> int:
        """Committed tokens whose KV is present."""
        return self._state(sequence).cached_len

    def close(self, sequence: int) -> None:
        """Free everything of the sequence."""
        state = self._state(sequence)
        del self._sequences[sequence]
        self._cache.close(state.table)

    def _state(self, sequence: int) -> SequenceState:
        state = self._sequences.get(sequence)
        if state is None:
            raise UnknownSession(f"sequence {sequence} is not open")
        return state

    def _check_spec(self, spec: SequenceSpec) -> None:
        spec.sampling.check(self._identity.vocab_size)
        if spec.adapter != self._identity.adapter:
            raise InvalidRequest("adapter", f"this engine serves adapter {self._identity.adapter!r}, not {spec.adapter!r}")
        if not 0 < spec.max_len <= self._limits.max_context:
            raise DoesNotFit("max_len", f"{spec.max_len} tokens; the context holds 1 to {self._limits.max_context}")
        if not 0 <= spec.max_nodes <= MAX_TREE_NODES:
            raise DoesNotFit("max_nodes", f"{spec.max_nodes} tree nodes; at most {MAX_TREE_NODES}")
        if not 0 <= spec.num_prompt <= spec.max_len:
            raise InvalidRequest("num_prompt", f"must be in [0, {spec.max_len}], got {spec.num_prompt}")

    def _logits(self, batch: StepBatch) -> Tensor:
        """float32 [wanted rows, num_logits], in plan order."""
        tokens = torch.from_numpy(batch.tokens).to(self._device)
        positions = torch.from_numpy(batch.positions).to(self._device)
        wanted = batch.wanted()
        if self._invariant:
            return self._chunked_logits(batch, tokens, positions, torch.from_numpy(wanted).to(self._device))
        hidden = self._forward.hidden(tokens, positions, FastAttention(self._cache, batch))
        if len(wanted) == 0:
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


def blocks_within(config: EngineConfig, layers: tuple[LayerShape, ...], dtype: torch.dtype) -> int:
    """KV blocks that fit the budget, at least one."""
    per_slot = sum(2 * layer.num_kv_heads * layer.head_dim for layer in layers) * dtype.itemsize
    return max(1, config.kv_budget_mib * 2**20 // (per_slot * config.block_len))
