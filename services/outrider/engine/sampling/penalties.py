"""Logit bias and penalties along tree paths, touching only the logits of tokens that were seen.

A sequence's counts over committed tokens are kept (penalty_state.py); a tree row adds its own path on top, sparsely.
So a step costs O(seen tokens + path tokens), never O(vocab * history). Arithmetic and order are those of
outrider.noise.reference_pick.processed_logits: float64 per touched logit, rounded once. Must not know sampling beyond penalties.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from outrider.engine.sampling.penalty_state import PenaltyState
from outrider.types.sampling import SamplingParams


class PenalisedRows(Protocol):
    """What penalties must know of a sequence's rows; RowSampling is one."""

    @property
    def params(self) -> SamplingParams:
        """Penalties and bias to apply."""
        ...

    @property
    def penalties(self) -> PenaltyState | None:
        """Committed counts."""
        ...

    @property
    def paths(self) -> tuple[Sequence[int], ...]:
        """Tokens beyond the committed ones, per row."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows in the logits matrix."""
        ...


def apply_penalties(logits: Tensor, rows: Sequence[PenalisedRows]) -> Tensor:  # logits: [num_rows, vocab] float32
    """The processed logits: `logits` itself when no row has a penalty or bias, else a changed copy."""
    if not any(is_touched(entry.params) for entry in rows):
        return logits
    result = logits.clone()
    begin = 0
    for entry in rows:
        end = begin + entry.num_rows
        if is_touched(entry.params):
            _apply_committed(logits[begin:end], result[begin:end], entry)
            _apply_paths(logits[begin:end], result[begin:end], entry)
        begin = end
    return result


def is_touched(params: SamplingParams) -> bool:
    """Whether some logits are changed before a token is picked."""
    return params.has_penalties or bool(params.logit_bias)


def _apply_committed(logits: Tensor, result: Tensor, rows: PenalisedRows) -> None:
    """Write every logit that bias or the committed history touches, for all rows of a sequence at once."""
    state = rows.penalties or PenaltyState(rows.params)
    if not len(state.ids):
        return
    columns = torch.from_numpy(state.ids.astype(np.int64)).to(logits.device)
    counts = torch.from_numpy(state.counts.astype(np.float64)).to(logits.device)
    bias = torch.from_numpy(state.biases).to(logits.device)
    result[:, columns] = _penalised(logits[:, columns], bias, counts, rows.params)


def _apply_paths(logits: Tensor, result: Tensor, rows: PenalisedRows) -> None:
    """Rewrite, row by row, the logits of tokens on the row's own path; their counts are committed plus path."""
    params, state = rows.params, rows.penalties or PenaltyState(rows.params)
    if not params.has_penalties:
        return
    entries = [
        (row, token, state.output_count(token) + count)
        for row, path in enumerate(rows.paths)
        for token, count in Counter(int(token) for token in path).items()
    ]
    if not entries:
        return
    table = torch.tensor(entries, dtype=torch.int64, device=logits.device)
    row_index, columns, counts = table[:, 0], table[:, 1], table[:, 2].to(torch.float64)
    bias = torch.tensor([state.bias(token) for _, token, _ in entries], dtype=torch.float64, device=logits.device)
    result[row_index, columns] = _penalised(logits[row_index, columns], bias, counts, params)


def _penalised(raw: Tensor, bias: Tensor, counts: Tensor, params: SamplingParams) -> Tensor:
    """float32 of the touched logits; the last dimension of raw is that of the other tensors. counts: float64, in the output; negative: not
    seen at all."""
    value = raw.to(torch.float64) + bias
    repeated = torch.where(value > 0.0, value / params.repetition_penalty, value * params.repetition_penalty)
    value = torch.where(counts >= 0.0, repeated, value)
    value = value - params.frequency_penalty * counts.clamp(min=0.0)
    value = value - params.presence_penalty * (counts > 0.0).to(torch.float64)
    return value.to(torch.float32)
