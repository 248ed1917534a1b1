"""Which keys of its cache the rows of one sequence read in a step: pool runs, and a mask over the last keys only.

Knows positions, windows and the ancestor relation. Most rows are a chain behind what is cached, and the masks of short chains are made once
for all sequences. Must not know tensors, layers or models.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from outrider.engine.step_batch import LongArray, Segment
from outrider.types.tree import FloatArray

MAX_KEPT_LEN = 64  # rows of a chain whose mask is kept: 16 KiB at most
_MASKS_KEPT = 64


@dataclass(frozen=True, slots=True)
class KeyRange:
    """runs: pool ranges, half-open, in logical order. tail_mask: float32 [rows, tail], 0 visible and -inf hidden, not to be written to:
    others may have the same; None: all visible."""

    runs: tuple[tuple[int, int], ...]
    tail_mask: FloatArray | None


def key_range(segment: Segment, positions: LongArray, window: int | None) -> KeyRange:
    """Keys of the segment's rows, whose positions are given. window: a row at position t sees positions > t - window."""
    first_key = 0 if window is None else max(0, int(positions.min()) - window + 1)
    first_key = min(first_key, segment.cached_before)
    runs = segment.state.table.runs(first_key, segment.num_keys)
    num_tail = segment.num_keys - segment.cached_before
    if num_tail == 1:
        return KeyRange(runs, None)
    hides_old = window is not None and int(positions.max()) >= window
    if num_tail == segment.end - segment.begin <= MAX_KEPT_LEN and segment.state.tree.is_chain and not hides_old:
        return KeyRange(runs, _chain_mask(num_tail))
    visible = segment.tail_visible()
    if window is not None and hides_old:
        seen = np.ones((len(positions), segment.num_keys - first_key), np.bool_)
        seen[:, segment.cached_before - first_key :] = visible
        seen &= segment.key_positions(first_key)[None, :] > positions[:, None] - window
        visible = seen
    if len(visible) == 1 and visible.all():  # of several rows, the first never sees the last
        return KeyRange(runs, None)
    return KeyRange(runs, np.where(visible, np.float32(0), np.float32(-np.inf)))


@lru_cache(maxsize=_MASKS_KEPT)
def _chain_mask(num_rows: int) -> FloatArray:
    """Of rows each of which sees those before it and itself."""
    return np.where(np.tri(num_rows, dtype=np.bool_), np.float32(0), np.float32(-np.inf))
