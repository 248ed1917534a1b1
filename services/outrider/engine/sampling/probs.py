"""The exact processed distribution of each row, for the rejection rule and for tests; not on the path of the default rule.

Rows without filters are one float64 softmax; rows with filters take their support from the reference itself, since a distribution that
is judged by ratios must not depend on a shortcut. Must not know noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.engine.sampling.penalties import apply_penalties
from outrider.engine.sampling.rows import RowSampling
from outrider.noise.reference_pick import reference_probs
from outrider.types.sampling import SamplingParams


def processed_probs(logits: Tensor, rows: Sequence[RowSampling]) -> Tensor:  # logits: [num_rows, vocab] float32
    """float64 [num_rows, vocab]: what the pick samples from, after bias, penalties, temperature and filters; one-hot at T = 0."""
    processed = apply_penalties(logits, rows)
    result = torch.empty(processed.shape, dtype=torch.float64, device=processed.device)
    begin = 0
    for entry in rows:
        part = slice(begin, begin + entry.num_rows)
        result[part] = _probs_of_rows(processed[part], entry.params)
        begin += entry.num_rows
    return result


def is_filtered(params: SamplingParams) -> bool:
    """Whether some tokens may be left out of the distribution."""
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def _probs_of_rows(processed: Tensor, params: SamplingParams) -> Tensor:
    if params.temperature == 0.0:
        return torch.nn.functional.one_hot(processed.argmax(dim=1), processed.shape[1]).to(torch.float64)
    if is_filtered(params):
        probs = [torch.from_numpy(reference_probs(row, params)) for row in processed.cpu().numpy()]
        return torch.stack(probs).to(processed.device)
    wide = processed.to(torch.float64)
    return torch.softmax((wide - wide.amax(dim=1, keepdim=True)) / params.temperature, dim=1)
