"""The definition of the pick, slow and obvious: what every fast sampler must equal, always.

    bias, penalties -> temperature -> top-k -> top-p -> min-p -> argmax of logit + temperature * gumbel(key, position, token)

Each filter keeps a prefix of one order, (logit descending, token id ascending), so a support is a list of ids in that order.
Knows numpy only, so tests and oracles use it beside any engine. Must not know trees or batches. The tests of the fast path
and the fast path's own tie-breaker call it; docs/noise.md states the same rules in prose.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from outrider.noise.exact_log import FloatArray64
from outrider.noise.field import Float32Array, gumbel
from outrider.types.sampling import SamplingParams

IdArray = npt.NDArray[np.int64]


def reference_pick(
    logits: Float32Array,
    params: SamplingParams,
    key: int,
    position: int,
    prompt_tokens: Sequence[int],
    output_tokens: Sequence[int],
) -> int:
    """The token at `position`, from float32 logits [vocab] of the row before it and every token before it."""
    return pick_processed(processed_logits(logits, params, prompt_tokens, output_tokens), params, key, position)


def processed_logits(
    logits: Float32Array, params: SamplingParams, prompt_tokens: Sequence[int], output_tokens: Sequence[int]
) -> Float32Array:
    """float32 [vocab] after logit bias, then repetition, then frequency and presence penalties.

    Each touched logit is computed in float64 and rounded once; repetition counts prompt and output, the others output only.
    """
    result = logits.astype(np.float32, copy=True)
    biases = dict(params.logit_bias)
    output_counts = Counter(int(token) for token in output_tokens)
    seen = set(output_counts) | {int(token) for token in prompt_tokens}
    for token in seen | set(biases):
        value = float(logits[token])
        value = value + biases.get(token, 0.0)
        if token in seen:
            value = value / params.repetition_penalty if value > 0.0 else value * params.repetition_penalty
        count = output_counts[token]
        if count:
            value = value - params.frequency_penalty * count
            value = value - params.presence_penalty
        result[token] = np.float32(value)
    return result


def support(processed: Float32Array, params: SamplingParams) -> IdArray:
    """Ids left by top-k, top-p and min-p, in (logit descending, id ascending) order; temperature 0 leaves the argmax."""
    order = np.argsort(-processed, kind="stable").astype(np.int64)
    if params.temperature == 0.0:
        return order[:1]
    if params.top_k > 0:
        order = order[: params.top_k]
    order = order[: nucleus_len(processed[order], params)]
    return order[: min_p_len(processed[order], params)]


def nucleus_len(ordered_logits: Float32Array, params: SamplingParams) -> int:
    """How many of the descending logits top-p keeps: the fewest whose float64 running sum reaches top_p of the whole, at least 1."""
    if params.top_p >= 1.0:
        return len(ordered_logits)
    cumulative = np.cumsum(relative_weights(ordered_logits, params.temperature))
    return int(np.searchsorted(cumulative, params.top_p * cumulative[-1], side="left")) + 1


def min_p_len(ordered_logits: Float32Array, params: SamplingParams) -> int:
    """How many of the descending logits min-p keeps: those within temperature * -log(min_p) of the best."""
    if params.min_p <= 0.0:
        return len(ordered_logits)
    gaps = ordered_logits[0].astype(np.float64) - ordered_logits.astype(np.float64)
    return int(np.count_nonzero(gaps <= min_p_gap(params)))


def min_p_gap(params: SamplingParams) -> float:
    """The largest distance below the best logit that min-p leaves; infinite when it is off."""
    return -params.temperature * math.log(params.min_p) if params.min_p > 0.0 else math.inf


def relative_weights(ordered_logits: Float32Array, temperature: float) -> FloatArray64:
    """float64 exp((logit - first) / temperature): probabilities up to a common factor, the first being 1."""
    wide = ordered_logits.astype(np.float64)
    weights: FloatArray64 = np.exp((wide - wide[0]) / temperature)
    return weights


def pick_processed(processed: Float32Array, params: SamplingParams, key: int, position: int) -> int:
    """The pick from processed logits; ties go to the larger logit, then to the lower id."""
    kept = support(processed, params)
    return int(kept[np.argmax(perturbed(processed, kept, params.temperature, key, position))])


def perturbed(processed: Float32Array, ids: IdArray, temperature: float, key: int, position: int) -> FloatArray64:
    """float64 scores [len(ids)]: logit + temperature * gumbel, each product and sum rounded once."""
    noise = gumbel(key, position, ids).astype(np.float64)
    return processed[ids].astype(np.float64) + temperature * noise


def reference_probs(processed: Float32Array, params: SamplingParams) -> FloatArray64:
    """float64 [vocab]: the exact distribution the pick samples from."""
    kept = support(processed, params)
    weights = relative_weights(processed[kept], params.temperature) if params.temperature > 0.0 else np.ones(1)
    probs = np.zeros(len(processed))
    probs[kept] = weights / weights.sum()
    return probs
