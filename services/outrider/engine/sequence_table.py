"""The open sequences of an engine and the blocks they hold: admission, shared prefixes, commits, truncation, release.

Shared by every engine, so that all keep the contract of engine/contract.py in the same words. What a sequence needs is reserved before any
work, at open or later; what a shared prefix makes needless is given back. Must not know tensors, models or sampling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outrider.engine.block_allocator import BlockAllocator
from outrider.engine.block_table import BlockTable
from outrider.engine.contract import EngineLimits
from outrider.engine.live_tree import LiveTree
from outrider.engine.prefix_cache import NO_COPY, PrefixCache, SlotCopy
from outrider.engine.prefix_index import PrefixIndex
from outrider.engine.sequence_state import SequenceState
from outrider.errors import AlreadyExists, DoesNotFit, InvalidRequest, Overloaded, UnknownSession
from outrider.types.identity import ModelIdentity
from outrider.types.step import SequenceSpec
from outrider.types.tree import MAX_TREE_NODES, IntArray
from outrider.types.value import quickly_made


@quickly_made
@dataclass(frozen=True, slots=True)
class Kept:
    """What a keep left. survivors: old indices of nodes that stay live. source, destination: logical slots to copy, in order."""

    table: BlockTable
    survivors: list[int]
    source: list[int]
    destination: list[int]


class SequenceTable:
    """Sequences by id."""

    def __init__(self, identity: ModelIdentity, limits: EngineLimits) -> None:
        self._identity = identity
        self._limits = limits
        index = PrefixIndex() if limits.prefix_cache else None
        self._allocator = BlockAllocator(limits.num_blocks, index)
        self._prefixes = None if index is None else PrefixCache(self._allocator, index, limits.block_len)
        self._states: dict[int, SequenceState] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks held by no sequence."""
        return self._allocator.num_free

    @property
    def states(self) -> Mapping[int, SequenceState]:
        """Open sequences by id."""
        return self._states

    def open(self, sequence: int, spec: SequenceSpec, prefix: IntArray | None = None) -> None:
        """Hold blocks for first_len + max_nodes, those of `prefix` that are there already among them.

        Raises DoesNotFit, Overloaded, AlreadyExists or InvalidRequest, holding nothing.
        """
        if sequence in self._states:
            raise AlreadyExists(f"sequence {sequence} is open already")
        self._check(spec)
        most = self._num_blocks(spec, spec.max_len)
        if most > self._limits.num_blocks:
            problem = f"{spec.max_len} tokens and {spec.max_nodes} tree nodes need {most} KV blocks; there are {self._limits.num_blocks}"
            raise DoesNotFit("max_len", problem)
        first_len = spec.first_len or spec.max_len
        if prefix is not None and len(prefix) > first_len:
            raise InvalidRequest("first_len", f"{first_len} tokens are fewer than the {len(prefix)} of the prefix")
        needed = self._num_blocks(spec, first_len)
        keys: list[bytes] = []
        shared: list[int] = []
        if self._prefixes is not None and prefix is not None:
            keys, shared = self._prefixes.find(spec, prefix, keys)
        table = BlockTable(self._blocks(shared, needed), self._limits.block_len)
        state = self._states[sequence] = SequenceState(sequence, spec, table, LiveTree(spec.max_nodes), keys=keys)
        if prefix is not None:
            state.append(prefix[: len(shared) * self._limits.block_len])

    def reserve(self, sequence: int, length: int) -> None:
        """Hold blocks for so many committed tokens, at most max_len. Raises UnknownSession, or Overloaded, changing nothing."""
        state = self.state(sequence)
        blocks = state.table.blocks
        missing = self._num_blocks(state.spec, min(length, state.spec.max_len)) - len(blocks)
        if missing > 0:
            state.table = BlockTable(blocks + self._allocator.allocate(missing, behind=blocks[-1]), self._limits.block_len)

    def match_prefix(self, sequence: int, prefix: IntArray) -> int:
        """Take over what is cached of `prefix`; returns cached_len. Raises UnknownSession, or InvalidRequest, changing nothing."""
        state = self.state(sequence)
        if self._prefixes is not None:
            self._prefixes.match(state, prefix)
        return state.cached_len

    def share(self, state: SequenceState) -> None:
        """The sequence's committed tokens are cached and the model made sense of them: others may read their full blocks."""
        if self._prefixes is not None:
            self._prefixes.share(state)

    def state(self, sequence: int) -> SequenceState:
        """The open sequence. Raises UnknownSession."""
        state = self._states.get(sequence)
        if state is None:
            raise UnknownSession(f"sequence {sequence} is not open")
        return state

    def keep(self, sequence: int, path: tuple[int, ...], subtree: bool) -> Kept:
        """Commit the live nodes of `path`; `share` when their KV is in place. Raises UnknownSession or InvalidRequest, changing nothing."""
        state = self.state(sequence)
        if not state.tree.is_path(path):
            raise InvalidRequest("path", f"sequence {sequence}: {path} is not a path of live nodes from the root")
        if state.cached_len + len(path) > state.spec.max_len:
            raise InvalidRequest("path", f"sequence {sequence} would grow beyond its max_len of {state.spec.max_len}")
        return Kept(state.table, *state.take(path, subtree))

    def truncate(self, sequence: int, length: int) -> SlotCopy:
        """Forget committed tokens from `length` on, and every live node. Returns the KV to copy before the next step.

        Raises UnknownSession, InvalidRequest, or Overloaded (others read what would be written, and no block is free), changing nothing.
        """
        state = self.state(sequence)
        if not 0 <= length <= state.cached_len:
            raise InvalidRequest("length", f"sequence {sequence} holds {state.cached_len} tokens, cannot be cut to {length}")
        copy = NO_COPY if self._prefixes is None else self._prefixes.thaw(state, length)
        state.cut(length)
        return copy

    def close(self, sequence: int) -> None:
        """Give everything back. Raises UnknownSession."""
        state = self.state(sequence)
        del self._states[sequence]
        self._allocator.release(state.table.blocks)

    def _blocks(self, shared: list[int], needed: int) -> list[int]:
        """Hold the shared blocks, and others up to `needed`. Raises Overloaded, holding nothing."""
        self._allocator.retain(shared)  # first: they are not to be given up for the others
        try:
            return shared + self._allocator.allocate(needed - len(shared))
        except Overloaded:
            self._allocator.release(shared)
            raise

    def _num_blocks(self, spec: SequenceSpec, num_tokens: int) -> int:
        return -(-(num_tokens + spec.max_nodes) // self._limits.block_len)

    def _check(self, spec: SequenceSpec) -> None:
        spec.sampling.check(self._identity.vocab_size)
        if spec.adapter != self._identity.adapter:
            raise InvalidRequest("adapter", f"this engine serves adapter {self._identity.adapter!r}, not {spec.adapter!r}")
        if not 0 < spec.max_len <= self._limits.max_context:
            raise DoesNotFit("max_len", f"{spec.max_len} tokens; the context holds 1 to {self._limits.max_context}")
        if not 0 <= spec.max_nodes <= MAX_TREE_NODES:
            raise DoesNotFit("max_nodes", f"{spec.max_nodes} tree nodes; at most {MAX_TREE_NODES}")
        if not 0 <= spec.first_len <= spec.max_len:
            raise InvalidRequest("first_len", f"must be in [0, {spec.max_len}], got {spec.first_len}")
        if not 0 <= spec.num_prompt <= spec.max_len:
            raise InvalidRequest("num_prompt", f"must be in [0, {spec.max_len}], got {spec.num_prompt}")
