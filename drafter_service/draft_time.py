"""What a drafted token costs, measured once at start: a coordinator would otherwise have to guess whether this drafter is worth naming.

Knows an engine by its protocol. Must not know sessions. The scheduler follows it with what drafting really takes.
"""

from __future__ import annotations

import numpy as np

from outrider.engine.contract import Engine
from outrider.errors import DoesNotFit, Overloaded
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray

NUM_PROMPT = 16
NUM_REPEATS = 3
MEASURING_SEQUENCE = 0  # sessions count from 1
_NOTHING: IntArray = np.empty(0, np.int32)


def measure_token_us(engine: Engine) -> float:
    """Microseconds of a step of one row, the quickest of NUM_REPEATS; 0 = unknown, where the cache is too small to measure in. Call it
    in the thread that owns the engine; nothing is held afterwards."""
    spec = SequenceSpec(SamplingParams(temperature=0.0), NoiseAddress(0), NUM_PROMPT, NUM_PROMPT + NUM_REPEATS + 1, 0)
    try:
        engine.open(MEASURING_SEQUENCE, spec)
    except (DoesNotFit, Overloaded):
        return 0.0
    try:
        _step_us(engine, NUM_PROMPT)  # warms the shapes, and gives the sequence a context
        return min(_step_us(engine, 1) for _ in range(NUM_REPEATS))
    finally:
        engine.close(MEASURING_SEQUENCE)


def _step_us(engine: Engine, num_committed: int) -> float:
    rows = SequenceRows(MEASURING_SEQUENCE, np.zeros(num_committed, np.int32), _NOTHING, _NOTHING, acceptance="coupled")
    result = engine.step(StepPlan((rows,)))
    engine.keep(MEASURING_SEQUENCE, ())
    return float(max(1, result.step_us))
