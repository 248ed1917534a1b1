"""How the wanted rows of a step are picked on a card, and which of them must be left to the general pick.

Penalties, biases and candidates are left, and so are temperatures too low for float32. Must not know logits.
"""

from __future__ import annotations

import math

import numpy as np

from outrider.engine.card_inputs import CardInputs, HostArray
from outrider.engine.card_upload import as_words
from outrider.engine.step_batch import LongArray, Segment, StepBatch
from outrider.noise.keys import Purpose, key_of
from outrider.noise.reference_pick import min_p_gap

# Colder rows would divide by what float32 cannot hold.
MIN_TEMPERATURE = 1e-6


def fill_rules(inputs: CardInputs[HostArray], batch: StepBatch, wanted: LongArray) -> None:
    """Rules of the wanted rows in order; rows of padding behind them are nobody's."""
    num_wanted = len(wanted)
    inputs.pick_positions[:num_wanted] = batch.positions[wanted] + 1
    begin = 0
    for segment in batch.segments:
        end = begin + segment.num_wanted
        _fill_rule(inputs, slice(begin, end), segment)
        begin = end
    inputs.temperatures[num_wanted:] = math.nan


def _fill_rule(inputs: CardInputs[HostArray], rows: slice, segment: Segment) -> None:
    spec = segment.state.spec
    params = spec.sampling
    inputs.keys[rows] = as_words(np.array([key_of(spec.noise, Purpose.PICK)], np.uint64))
    inputs.temperatures[rows] = math.nan if is_left(segment) else params.temperature
    inputs.top_ks[rows] = params.top_k
    inputs.top_ps[rows] = params.top_p
    inputs.min_p_gaps[rows] = min_p_gap(params)


def is_left(segment: Segment) -> bool:
    """Whether the general pick must decide all of the segment's rows."""
    params = segment.state.spec.sampling
    is_cold = 0.0 < params.temperature < MIN_TEMPERATURE
    return params.has_penalties or bool(params.logit_bias) or segment.rows.num_choices > 0 or is_cold
