"""Most picks of a step before the general pick is asked: compiled where that can be, else row by row in numpy.

Rows of CPU logits are decided as `pick` decides them, or left open: by numpy those that nothing but temperature, top-p and min-p bears on.
The probability comes from the same exponentials. Must not know segments, choices or acceptance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from outrider.engine.sampling.penalties import is_touched
from outrider.engine.sampling.penalty_state import PenaltyState
from outrider.engine.sampling.rows import RowSampling
from outrider.engine.sampling.single_pick import pick_single
from outrider.noise.reference_pick import min_p_gap
from outrider.types.sampling import SamplingParams
from outrider.types.tree import FloatArray, IntArray
from outrider_kernels.thin_pick import LEFT, MAX_TOP_K, PickRule, ThinPick, ThinPicks

# Rows of a sequence that numpy picks one by one; for more the general pick's bookkeeping is the smaller part.
MAX_SINGLE_ROWS = 16


@dataclass(frozen=True, slots=True)
class QuickRows:
    """One sequence's rows. with_prob: whether their probabilities are wanted; with_second: their next best. is_open: somebody else picks
    them."""

    sampling: RowSampling
    with_prob: bool
    with_second: bool
    is_open: bool


def quick_picks(logits: Tensor, groups: Sequence[QuickRows], picker: ThinPick | None) -> ThinPicks:
    """LEFT where the general pick must decide, as numpy does wherever seconds are wanted.

    logits: float32 [rows, vocab]; the groups' rows follow one another.
    """
    if len(logits) and logits.device.type == "cpu" and picker is not None:
        rules = [(_rule_of(rows), rows.sampling.positions.tolist()) for rows in groups]
        paths = {at: [np.asarray(path, np.int32) for path in rows.sampling.paths] for at, rows in enumerate(groups) if rows.sampling.paths}
        return picker.run(logits.numpy(), rules, paths)
    picks, probs = np.full(len(logits), LEFT, np.int32), np.full(len(logits), np.nan, np.float32)
    begin = 0
    for rows in groups:
        end = begin + rows.sampling.num_rows
        if logits.device.type == "cpu" and not (rows.is_open or rows.with_second):
            _pick_singly(logits[begin:end].numpy(), rows, picks[begin:end], probs[begin:end])
        begin = end
    return ThinPicks(picks, probs)


def pick_rule(params: SamplingParams, key: int, with_prob: bool, with_second: bool = False) -> PickRule:
    """The compiled pick's rule, but for penalties and biases; a top-k beyond its own leaves rows, but for greedy ones."""
    is_left = params.top_k > MAX_TOP_K and params.temperature > 0.0
    asked = params.top_p, min_p_gap(params), with_prob, with_second
    return PickRule(key, math.nan if is_left else params.temperature, *asked, 0 if is_left else params.top_k)


def _rule_of(rows: QuickRows) -> PickRule:
    if rows.is_open:
        return PickRule(0, math.nan)
    sampling = rows.sampling
    rule = pick_rule(sampling.params, sampling.key, rows.with_prob, rows.with_second)
    if not is_touched(sampling.params):
        return rule
    return replace(rule, touched=(sampling.penalties or PenaltyState(sampling.params)).touched)


def _pick_singly(logits: FloatArray, rows: QuickRows, picks: IntArray, probs: FloatArray) -> None:
    """A sequence's rows one after another, where they are few; one that stays open leaves all: they cost the general pick little more."""
    sampling, params = rows.sampling, rows.sampling.params
    is_argmax_of_many = params.temperature == 0.0 and len(logits) > 1  # one argmax over all rows is cheaper
    if len(logits) > MAX_SINGLE_ROWS or is_touched(params) or is_argmax_of_many:
        return
    for place, (row, position) in enumerate(zip(logits, sampling.positions.tolist(), strict=True)):
        single = pick_single(row, params, sampling.key, position, rows.with_prob)
        if single is None:
            picks[:place], probs[:place] = LEFT, np.nan
            return
        picks[place], probs[place] = single.token, single.prob
