"""The pick of one row, for drafting and plain decoding, where the bookkeeping of many rows would cost more than the decision.

The same bulk stage and the same margins as `pick`, in numpy calls on one vector; what it cannot decide for certain it leaves to `pick`. The
pick's probability falls out of the bulk stage's exponentials. Must not know trees, penalties or devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log, nan

import numpy as np

from outrider.engine.sampling.pick import approximate_gumbel, score_margin
from outrider.engine.sampling.survivors import LOWEST_EXPONENT, SLACK, TWO_32, high_words
from outrider.noise.field import Float32Array, position_subkeys, token_bits, uniform
from outrider.noise.reference_pick import min_p_gap
from outrider.types.sampling import SamplingParams

# Colder rows are left to `pick`, which keeps 1 / T finite.
_MIN_TEMPERATURE = 1e-6
# Far above the rounding of a float32 mass (nucleus.MASS_MARGIN): within it the general pick decides.
_CLEAR_MARGIN = 1e-3


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
    inverse = np.float32(1.0 / params.temperature)
    bound = -log(-log(uniform(key, position, best_id))) - SLACK
    limits = logits - np.float32(best)
    limits *= inverse
    limits -= np.float32(bound)
    np.maximum(limits, np.float32(LOWEST_EXPONENT), out=limits)
    np.exp(limits, out=limits)
    limits *= np.float32(TWO_32)
    subkeys = position_subkeys(key, position)
    high = high_words(subkeys, len(logits))[0]
    tokens = np.flatnonzero(np.invert(high, out=high).astype(np.float32) <= limits)
    values = logits[tokens].astype(np.float64)
    near = best - values <= min_p_gap(params)
    tokens, values = tokens[near], values[near]
    scores = values + params.temperature * approximate_gumbel(token_bits(subkeys, tokens))
    order = np.argsort(-scores)
    winner = int(order[0])
    if len(order) > 1:
        margin = score_margin(np.array([params.temperature]), np.array([best]))[0]
        if scores[winner] - scores[order[1]] <= margin:
            return None
    token, value = int(tokens[winner]), float(values[winner])
    if params.top_p < 1.0 and not _is_clearly_inside(logits, limits, value, best, params.top_p):
        return None
    return SinglePick(token, float(limits[token] / limits.sum()) if with_prob else nan)


def _is_clearly_inside(logits: Float32Array, limits: Float32Array, value: float, best: float, top_p: float) -> bool:
    """Whether the mass at or above the logit, its own left out, is well below top_p of the whole; the best alone always is inside."""
    if value == best:
        return bool(np.count_nonzero(logits == np.float32(best)) == 1)
    above = float(limits[logits > np.float32(value)].sum())
    ties = np.count_nonzero(logits == np.float32(value))
    return bool(ties == 1 and above / float(limits.sum()) < top_p - _CLEAR_MARGIN)
