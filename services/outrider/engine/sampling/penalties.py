"""Logit bias and penalties along tree paths, touching only the logits of tokens that were seen.

A sequence's counts over committed tokens are kept once and grow with each commit; a tree row adds its own path on top, sparsely.
So a step costs O(seen tokens + path tokens), never O(vocab * history). Arithmetic and order are those of
outrider.noise.reference_pick.processed_logits: float64 per touched logit, rounded once. Must not know sampling beyond penalties.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.types.sampling import SamplingParams

_INITIAL_CAPACITY = 64


class PenaltyState:
    """Which tokens a sequence has committed, and how often in its output; prompt and output apart."""

    def __init__(self, prompt: Iterable[int] = (), output: Iterable[int] = ()) -> None:
        self._slots: dict[int, int] = {}
        self._ids = np.empty(_INITIAL_CAPACITY, np.int64)
        self._output_counts = np.zeros(_INITIAL_CAPACITY, np.int32)
        for token in prompt:
            self._slot(int(token))
        self.append(output)

    def append(self, output: Iterable[int]) -> None:
        """Count newly committed output tokens."""
        for token in output:
            slot = self._slot(int(token))
            self._output_counts[slot] += 1

    @property
    def seen_ids(self) -> npt.NDArray[np.int64]:
        """Distinct ids of prompt and output, int64 [num_seen], in order of first sight (a view: valid until the next append)."""
        return self._ids[: len(self._slots)]

    @property
    def output_counts(self) -> npt.NDArray[np.int32]:
        """How often the output holds each of seen_ids, int32 [num_seen]; 0 for prompt-only ids (a view)."""
        return self._output_counts[: len(self._slots)]

    def output_count(self, token: int) -> int:
        """How often the committed output holds this token."""
        slot = self._slots.get(token)
        return 0 if slot is None else int(self._output_counts[slot])

    def _slot(self, token: int) -> int:
        slot = self._slots.get(token)
        if slot is None:
            slot = len(self._slots)
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._output_counts = np.concatenate([self._output_counts, np.zeros_like(self._output_counts)])
            self._slots[token] = slot
            self._ids[slot] = token
        return slot


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
    touched = [entry.params.has_penalties or bool(entry.params.logit_bias) for entry in rows]
    if not any(touched):
        return logits
    result = logits.clone()
    begin = 0
    for entry, is_touched in zip(rows, touched, strict=True):
        end = begin + entry.num_rows
        if is_touched:
            _apply_committed(logits[begin:end], result[begin:end], entry)
            _apply_paths(logits[begin:end], result[begin:end], entry)
        begin = end
    return result


def _apply_committed(logits: Tensor, result: Tensor, rows: PenalisedRows) -> None:
    """Write every logit that bias or the committed history touches, for all rows of a sequence at once."""
    params, state = rows.params, rows.penalties or PenaltyState()
    biases = dict(params.logit_bias)
    seen = state.seen_ids if params.has_penalties else np.empty(0, np.int64)
    counts = state.output_counts if params.has_penalties else np.empty(0, np.int32)
    known = set(seen.tolist())
    unseen_biased = [token for token in biases if token not in known]
    ids = np.concatenate([seen, np.array(unseen_biased, np.int64)])
    if not len(ids):
        return
    bias = torch.tensor([biases.get(token, 0.0) for token in ids.tolist()], dtype=torch.float64, device=logits.device)
    num_outputs = torch.zeros(len(ids), dtype=torch.float64, device=logits.device)
    num_outputs[: len(seen)] = torch.from_numpy(counts.astype(np.float64)).to(logits.device)
    is_seen = torch.arange(len(ids), device=logits.device) < len(seen)
    columns = torch.from_numpy(ids).to(logits.device)
    result[:, columns] = _penalised(logits[:, columns], bias, is_seen, num_outputs, params)


def _apply_paths(logits: Tensor, result: Tensor, rows: PenalisedRows) -> None:
    """Rewrite, row by row, the logits of tokens on the row's own path; their counts are committed plus path."""
    params, state = rows.params, rows.penalties or PenaltyState()
    if not params.has_penalties:
        return
    entries = [
        (row, token, state.output_count(token) + count)
        for row, path in enumerate(rows.paths)
        for token, count in Counter(int(token) for token in path).items()
    ]
    if not entries:
        return
    biases = dict(params.logit_bias)
    table = torch.tensor(entries, dtype=torch.int64, device=logits.device)
    row_index, columns, num_outputs = table[:, 0], table[:, 1], table[:, 2].to(torch.float64)
    bias = torch.tensor([biases.get(token, 0.0) for _, token, _ in entries], dtype=torch.float64, device=logits.device)
    is_seen = torch.ones(len(entries), dtype=torch.bool, device=logits.device)
    result[row_index, columns] = _penalised(logits[row_index, columns], bias, is_seen, num_outputs, params)


def _penalised(raw: Tensor, bias: Tensor, is_seen: Tensor, num_outputs: Tensor, params: SamplingParams) -> Tensor:
    """float32 of the touched logits; the last dimension of raw is that of the other tensors."""
    value = raw.to(torch.float64) + bias
    repeated = torch.where(value > 0.0, value / params.repetition_penalty, value * params.repetition_penalty)
    value = torch.where(is_seen, repeated, value)
    value = value - params.frequency_penalty * num_outputs
    value = value - params.presence_penalty * (num_outputs > 0).to(torch.float64)
    return value.to(torch.float32)
