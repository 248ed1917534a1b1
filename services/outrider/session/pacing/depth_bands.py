"""Acceptance by depth: how often a guess is right that has so many before it beyond the truth that its drafter knew, those being right.

Depths are taken together in bands. A session has one acceptance, and for each band by how much the logarithm of the odds differs from it;
what a band was never tested in is taken from the band before. Must not know sessions, courses or how an offset was found.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

BAND_BEGINS = (1, 2, 4, 8)  # depths from which a band reaches to the next; 1 is the first guess beyond the truth
NUM_BANDS = len(BAND_BEGINS)
MAX_DEPTH = 64  # all deeper ones are of the last band
BAND_OF = (0, *(sum(depth >= begin for begin in BAND_BEGINS) - 1 for depth in range(1, MAX_DEPTH + 1)))
LEAST, MOST = 0.01, 0.99  # acceptance, as far as its odds go
DepthOffsets = tuple[float, ...]  # of each band; () = depth makes no difference
_BANDS: npt.NDArray[np.int64] = np.array(BAND_OF[1:])


def log_odds(share: float) -> float:
    """Of a share within LEAST and MOST, or of the nearer of the two."""
    if not LEAST < share < MOST:
        share = LEAST if share <= LEAST else MOST
    return math.log(share / (1.0 - share))


def rights_by_depth(acceptance: float, offsets: DepthOffsets) -> npt.NDArray[np.float64]:
    """[MAX_DEPTH]: the chance of the guess at depth 1, 2, ... to be right if all before it are. offsets: one for each band."""
    odds = np.exp(log_odds(acceptance) + np.array(offsets))
    return np.asarray((odds / (1.0 + odds))[_BANDS], np.float64)
