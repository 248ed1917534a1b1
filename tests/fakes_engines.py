"""Every implementation of the Engine seam, small, for the contract tests; and what those do to engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import fakes_models
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.contract import Engine, EngineLimits
from outrider.engine.load import load_engine
from outrider.engine.replay_engine import ReplayEngine, ReplayScript, replay_identity
from outrider.types.identity import Numerics
from outrider.types.step import SequenceResult, SequenceRows, StepPlan
from outrider.types.tree import IntArray

VOCAB = fakes_models.VOCAB
NUM_BLOCKS = 24
BLOCK_LEN = 16
MAX_ROWS = 64
NONE: IntArray = np.empty(0, np.int32)


def _replay(_: Path) -> Engine:
    text = np.random.default_rng(5).integers(0, VOCAB, 80).tolist()
    limits = EngineLimits(MAX_ROWS, BLOCK_LEN, NUM_BLOCKS, 512, prefix_cache=True)
    return ReplayEngine(replay_identity("fixture", VOCAB, VOCAB - 1, 512), limits, ReplayScript(text, VOCAB - 1))


def _model(kind: EngineKind, numerics: Numerics) -> Callable[[Path], Engine]:
    def make(directory: Path) -> Engine:
        if not (directory / "config.json").exists():
            fakes_models.make_model("llama", directory)
        config = EngineConfig(
            str(directory), kind=kind, numerics=numerics, num_blocks=NUM_BLOCKS, block_len=BLOCK_LEN, max_rows=MAX_ROWS, probe=False
        )
        return load_engine(config)

    return make


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "replay": _replay,
    "transformers_fast": _model(EngineKind.TRANSFORMERS, Numerics.FAST),
    "transformers_invariant": _model(EngineKind.TRANSFORMERS, Numerics.INVARIANT),
    "lean_fast": _model(EngineKind.LEAN, Numerics.FAST),
    "lean_invariant": _model(EngineKind.LEAN, Numerics.INVARIANT),
}


def ints(*numbers: int) -> IntArray:
    return np.asarray(numbers, np.int32)


def feed(engine: Engine, sequence: int, committed: IntArray = NONE, tokens: IntArray = NONE, parents: IntArray = NONE) -> SequenceResult:
    return engine.step(StepPlan((SequenceRows(sequence, committed, tokens, parents),))).results[0]


@contextmanager
def results_fail(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A step raises at its very end, when everything of it has been computed and counted."""
    owner, name = (engine, "_result") if isinstance(engine, ReplayEngine) else (engine._picker, "results")  # type: ignore[attr-defined]
    original = getattr(owner, name)

    def fail(*arguments: object) -> None:
        original(*arguments)
        raise RuntimeError("spoilt")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        with pytest.raises(RuntimeError, match="spoilt"):
            yield
