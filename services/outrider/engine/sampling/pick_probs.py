"""How sure a model is of its picks: their probabilities, cheap enough for every drafted token.

Under softmax(logits / T) of what biases and penalties make of the logits, as the pick is, but without filters; at T = 0, where the
processed distribution is a point mass and says nothing about confidence, at temperature 1. Must not know how a pick was made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from outrider.types.tree import FloatArray, IntArray

_MIN_TEMPERATURE = 1e-6  # keeps logits / T finite; colder rows are as certain


def pick_probs(logits: Tensor, temperatures: Sequence[float], picks: IntArray) -> FloatArray:  # logits: [num_rows, vocab] float32
    """float32 [num_rows]. logits: processed. temperatures: one a row. picks: int32 [num_rows]."""
    divisors = [1.0 if temperature == 0.0 else max(temperature, _MIN_TEMPERATURE) for temperature in temperatures]
    scaled = logits / torch.tensor(divisors, dtype=torch.float32, device=logits.device)[:, None]
    chosen = scaled.gather(1, torch.from_numpy(picks.astype(np.int64)).to(logits.device)[:, None])[:, 0]
    probs: FloatArray = (chosen - torch.logsumexp(scaled, dim=1)).exp_().cpu().numpy()
    return probs
