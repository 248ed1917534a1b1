"""numerics=invariant with two compute threads: an answer's bits still do not depend on who shares its batches.

The number of threads belongs to a process, so a process of its own computes them; its fast twin shows that the sizes are large enough
for a difference to be seen.

pytest tests/unit/test_engine_threads.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fakes_models
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray

NUM_THREADS = 2
TIMEOUT_S = 120.0
NONE: IntArray = np.empty(0, np.int32)
PROMPT: IntArray = np.random.default_rng(1).integers(0, fakes_models.VOCAB, 40).astype(np.int32)
NUM_TOKENS = 4
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 8, "num_key_value_heads": 4}


# kind, numerics, array_rows: 0 keeps the lean forward on torch, else it runs on thin operations
ENGINES = {
    "lean invariant": (EngineKind.LEAN, Numerics.INVARIANT, 0),
    "lean fast": (EngineKind.LEAN, Numerics.FAST, 0),
    "thin invariant": (EngineKind.LEAN, Numerics.INVARIANT, 8),
    "thin fast": (EngineKind.LEAN, Numerics.FAST, 8),
    "transformers invariant": (EngineKind.TRANSFORMERS, Numerics.INVARIANT, 0),
    "transformers fast": (EngineKind.TRANSFORMERS, Numerics.FAST, 0),
}


def answer(engine: Engine, chunk_len: int, num_neighbours: int) -> list[tuple[int, bytes]]:
    """Tokens with the bits of their log-probabilities. The prompt comes in chunks; every step is shared with neighbours' rows."""
    spec = SequenceSpec(SamplingParams(temperature=0.8), NoiseAddress(3), len(PROMPT), 64, 0)
    for sequence in range(num_neighbours + 1):
        engine.open(sequence, spec)
    generator = np.random.default_rng(num_neighbours)
    found: list[tuple[int, bytes]] = []
    fed = 0
    while len(found) < NUM_TOKENS:
        committed = PROMPT[fed : fed + chunk_len] if fed < len(PROMPT) else np.asarray([found[-1][0]], np.int32)
        fed += len(committed)
        wanted = fed >= len(PROMPT)
        own = SequenceRows(0, committed, NONE, NONE, wanted, top_logprobs=4 if wanted else None)
        others = [
            SequenceRows(other, generator.integers(0, fakes_models.VOCAB, 1 + other % 2).astype(np.int32), NONE, NONE)
            for other in range(1, num_neighbours + 1)
        ]
        result = next(one for one in engine.step(StepPlan((*others, own))).results if one.sequence == 0)
        if wanted:
            assert result.logprobs is not None
            found.append((int(result.picks[0]), result.logprobs.chosen.tobytes() + result.logprobs.top.tobytes()))
    for sequence in range(num_neighbours + 1):
        engine.close(sequence)
    return found


def main(directory: str) -> None:
    """Every kind of engine in turn, in this process of NUM_THREADS threads."""
    same = {}
    for name, (kind, numerics, array_rows) in ENGINES.items():
        config = EngineConfig(
            directory,
            kind=kind,
            numerics=numerics,
            num_threads=NUM_THREADS,
            num_blocks=64,
            block_len=16,
            array_rows=array_rows,
            probe=False,
        )
        engine = load_engine(config)
        alone = answer(engine, len(PROMPT), 0)
        shared = [answer(engine, chunk_len, num_neighbours) for chunk_len, num_neighbours in ((len(PROMPT), 3), (7, 0), (13, 9))]
        same[name] = [other == alone for other in shared]
    print(json.dumps({"threads": torch.get_num_threads(), "same": same}))


@pytest.mark.slow
def test_bits_with_two_threads_depend_on_the_batch_in_fast_numerics_only(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path, **WIDE)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(NUM_THREADS),
        "OMP_WAIT_POLICY": "PASSIVE",  # a busy machine's threads would spin at every barrier
        "MKL_NUM_THREADS": str(NUM_THREADS),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run([sys.executable, __file__, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["threads"] == NUM_THREADS
    depending = {name for name, same in seen["same"].items() if not all(same)}
    assert depending == {name for name, (_, numerics, array_rows) in ENGINES.items() if numerics is Numerics.FAST and not array_rows}


if __name__ == "__main__":
    main(*sys.argv[1:])
