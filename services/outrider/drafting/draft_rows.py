"""Draws for rejection acceptance: a sparse draft distribution, children drawn from exactly that, by noise the verifier does not share.

Source: Leviathan et al. 2023 for one child; for several, sequential draws without replacement, which is the Gumbel-top-k of the log of
the row in draw order (RSD, 2402.14160; ALGORITHMS.md D.1 rule 2). A row holds at most ROW_SUPPORT tokens, the model's most probable
ones, after temperature, top-k, top-p and min-p: truncation is exact as long as what was sampled from is what is sent, and costs only
acceptance. Penalties and logit bias are left to the target for the same reason. Must not know trees, engines or frames.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.noise.field import gumbel
from outrider.noise.keys import Purpose, key_of
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import DraftRow, FloatArray, IntArray

ROW_SUPPORT = 64

_Float64Array = npt.NDArray[np.float64]


class RowDrawer:
    """The private draws of one session."""

    def __init__(self, sampling: SamplingParams, noise: NoiseAddress) -> None:
        self._sampling = sampling
        self._key = key_of(noise, Purpose.DRAFT)

    def draw(
        self, parent: int, position: int, top_ids: IntArray, top_logprobs: FloatArray, pick: int, num_children: int
    ) -> tuple[DraftRow, list[int], list[float]]:
        """At most num_children tokens for `position` after node `parent`: the row, the tokens in draw order, their log-probabilities.

        top_ids int32 [n], top_logprobs float32 [n]: the model's best tokens, best first. pick: its argmax, used at temperature 0.
        """
        if self._sampling.temperature == 0.0:
            return DraftRow(parent, np.array([pick], np.int32), np.ones(1, np.float32)), [pick], [0.0]
        probs = draft_probs(self._sampling, top_logprobs)
        ids = top_ids[: len(probs)]
        log_probs = np.log(probs.astype(np.float64))
        order = np.argsort(-(log_probs + gumbel(self._key, position, ids)), kind="stable")[:num_children]
        return DraftRow(parent, ids, probs), ids[order].tolist(), log_probs[order].tolist()


def draft_probs(sampling: SamplingParams, top_logprobs: FloatArray) -> FloatArray:
    """The processed distribution over the best tokens, best first: float32 [at most n], positive, summing to 1 within rounding."""
    scaled: _Float64Array = top_logprobs.astype(np.float64) / sampling.temperature
    if sampling.top_k:
        scaled = scaled[: sampling.top_k]
    probs: _Float64Array = np.exp(scaled - scaled[0])
    probs /= probs.sum()
    if sampling.top_p < 1.0:
        num_kept = int(np.searchsorted(np.cumsum(probs), sampling.top_p)) + 1
        probs = probs[:num_kept]
    probs = probs[(probs >= sampling.min_p * probs[0]) & (probs > 1e-30)]
    normalised: FloatArray = (probs / probs.sum()).astype(np.float32)
    return normalised
