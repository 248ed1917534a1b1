"""A StepPlan laid flat: one row per token, whatever sequence it belongs to, checked before anything is touched.

Knows positions (base + depth), logical and pool slots, and which rows want results. Must not know tensors, models or sampling.
Rows of one sequence neighbour each other, committed rows first, then new nodes; parents always precede children.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from outrider.engine.contract import EngineLimits
from outrider.engine.sequence_state import SequenceState
from outrider.errors import InvalidRequest, UnknownSession
from outrider.types.step import SequenceRows, StepPlan
from outrider.types.tree import ROOT

LongArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Number = TypeVar("Number", np.int32, np.int64)


@dataclass(slots=True)
class Segment:
    """One sequence's rows [begin, end) of the flat batch.

    num_committed: of them, committed tokens. cached_before: cached_len before the step. live_before: live nodes before the step.
    num_keys: logical slots that hold keys after this step's rows are written. num_wanted: rows with results.
    """

    rows: SequenceRows
    state: SequenceState
    begin: int
    end: int
    num_committed: int
    cached_before: int
    live_before: int
    num_keys: int
    num_wanted: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_wanted = (min(1, self.num_committed) + len(self.rows.tokens)) if self.rows.wanted else 0

    @property
    def base(self) -> int:
        """Position of children of the root: committed tokens including those of this step."""
        return self.cached_before + self.num_committed

    @property
    def wanted_begin(self) -> int:
        """First flat row with results; they run to `end`."""
        return self.end - self.num_wanted

    def tail_visible(self) -> BoolArray:
        """Which of the keys [cached_before, num_keys) each row sees; those before are seen by all. bool [rows, tail]."""
        committed, total = self.num_committed, self.end - self.begin
        visible = np.zeros((total, self.num_keys - self.cached_before), np.bool_)
        visible[:committed, :committed] = True if committed < 2 else np.tri(committed, dtype=np.bool_)
        if total > committed:
            visible[committed:, :committed] = True
            visible[committed:, committed:] = self.state.tree.ancestry[self.live_before :]
        return visible

    def paths(self) -> list[npt.NDArray[np.int32]]:
        """Of each wanted row, the tokens from a child of the root down to it: none of the newest committed token's."""
        tree = self.state.tree
        paths = [tree.tokens[:0]] if self.num_committed and self.num_wanted else []
        return paths + [tree.tokens_to(node) for node in range(self.live_before, len(tree)) if self.num_wanted]

    def key_positions(self, begin: int) -> LongArray:
        """Position of each key in logical slots [begin, num_keys)."""
        positions = np.arange(begin, self.num_keys, dtype=np.int64)
        first_node = self.base
        if self.num_keys > first_node:
            skipped = max(0, begin - first_node)
            positions[max(0, first_node - begin) :] = self.base + self.state.tree.depths[skipped:]
        return positions


@dataclass(slots=True)
class StepBatch:
    """tokens, positions, slots: int64 [rows]; slots are pool slots. segments in plan order."""

    tokens: LongArray
    positions: LongArray
    slots: LongArray
    segments: list[Segment]

    @property
    def num_rows(self) -> int:
        """Rows without padding."""
        return len(self.tokens)

    def wanted(self) -> LongArray:
        """Flat rows with results, in order."""
        if sum([segment.num_wanted for segment in self.segments]) == self.num_rows:
            return np.arange(self.num_rows, dtype=np.int64)
        spans = [np.arange(segment.wanted_begin, segment.end, dtype=np.int64) for segment in self.segments if segment.num_wanted]
        return joined(spans) if spans else np.empty(0, np.int64)

    def apply(self) -> None:
        """The rows' KV is written: committed rows are cached now."""
        for segment in self.segments:
            if segment.num_committed:
                segment.state.append(segment.rows.committed)

    def revert(self) -> None:
        """The step failed, before or after `apply`: every sequence is as it was. KV that was written lies beyond what a sequence holds."""
        for segment in self.segments:
            if segment.num_committed:
                segment.state.cut(segment.cached_before)  # there were no live nodes: they are never fed over
            else:
                segment.state.tree.shrink(segment.live_before)


def build_batch(
    plan: StepPlan, sequences: Mapping[int, SequenceState], limits: EngineLimits, num_ids: int, max_tree_depth: int
) -> StepBatch:
    """Check the whole plan, then add its nodes to the sequences' trees and lay out the rows.

    max_tree_depth: levels a tree may have. Raises UnknownSession or InvalidRequest before any state changes.
    """
    _check(plan, sequences, limits, num_ids)
    segments: list[Segment] = []
    tokens: list[npt.NDArray[np.int32]] = []
    positions: list[LongArray] = []
    slots: list[LongArray] = []
    begin = 0
    for rows in plan.sequences:
        state = sequences[rows.sequence]
        live_before, num_committed, num_nodes = len(state.tree), len(rows.committed), len(rows.tokens)
        if num_nodes:
            state.tree.add(rows.tokens, rows.parents)
        total = num_committed + num_nodes
        base = state.cached_len + num_committed
        segment = Segment(rows, state, begin, begin + total, num_committed, state.cached_len, live_before, base + len(state.tree))
        segments.append(segment)
        first = state.cached_len + live_before  # logical slot: nothing lives where committed tokens are fed
        slots.append(state.table.slots[first : first + total])
        if num_committed:
            tokens.append(rows.committed)
        if num_nodes:
            tokens.append(rows.tokens)
        if state.tree.is_chain:
            positions.append(np.arange(first, first + total, dtype=np.int64))
        else:
            positions.append(np.arange(state.cached_len, base, dtype=np.int64))
            positions.append(base + state.tree.depths[live_before:].astype(np.int64))
        begin += total
    batch = StepBatch(joined(tokens).astype(np.int64), joined(positions), joined(slots), segments)
    for segment in segments:
        if len(segment.rows.tokens):
            _check_depth(batch, segment, limits, max_tree_depth)
    return batch


def joined(parts: list[npt.NDArray[Number]]) -> npt.NDArray[Number]:
    """The parts one after another; the only one as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _check_depth(batch: StepBatch, segment: Segment, limits: EngineLimits, max_tree_depth: int) -> None:
    """Raise InvalidRequest, with the batch reverted, when the segment's tree has too many levels."""
    most = min(max_tree_depth, limits.max_context - segment.base)
    tree = segment.state.tree
    if len(tree) <= most or (num_levels := int(tree.depths.max()) + 1) <= most:
        return
    batch.revert()
    name = f"sequence {segment.rows.sequence}"
    if num_levels > max_tree_depth:
        raise InvalidRequest("plan.parents", f"{name}: trees may have at most {max_tree_depth} levels")
    raise InvalidRequest("plan.parents", f"{name}: the tree reaches beyond the context of {limits.max_context}")


def _check(plan: StepPlan, sequences: Mapping[int, SequenceState], limits: EngineLimits, num_ids: int) -> None:
    num_rows = 0
    seen: set[int] = set()
    for rows in plan.sequences:
        if rows.sequence in seen:
            raise InvalidRequest("plan.sequences", f"sequence {rows.sequence} appears twice")
        seen.add(rows.sequence)
        state = sequences.get(rows.sequence)
        if state is None:
            raise UnknownSession(f"sequence {rows.sequence} is not open")
        _check_rows(rows, state, num_ids)
        num_rows += len(rows.committed) + len(rows.tokens)
    if not plan.sequences or num_rows > limits.max_rows:
        raise InvalidRequest("plan.sequences", f"a step takes 1 to {limits.max_rows} rows, got {num_rows}")


def _check_rows(rows: SequenceRows, state: SequenceState, num_ids: int) -> None:
    live, num_committed, num_nodes = len(state.tree), len(rows.committed), len(rows.tokens)
    if not num_committed and not num_nodes:
        raise InvalidRequest("plan.committed", f"{_name(rows)} has no rows")
    if num_committed and live:
        raise InvalidRequest("plan.committed", f"{_name(rows)} has {live} live nodes; keep or drop them before feeding committed tokens")
    if not num_committed and not state.cached_len:
        raise InvalidRequest("plan.committed", f"{_name(rows)} is empty; feed its prefix first")
    if state.cached_len + num_committed > state.held_len:
        raise InvalidRequest("plan.committed", f"{_name(rows)} would grow beyond the {state.held_len} tokens that it has room for")
    if num_nodes > state.tree.room:
        raise InvalidRequest("plan.tokens", f"{_name(rows)} has room for {state.tree.room} more live nodes, got {num_nodes}")
    if num_nodes != len(rows.parents):
        raise InvalidRequest("plan.parents", f"{_name(rows)} has {num_nodes} nodes and {len(rows.parents)} parents")
    if rows.acceptance and not (num_committed and rows.wanted):
        raise InvalidRequest("plan.acceptance", f"{_name(rows)}: a verdict needs the newest committed token's row, and wanted")
    # Mostly a few plain numbers: array operations would cost more.
    for place, ids in (("plan.committed", rows.committed.tolist()), ("plan.tokens", rows.tokens.tolist())):
        if ids and not (min(ids) >= 0 and max(ids) < num_ids):
            raise InvalidRequest(place, f"{_name(rows)} has a token id outside [0, {num_ids})")
    for index, parent in enumerate(rows.parents.tolist(), live):
        if not ROOT <= parent < index:
            raise InvalidRequest("plan.parents", f"{_name(rows)}: a parent must be {ROOT} or an earlier live node")


def _name(rows: SequenceRows) -> str:
    """In refusals."""
    return f"sequence {rows.sequence}"
