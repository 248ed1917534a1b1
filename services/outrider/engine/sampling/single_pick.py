"""The pick of one row, for drafting and plain decoding, where the bookkeeping of many rows would cost more than the decision.

The same bulk stage and the same margins as `pick`, in numpy calls on one vector; what it cannot decide for certain it leaves to `pick`. The
pick's probability falls out of the bulk stage's exponentials. Must not know trees, penalties or devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log, nan

import numpy as np

from outrider.engine.sampling.pick import score_margin
from outrider.engine.sampling.survivors import LOWEST_EXPONENT, SLACK, high_words
from outrider.noise.field import Float32Array, position_subkey, uniform_at
from outrider.noise.reference_pick import min_p_gap
from outrider.types.sampling import SamplingParams

# Colder rows are left to `pick`, which keeps 1 / T finite.
_MIN_TEMPERATURE = 1e-6
# Far above the rounding of a float32 mass (nucleus.MASS_MARGIN): within it the general pick decides.
_CLEAR_MARGIN = 1e-3
_LOG_TWO_32 = 32.0 * log(2.0)


@dataclass(frozen=True, slots=True)
class SinglePick:
    """prob: of the token under softmax(logits / T) without filters; at T = 0, where that is a point mass, at temperature 1.

    NaN where it was not asked for.
    """

    token: int
    prob: float


def pick_single(logits: Float32Array, params: SamplingParams, key: int, position: int, with_prob: bool) -> SinglePick | None:
    """The token that `pick` gives for processed logits [vocab], or None when `pick` must decide.

    That is for top-k, near ties, edges of filters, and logits that are no numbers.
    """
    best_id = int(logits.argmax())
    best = float(logits[best_id])
    if not isfinite(best):
        return None
    if params.temperature == 0.0:
        return SinglePick(best_id, 1.0 / float(np.exp(logits - np.float32(best)).sum()) if with_prob else nan)
    if params.top_k > 0 or params.temperature < _MIN_TEMPERATURE:
        return None
    subkey = position_subkey(key, position)
    bound = -log(-log(uniform_at(subkey, best_id))) - SLACK
    limits = _limits(logits, best, params.temperature, bound)
    high = high_words(np.array([subkey], np.uint64), len(logits))[0]
    tokens = np.flatnonzero(np.invert(high, out=high).astype(np.float32) <= limits).tolist()
    ranked = _ranked(logits, tokens, best, params, subkey)
    score, value, token = ranked[0]
    if len(ranked) > 1 and score - ranked[1][0] <= score_margin(params.temperature, best):
        return None
    if params.top_p < 1.0 and not _is_clearly_inside(logits, limits, value, best, params.top_p):
        return None
    return SinglePick(token, float(limits[token] / limits.sum()) if with_prob else nan)


def _limits(logits: Float32Array, best: float, temperature: float, bound: float) -> Float32Array:
    """float32 2^32 * exp((logit - best) / T - bound), as in `survivors`, and proportional to the probabilities."""
    limits: Float32Array = logits - np.float32(best)
    limits *= np.float32(1.0 / temperature)
    limits -= np.float32(bound - _LOG_TWO_32)
    np.maximum(limits, np.float32(LOWEST_EXPONENT), out=limits)
    np.exp(limits, out=limits)
    return limits


def _ranked(logits: Float32Array, tokens: list[int], best: float, params: SamplingParams, subkey: int) -> list[tuple[float, float, int]]:
    """(score, logit, token) of the survivors within min-p, best score first. A few plain numbers: arrays would cost more."""
    gap = min_p_gap(params)
    scored = []
    for token in tokens:
        value = float(logits[token])
        if best - value <= gap:
            scored.append((value - params.temperature * log(-log(uniform_at(subkey, token))), value, token))
    scored.sort(reverse=True)
    return scored


def _is_clearly_inside(logits: Float32Array, limits: Float32Array, value: float, best: float, top_p: float) -> bool:
    """Whether the mass at or above the logit, its own left out, is well below top_p of the whole; the best alone always is inside."""
    if value == best:
        return bool(np.count_nonzero(logits == np.float32(best)) == 1)
    above = float(limits[logits > np.float32(value)].sum())
    ties = np.count_nonzero(logits == np.float32(value))
    return bool(ties == 1 and above / float(limits.sum()) < top_p - _CLEAR_MARGIN)
