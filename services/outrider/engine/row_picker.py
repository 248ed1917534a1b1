"""From the wanted rows' logits to results: the pick, candidates, logprobs and the verdict of the named acceptance rule.

Knows which position and which history each row has: the token after a row at position t is t + 1, and a node's history is the committed
tokens and its own path. Must not know models or the cache.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outrider.engine.sampling.penalties import PenaltyState
from outrider.engine.sampling.pick import pick
from outrider.engine.sampling.rows import RowSampling
from outrider.engine.sequence_state import SequenceState
from outrider.engine.step_batch import Segment, StepBatch
from outrider.noise.keys import Purpose, key_of
from outrider.types.step import SequenceResult


class RowPicker:
    """Picks at wanted rows. num_ids: emittable ids; columns beyond are padding. missing_ids: ids below that stand for nothing."""

    def __init__(self, num_ids: int, device: str, missing_ids: tuple[int, ...] = ()) -> None:
        self._num_ids = num_ids
        self._missing = torch.tensor(missing_ids, dtype=torch.int64, device=device) if missing_ids else None

    def results(self, batch: StepBatch, logits: Tensor) -> tuple[SequenceResult, ...]:
        """One result per segment, in order. logits: float32 [wanted rows, num_logits]."""
        logits = logits[:, : self._num_ids]
        if self._missing is not None:
            logits = logits.index_fill(1, self._missing, -torch.inf)
        rows = [row_sampling(segment, batch) for segment in batch.segments if segment.num_wanted]
        picks = pick(logits, rows).numpy().astype(np.int32) if rows else np.empty(0, np.int32)
        results = []
        begin = 0
        for segment in batch.segments:
            end = begin + segment.num_wanted
            results.append(SequenceResult(segment.rows.sequence, picks[begin:end]))
            begin = end
        return tuple(results)


def row_sampling(segment: Segment, batch: StepBatch) -> RowSampling:
    """The sampling of a segment's wanted rows."""
    spec = segment.state.spec
    params = spec.sampling
    positions = batch.positions[segment.wanted_begin : segment.end] + 1
    if not params.has_penalties:
        return RowSampling(params, key_of(spec.noise, Purpose.PICK), positions)
    tree = segment.state.tree
    paths: list[list[int]] = [[]] if segment.num_committed else []
    paths += [
        tree.tokens[tree.path_to(node)].tolist() for node in range(segment.live_before, segment.live_before + len(segment.rows.tokens))
    ]
    return RowSampling(params, key_of(spec.noise, Purpose.PICK), positions, penalties(segment.state), tuple(paths))


def penalties(state: SequenceState) -> PenaltyState:
    """Counts over the committed tokens, grown with the commits and rebuilt after a truncation."""
    history = state.committed
    num_prompt = state.spec.num_prompt
    if state.penalties is None or state.counted_len > len(history) or state.counted_len < num_prompt:
        state.penalties = PenaltyState(history[:num_prompt].tolist(), history[num_prompt:].tolist())
    else:
        state.penalties.append(history[state.counted_len :].tolist())
    state.counted_len = len(history)
    return state.penalties
