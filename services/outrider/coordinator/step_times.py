"""Cost curves of many verifiers as one array: every curve sampled at the same row counts, linear between them.

A verifier's own points may be anywhere; what lies between two of GRID_ROWS is lost, at most a third of a row count. Must not know rounds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.session.pacing.contract import CostCurve

MIN_STEP_US = 1.0
UNKNOWN_COST = ((1, 20_000.0), (64, 40_000.0))  # (rows, us) of a verifier that has measured no step yet
GRID_ROWS = np.array([*range(1, 5), *(base << shift for shift in range(1, 12) for base in (3, 4))], np.int64)  # 1 2 3 4 6 8 12 ... 8192
_LAST = int(GRID_ROWS[-1])
# The grid's interval of every row count, and how far into it: looked up rather than searched for, thousands at a time.
_INTERVALS = np.clip(np.searchsorted(GRID_ROWS, np.arange(_LAST + 1), "right") - 1, 0, len(GRID_ROWS) - 2)
_INTO = (np.arange(_LAST + 1) - GRID_ROWS[_INTERVALS]) / np.diff(GRID_ROWS)[_INTERVALS]

FloatColumns = npt.NDArray[np.float64]
IntColumns = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def sampled(cost: tuple[tuple[int, float], ...]) -> FloatColumns:
    """[len(GRID_ROWS)] microseconds of a curve of (rows, us), ascending; UNKNOWN_COST when it has no point."""
    points = cost or UNKNOWN_COST
    least_us = max(MIN_STEP_US, min(us for _, us in points))  # a last slope that falls is noise, not a promise
    return np.maximum(least_us, CostCurve(points).verify_us_of(GRID_ROWS))


def step_us(samples: FloatColumns, num_rows: IntColumns) -> FloatColumns:
    """[S, L] microseconds of steps of num_rows [S, L], each at least 1, by the samples [S, len(GRID_ROWS)] of their verifiers."""
    capped = np.minimum(num_rows, _LAST)
    # Flat places: much quicker than an index for each axis.
    flat, places = samples.reshape(-1), _INTERVALS[capped] + np.arange(len(samples))[:, None] * samples.shape[1]
    left = flat[places]
    found = left + (flat[places + 1] - left) * _INTO[capped]
    if (num_rows > _LAST).any():  # on along the last slope; hardly ever
        slopes = (samples[:, -1] - samples[:, -2]) / (_LAST - int(GRID_ROWS[-2]))
        found += (num_rows - capped) * slopes[:, None]
    return np.asarray(found, np.float64)
