"""An interpreter that ends while an engine thread of it still steps ends as any other: nothing is freed under that thread.

Run: pytest -m slow tests/integration/test_engine_thread_at_exit.py
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

DEADLINE_S = 300.0
NUM_TIMES = 4  # one in two went wrong
PROGRAM = """
import threading
import numpy as np
from outrider.engine.config import EngineConfig
from outrider.engine.load import load_engine
from outrider.engine.round_ahead import compute_plain_ahead
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider_models.paths import model_dir

begun = threading.Event()
none = np.empty(0, np.int32)


def serve():
    engine = load_engine(EngineConfig(str(model_dir("ref-large")), num_threads=2, num_blocks=130, probe=False))
    compute_plain_ahead(engine)
    engine.open(1, SequenceSpec(SamplingParams(temperature=0.0), NoiseAddress(0), 3, 2000, 0))
    committed = np.array([5, 6, 7], np.int32)
    for step in range(1900):
        (result,) = engine.step(StepPlan((SequenceRows(1, committed, none, none, acceptance="coupled"),))).results
        committed = np.array([result.verdict.emitted], np.int32)
        if step == 20:
            begun.set()


threading.Thread(target=serve, daemon=True).start()
assert begun.wait(200.0)
"""


def test_an_interpreter_may_end_while_its_engine_thread_steps() -> None:
    for _ in range(NUM_TIMES):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert (done.returncode, done.stderr) == (0, "")
