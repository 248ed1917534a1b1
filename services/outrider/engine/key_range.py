"""Which keys of its cache the rows of one sequence read in a step: pool runs, and a mask over the last keys only.

Knows positions, windows and the ancestor relation. Must not know tensors, layers or models.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.engine.step_batch import LongArray, Segment
from outrider.types.tree import FloatArray


@dataclass(frozen=True, slots=True)
class KeyRange:
    """runs: pool ranges, half-open, in logical order. tail_mask: float32 [rows, tail], 0 visible and -inf hidden; None: all visible."""

    runs: tuple[tuple[int, int], ...]
    tail_mask: FloatArray | None


def key_range(segment: Segment, positions: LongArray, window: int | None) -> KeyRange:
    """Keys of the segment's rows, whose positions are given. window: a row at position t sees positions > t - window."""
    first_key = 0 if window is None else max(0, int(positions.min()) - window + 1)
    first_key = min(first_key, segment.cached_before)
    only_row = segment.num_keys == segment.cached_before + 1
    runs = segment.state.table.runs(first_key, segment.num_keys)
    if only_row:
        return KeyRange(runs, None)
    visible = segment.tail_visible()
    if window is not None and int(positions.max()) >= window:
        seen = np.ones((len(positions), segment.num_keys - first_key), np.bool_)
        seen[:, segment.cached_before - first_key :] = visible
        seen &= segment.key_positions(first_key)[None, :] > positions[:, None] - window
        visible = seen
    if len(visible) == 1 and visible.all():  # of several rows, the first never sees the last
        return KeyRange(runs, None)
    return KeyRange(runs, np.where(visible, np.float32(0), np.float32(-np.inf)))
