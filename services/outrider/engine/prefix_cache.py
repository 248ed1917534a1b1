"""Sharing of full committed KV blocks between sequences: what may be found, what is taken over, and what is written to a copy instead.

A block is shared once every position of it is committed and cached and a token behind it is cached too (the newest may yet be taken back:
a drafter feeds its newest row twice). From then on it is frozen: no sequence writes it. Rows and moved tree nodes go behind the committed
tokens, and a truncation into it gives it up or leaves it to its other readers. Hashing costs once a block, never once a step. Must not
know tensors or models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.engine.block_allocator import BlockAllocator
from outrider.engine.block_table import BlockTable
from outrider.engine.prefix_index import PrefixIndex
from outrider.engine.sequence_state import SequenceState
from outrider.errors import InvalidRequest
from outrider.types.step import SequenceSpec
from outrider.types.tree import IntArray


@dataclass(frozen=True, slots=True)
class SlotCopy:
    """KV that must be copied, as pool slots of equal length."""

    source: list[int]
    destination: list[int]


NO_COPY = SlotCopy([], [])


class PrefixCache:
    """See the module's docstring. A state's `keys` are those of its frozen blocks, from its first block on."""

    def __init__(self, allocator: BlockAllocator, index: PrefixIndex, block_len: int) -> None:
        self._allocator = allocator
        self._index = index
        self._block_len = block_len

    def find(self, spec: SequenceSpec, tokens: IntArray, keys: list[bytes]) -> tuple[list[bytes], list[int]]:
        """Keys and blocks of the beginning of `tokens` that are there: whole blocks of all tokens but the last, behind those of `keys`."""
        num_whole = max(0, min(len(tokens), spec.max_len) - 1) // self._block_len
        found_keys: list[bytes] = []
        found: list[int] = []
        key = keys[-1] if keys else self._index.root_key(spec)
        for place in range(len(keys), num_whole):
            key = self._index.block_key(key, tokens[place * self._block_len : (place + 1) * self._block_len])
            block = self._index.find(key)
            if block is None:
                break
            found_keys.append(key)
            found.append(block)
        return found_keys, found

    def match(self, state: SequenceState, tokens: IntArray) -> None:
        """Take over what `find` finds, in place of blocks of the sequence's own. Nothing happens once the sequence was fed.

        Raises InvalidRequest, changing nothing, when tokens contradict what it holds.
        """
        held = state.cached_len
        if held != len(state.keys) * self._block_len or len(state.tree):
            return
        if not np.array_equal(tokens[:held], state.committed):
            raise InvalidRequest("prefix", f"sequence {state.sequence} holds others")
        keys, found = self.find(state.spec, tokens[: state.held_len], state.keys)
        if not found:
            return
        blocks = state.table.blocks.copy()
        begin, end = len(state.keys), len(state.keys) + len(found)
        self._allocator.retain(found)
        self._allocator.release(blocks[begin:end])
        blocks[begin:end] = found
        state.table = BlockTable(blocks, self._block_len)
        state.keys += keys
        state.append(tokens[held : end * self._block_len])

    def share(self, state: SequenceState) -> None:
        """Let others find the sequence's full blocks behind which a token is cached."""
        num_full = (state.cached_len - 1) // self._block_len
        while len(state.keys) < num_full:
            place = len(state.keys)
            before = state.keys[-1] if state.keys else self._index.root_key(state.spec)
            key = self._index.block_key(before, state.tokens[place * self._block_len : (place + 1) * self._block_len])
            state.keys.append(key)
            self._index.add(key, state.table.blocks[place])

    def thaw(self, state: SequenceState, length: int) -> SlotCopy:
        """The sequence will write from position `length` on: its frozen blocks from there become its own.

        Returns the KV to copy before anything is written. Raises Overloaded, changing nothing, when others read the blocks and there are
        none for copies.
        """
        first, end = length // self._block_len, len(state.keys)
        if first >= end:
            return NO_COPY
        blocks = state.table.blocks.copy()
        read_by_others = [place for place in range(first, end) if self._allocator.num_references(blocks[place]) > 1]
        fresh = self._allocator.allocate(len(read_by_others)) if read_by_others else []
        for place in range(first, end):
            if place not in read_by_others:
                self._index.forget(blocks[place])
        for place, block in zip(read_by_others, fresh, strict=True):
            self._allocator.release([blocks[place]])
            blocks[place] = block
        del state.keys[first:]
        before = state.table
        state.table = BlockTable(blocks, self._block_len)
        if not read_by_others or read_by_others[0] != first:
            return NO_COPY
        kept = slice(first * self._block_len, length)
        return SlotCopy(before.slots[kept].tolist(), state.table.slots[kept].tolist())
