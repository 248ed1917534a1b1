"""Which logits of a step's wanted rows penalties and biases change, as the fused pick on a card reads them: row by row, tokens ascending.

What a row has seen is the committed tokens, those of this step among them, and the path from the root to the row. A row that touches more
tokens than there is room for is left to the general pick. Must not know logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.engine.card_inputs import TOUCHED_WORDS, CardInputs, HostArray
from outrider.engine.sampling.penalties import is_touched
from outrider.engine.step_batch import Segment, StepBatch
from outrider.types.sampling import SamplingParams
from outrider.types.tree import IntArray
from outrider_kernels.pick_rows import TouchedTokens
from outrider_kernels.thin_touched import UNSEEN


@dataclass(frozen=True, slots=True)
class _Touches:
    """tokens (ascending), counts (in the output; UNSEEN: biased only): int64 [n]. biases: float64 [n]."""

    tokens: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    biases: npt.NDArray[np.float64]


def touched_tokens(inputs: CardInputs[Tensor]) -> TouchedTokens:
    """The entries of all rows, as views of the inputs."""
    part = inputs.touched
    room = part.shape[1] // TOUCHED_WORDS
    biases = part.view(torch.float64)[:, room:]
    penalty = (inputs.repetitions, inputs.frequencies, inputs.presences)
    return TouchedTokens(inputs.touched_lens, part[:, :room], part[:, room : 2 * room], biases, *penalty)


def fill_touched(inputs: CardInputs[HostArray], batch: StepBatch) -> int:
    """Write the entries of the wanted rows, which are in order. Returns how many leading rows hold any; leaves (temperature NaN) those
    that have no room."""
    inputs.touched_lens[:] = 0
    row, num_filled = 0, 0
    for segment in batch.segments:
        if is_touched(segment.state.spec.sampling):
            for offset, touches in enumerate(_rows_of(segment)):
                _fill(inputs, row + offset, touches, segment.state.spec.sampling)
                num_filled = row + offset + 1
        row += segment.num_wanted
    return num_filled


def _fill(inputs: CardInputs[HostArray], row: int, touches: _Touches, params: SamplingParams) -> None:
    room, length = inputs.touched.shape[1] // TOUCHED_WORDS, len(touches.tokens)
    if length > room:
        inputs.temperatures[row] = math.nan
        return
    own = inputs.touched[row]
    own[:length] = touches.tokens
    own[room : room + length] = touches.counts
    own.view(np.float64)[room : room + length] = touches.biases
    inputs.touched_lens[row] = length
    inputs.repetitions[row] = params.repetition_penalty
    inputs.frequencies[row] = params.frequency_penalty
    inputs.presences[row] = params.presence_penalty


def _rows_of(segment: Segment) -> list[_Touches]:
    """Of each wanted row of a segment."""
    if not segment.num_wanted:
        return []
    committed = _committed(segment)
    return [_with_path(committed, path) if len(path) else committed for path in segment.paths()]


def _committed(segment: Segment) -> _Touches:
    """Of the committed tokens, this step's among them."""
    state = segment.state
    known = state.counted()
    is_penalised = known.params.has_penalties  # else what was seen does not matter
    fresh = segment.rows.committed.astype(np.int64) if is_penalised else np.empty(0, np.int64)
    tokens = np.union1d(known.ids.astype(np.int64), fresh)
    counts, biases = np.full(len(tokens), UNSEEN, np.int64), np.zeros(len(tokens))
    places = np.searchsorted(tokens, known.ids)
    counts[places], biases[places] = known.counts, known.biases
    if len(fresh):
        is_output = np.arange(segment.cached_before, segment.base) >= state.spec.num_prompt
        places = np.searchsorted(tokens, fresh)
        counts[places] = np.maximum(counts[places], 0)
        np.add.at(counts, places, is_output)
    return _Touches(tokens, counts, biases)


def _with_path(before: _Touches, path: IntArray) -> _Touches:
    """After a node's path besides, which is output."""
    tokens, times = np.unique(path.astype(np.int64), return_counts=True)
    places = np.searchsorted(before.tokens, tokens)
    is_new = np.ones(len(tokens), np.bool_)
    inside = places < len(before.tokens)
    is_new[inside] = before.tokens[places[inside]] != tokens[inside]
    counts = before.counts.copy()
    counts[places[~is_new]] = np.maximum(counts[places[~is_new]], 0) + times[~is_new]
    where = places[is_new]
    return _Touches(
        np.insert(before.tokens, where, tokens[is_new]), np.insert(counts, where, times[is_new]), np.insert(before.biases, where, 0.0)
    )
