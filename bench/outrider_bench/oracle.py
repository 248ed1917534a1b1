"""An independent judge of tokens: transformers' forward without a cache, numpy noise, the reference pick; none of our engine.

Judges given answers position by position (each logit row is computed from the answer's own prefix), so one forward an answer is
enough and a flip does not hide what follows. A disagreement is a near tie when a change of the logits (or of top-p's border) far
below anything a kernel could get wrong would have led to the answer's token; near ties are listed and counted, never dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from outrider.noise.field import Float32Array
from outrider.noise.keys import Purpose, key_of
from outrider.noise.reference_pick import perturbed, pick_processed, processed_logits, support
from outrider.types.sampling import NoiseAddress, SamplingParams

NEAR_TIE_GAP = 1e-3  # in logits; fp32 products of other shapes differ by about 2e-6 at the last layer
NEAR_BORDER_MASS = 1e-5  # relative change of top_p


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A position where the oracle picks another token. gap: by how much its score is higher, infinite when the answer's token was cut
    off by top-k, top-p or min-p. near_tie: whether it is one by the stated bounds."""

    position: int
    answer_token: int
    oracle_token: int
    gap: float
    near_tie: bool


class Oracle:
    """The target model, by transformers alone. dtype: "float32" or "bfloat16" (logits and picks are fp32 always)."""

    def __init__(self, model: str, dtype: str = "float32") -> None:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), attn_implementation="eager")
        self._model = loaded.eval()

    def judge(self, prompt: Sequence[int], answer: Sequence[int], params: SamplingParams, address: NoiseAddress) -> list[Disagreement]:
        """Every position of the answer that the oracle would have answered otherwise; params as every service sees them (`as_sent`)."""
        rows = self._logits(prompt, answer)
        key = key_of(address, Purpose.PICK)
        found = []
        for index, token in enumerate(answer):
            position = len(prompt) + index
            processed = processed_logits(rows[index], params, prompt, answer[:index])
            pick = pick_processed(processed, params, key, position)
            if pick != token:
                found.append(_disagreement(processed, params, key, position, token, pick))
        return found

    def _logits(self, prompt: Sequence[int], answer: Sequence[int]) -> Float32Array:
        """float32 [len(answer), vocab]: the row before each token of the answer, from one pass without a cache."""
        ids = torch.tensor([[*prompt, *answer[:-1]]])
        with torch.inference_mode():
            output = self._model(ids, use_cache=False)
        rows: Float32Array = output.logits[0, len(prompt) - 1 :].float().numpy()
        assert rows.shape[0] == len(answer)
        return rows


def _disagreement(processed: Float32Array, params: SamplingParams, key: int, position: int, token: int, pick: int) -> Disagreement:
    kept = support(processed, params)
    if token in kept:
        scores = dict(zip(kept.tolist(), perturbed(processed, kept, params.temperature, key, position).tolist(), strict=True))
        gap = scores[pick] - scores[token]
    elif params.temperature == 0.0:
        gap = float(processed[pick]) - float(processed[token])
    else:
        gap = float("inf")
    near = gap <= NEAR_TIE_GAP or _is_near_border(processed, params, key, position, token)
    return Disagreement(position, token, pick, gap, near)


def _is_near_border(processed: Float32Array, params: SamplingParams, key: int, position: int, token: int) -> bool:
    """Whether a hair more or less of top-p or min-p, or of the token's own logit, leads to the answer's token."""
    wider = replace(params, top_p=min(1.0, params.top_p * (1 + NEAR_BORDER_MASS)), min_p=params.min_p * (1 - NEAR_BORDER_MASS))
    tighter = replace(params, top_p=params.top_p * (1 - NEAR_BORDER_MASS), min_p=params.min_p * (1 + NEAR_BORDER_MASS))
    lifted = processed.copy()
    lifted[token] += np.float32(NEAR_TIE_GAP)
    variants = ((processed, wider), (processed, tighter), (lifted, params))
    return any(pick_processed(logits, changed, key, position) == token for logits, changed in variants)
