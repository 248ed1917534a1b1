"""top-k, top-p and min-p of one row by values alone: a sort of float32 values is many times cheaper than an ordering of ids.

The kept prefix of the canonical order is every logit above the last kept value, and of those equal to it the lowest ids. Lengths
come from the reference's own functions on the same descending values, so the support is the canonical one. Must not know noise.
"""

from __future__ import annotations

import numpy as np

from outrider.noise.field import Float32Array
from outrider.noise.reference_pick import min_p_gap, min_p_len, nucleus_len
from outrider.types.sampling import SamplingParams


def filtered_row(row: Float32Array, params: SamplingParams) -> Float32Array:
    """The row (float32 [vocab], temperature above 0) with everything its filters leave out at -inf."""
    if params.top_k == 0 and params.top_p >= 1.0:
        gaps = row.max().astype(np.float64) - row.astype(np.float64)
        return np.where(gaps <= min_p_gap(params), row, np.float32(-np.inf))
    ordered = _descending(row, params.top_k)
    ordered = ordered[: nucleus_len(ordered, params)]
    ordered = ordered[: min_p_len(ordered, params)]
    last = ordered[-1]
    kept = row > last
    ties = np.flatnonzero(row == last)
    kept[ties[: len(ordered) - np.count_nonzero(kept)]] = True
    return np.where(kept, row, np.float32(-np.inf))


def _descending(row: Float32Array, top_k: int) -> Float32Array:
    """The top_k largest values (all when 0), largest first."""
    negated = -row
    if 0 < top_k < len(row):
        negated = np.partition(negated, top_k - 1)[:top_k]
    negated.sort()
    return -negated
