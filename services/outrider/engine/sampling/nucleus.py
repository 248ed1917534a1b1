"""Whether a token lies in the nucleus of top-p, without sorting: it does when the mass before it in canonical order is below top_p.

Works on float32 exponentials; what lies within their proven error of the boundary is reported as too close, for the reference to
decide. Must not know noise, top-k or min-p.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IdArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray64 = npt.NDArray[np.float64]

# Relative error of a float32 mass: an exponential's grows with its argument (below 5e-6 wherever mass matters), a sum's by pairs
# (below 2e-6).
MASS_MARGIN = 2e-5
_LOWEST_EXPONENT = -80.0  # denormal exponentials are ten times slower and no mass at all
_MIN_TEMPERATURE = 1e-30


def approximate_weights(logits: Tensor, temperatures: FloatArray64) -> Tensor:  # logits: [num_rows, vocab] float32
    """float32 [num_rows, vocab] exp((logit - best) / T)."""
    return approximate_exponents(logits, temperatures).exp_()


def approximate_exponents(logits: Tensor, temperatures: FloatArray64) -> Tensor:  # logits: [num_rows, vocab] float32
    """float32 [num_rows, vocab] (logit - best) / T, cut off where nothing is left of the exponential."""
    inverse = torch.from_numpy((1.0 / np.maximum(temperatures, _MIN_TEMPERATURE)).astype(np.float32)).to(logits.device)
    exponents: Tensor = (logits - logits.amax(dim=1, keepdim=True)).mul_(inverse[:, None]).clamp_min_(_LOWEST_EXPONENT)
    return exponents


class NucleusMass:
    """Masses of some rows, asked about one token a row at a time."""

    def __init__(self, logits: Tensor, temperatures: FloatArray64, top_ps: FloatArray64) -> None:
        self._logits = logits
        self._weights = approximate_weights(logits, temperatures)
        self._totals = self._weights.sum(dim=1).cpu().numpy().astype(np.float64)
        self._top_ps = top_ps

    def judge(self, rows: IdArray, tokens: IdArray, values: FloatArray64) -> tuple[BoolArray, BoolArray]:
        """(inside, too close to say) of one token in each of `rows`; values: the tokens' logits.

        The mass at or above the token's logit, less its own, is the mass before it unless others tie with it; only where that could
        decide are ties counted one by one.
        """
        index = torch.from_numpy(rows).to(self._logits.device)
        logits = self._logits if len(rows) == len(self._logits) else self._logits[index]
        weights = self._weights if len(rows) == len(self._weights) else self._weights[index]
        value = torch.from_numpy(values.astype(np.float32)).to(logits.device)[:, None]
        reached = torch.ge(logits, value, out=torch.empty_like(logits)).mul_(weights)
        token = torch.from_numpy(tokens).to(logits.device)[:, None]
        before = (reached.sum(dim=1) - weights.gather(1, token)[:, 0]).cpu().numpy().astype(np.float64)
        totals, top_ps = self._totals[rows], self._top_ps[rows]
        open_rows = np.flatnonzero(before / totals > top_ps - MASS_MARGIN)
        if len(open_rows):
            at = torch.from_numpy(open_rows).to(logits.device)
            before[open_rows] = _mass_before(logits[at], weights[at], value[at], token[at])
        excess = before / totals - top_ps
        is_best = before == 0.0
        is_close = (np.abs(excess) <= MASS_MARGIN) & ~is_best
        return ((excess < 0.0) | is_best) & ~is_close, is_close


def _mass_before(logits: Tensor, weights: Tensor, value: Tensor, token: Tensor) -> FloatArray64:
    """The mass strictly before each token: larger logits, and equal ones with a lower id."""
    ids = torch.arange(logits.shape[1], device=logits.device)
    before = (logits > value) | ((logits == value) & (ids < token))
    return (weights * before).sum(dim=1).cpu().numpy().astype(np.float64)
