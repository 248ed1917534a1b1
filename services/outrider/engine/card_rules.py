"""How the wanted rows of a step are picked on a card, and which of them must be left to the general pick.

Candidates and second choices are left, and so are temperatures too low for float32. Penalties and biases are card_penalties.py's. Must not
know logits.
"""

from __future__ import annotations

import math

import numpy as np

from outrider.engine.card_inputs import CardInputs, HostArray
from outrider.engine.step_batch import LongArray, Segment, StepBatch
from outrider.noise.keys import Purpose, key_of
from outrider.noise.reference_pick import min_p_gap

# Colder rows would divide by what float32 cannot hold.
MIN_TEMPERATURE = 1e-6


def fill_rules(inputs: CardInputs[HostArray], batch: StepBatch, wanted: LongArray) -> None:
    """Rules of the wanted rows in order; rows of padding behind them are nobody's."""
    num_wanted = len(wanted)
    inputs.pick_positions[:num_wanted] = batch.positions[wanted] + 1
    rules = [rule for segment in batch.segments if segment.num_wanted for rule in [_rule_of(segment)] * segment.num_wanted]
    if rules:
        keys, temperatures, top_ks, top_ps, min_p_gaps = zip(*rules, strict=True)
        inputs.keys[:num_wanted] = np.array(keys, np.uint64).view(np.int64)
        inputs.temperatures[:num_wanted] = temperatures
        inputs.top_ks[:num_wanted] = top_ks
        inputs.top_ps[:num_wanted] = top_ps
        inputs.min_p_gaps[:num_wanted] = min_p_gaps
    inputs.temperatures[num_wanted:] = math.nan


def _rule_of(segment: Segment) -> tuple[int, float, int, float, float]:
    """Key, temperature, top-k, top-p and the gap of min-p."""
    spec = segment.state.spec
    params = spec.sampling
    temperature = math.nan if is_left(segment) else params.temperature
    return key_of(spec.noise, Purpose.PICK), temperature, params.top_k, params.top_p, min_p_gap(params)


def is_left(segment: Segment) -> bool:
    """Whether the general pick must decide all of the segment's rows."""
    params = segment.state.spec.sampling
    is_cold = 0.0 < params.temperature < MIN_TEMPERATURE
    return segment.rows.num_choices > 0 or segment.rows.seconds or is_cold
