"""What a drafted token costs and what reading costs, measured once at start: a coordinator would otherwise have to guess whether this
drafter is worth naming, and what it saves to name one that has read a prefix before.

Knows an engine by its protocol. Must not know sessions. The scheduler follows the first with what drafting really takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from outrider.drafting.model_source import PREFILL_SHARE
from outrider.engine.contract import Engine
from outrider.errors import DoesNotFit, Overloaded
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray

NUM_PROMPT = 16
NUM_REPEATS = 3
# A prompt's rows in one step: as many as are read beside others' drafts (PREFILL_SHARE), the dearest way to read a long one.
READ_ROWS = PREFILL_SHARE
MEASURING_SEQUENCE = 0  # sessions count from 1
_NOTHING: IntArray = np.empty(0, np.int32)


def measure_token_us(engine: Engine) -> float:
    """Microseconds of a step of one row, the quickest of NUM_REPEATS; 0 = unknown, where the cache is too small to measure in. Call it
    in the thread that owns the engine; nothing is held afterwards."""
    with _sequence(engine, NUM_PROMPT, NUM_REPEATS) as is_open:
        if not is_open:
            return 0.0
        _step_us(engine, NUM_PROMPT)  # warms the shapes, and gives the sequence a context
        return min(_step_us(engine, 1) for _ in range(NUM_REPEATS))


def measure_read_us(engine: Engine, *, compiles: bool = False) -> float:
    """Microseconds a token of a step that reads READ_ROWS of a prompt, or as many as the engine takes; 0 and where to call it: as above.
    One step only: a large model on a small machine takes seconds for it. compiles: the first step of so many rows compiles its kernels, as
    on a card, and a second one is measured."""
    num_rows = min(READ_ROWS, engine.limits.max_rows)
    read_us = 0.0
    for _ in range(2 if compiles else 1):
        with _sequence(engine, num_rows) as is_open:
            read_us = _step_us(engine, num_rows) / num_rows if is_open else 0.0
    return read_us


@contextmanager
def _sequence(engine: Engine, num_prompt: int, num_more: int = 0) -> Iterator[bool]:
    """Room for so many tokens; False where there is none."""
    spec = SequenceSpec(SamplingParams(temperature=0.0), NoiseAddress(0), num_prompt, num_prompt + num_more + 1, 0)
    try:
        engine.open(MEASURING_SEQUENCE, spec)
    except (DoesNotFit, Overloaded):
        yield False
        return
    try:
        yield True
    finally:
        engine.close(MEASURING_SEQUENCE)


def _step_us(engine: Engine, num_committed: int) -> float:
    rows = SequenceRows(MEASURING_SEQUENCE, np.zeros(num_committed, np.int32), _NOTHING, _NOTHING, acceptance="coupled")
    result = engine.step(StepPlan((rows,)))
    engine.keep(MEASURING_SEQUENCE, ())
    return float(max(1, result.step_us))
