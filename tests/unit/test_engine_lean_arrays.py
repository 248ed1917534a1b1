"""The numpy way of the lean forward against its torch way, step by step over one random schedule: chunks, trees over trees, several
sequences in a step, rows nobody wants, windows, fragmented caches, and the two ways taking turns on one cache.

Run: pytest tests/unit/test_engine_lean_arrays.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fakes_models
from outrider.engine import array_attention, lean_arrays
from outrider.engine.config import DType, EngineConfig, EngineKind
from outrider.engine.key_range import KeyRange, key_range
from outrider.engine.load import load_engine
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.row_picker import RowPicker
from outrider.engine.step_batch import LongArray, Segment, StepBatch
from outrider.errors import ModelRefused
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceResult, SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray

NONE: IntArray = np.empty(0, np.int32)
MAX_NODES = 14
MAX_LEN = 130
NUM_STEPS = 45
TOLERANCE = 2e-4  # of logits between -5 and 5; two orders of fp32 sums differ by some 1e-6

Captured = list[torch.Tensor]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Captured:
    """Logits of the wanted rows of every step, in order."""
    seen: Captured = []
    original = RowPicker.results

    def spy(self: RowPicker, batch: StepBatch, logits: torch.Tensor) -> tuple[SequenceResult, ...]:
        seen.append(logits.clone())
        return original(self, batch, logits)

    monkeypatch.setattr(RowPicker, "results", spy)
    return seen


def load(directory: Path, arrays: bool, probe: bool = False, array_rows: int = 64) -> PagedEngine:
    """arrays: False keeps the engine on torch. array_rows: longer steps go to torch."""
    settings = EngineConfig(
        str(directory), EngineKind.LEAN, num_blocks=40, block_len=16, max_rows=256,
        array_rows=array_rows if arrays else 0, num_threads=1, probe=probe
    )  # fmt: skip
    engine = load_engine(settings)
    assert isinstance(engine, PagedEngine)
    assert (engine._arrays is not None) == arrays
    return engine


def random_rows(generator: np.random.Generator, engine: PagedEngine, sequence: int, num_live: int) -> tuple[SequenceRows, int]:
    """Rows of one sequence and its live nodes afterwards."""
    num_committed = 0
    if not num_live:
        room = MAX_LEN - MAX_NODES - engine.cached_len(sequence)
        num_committed = min(room, int(generator.choice([1, 1, 1, 2, 7, 30])))
    num_nodes = int(generator.integers(0 if num_committed else 1, MAX_NODES - num_live + 1)) if num_live < MAX_NODES else 0
    parents = [int(generator.integers(-1, num_live + index)) for index in range(num_nodes)]
    tokens = generator.integers(0, fakes_models.VOCAB, num_committed + num_nodes).astype(np.int32)
    committed, nodes = tokens[:num_committed], tokens[num_committed:]
    wanted = bool(generator.random() < 0.75)
    return SequenceRows(sequence, committed, nodes, np.asarray(parents, np.int32), wanted=wanted), num_live + num_nodes


def run_schedule(engine: PagedEngine, seed: int) -> int:
    """How many rows were wanted; every choice comes from the seed, none from the picks."""
    generator = np.random.default_rng(seed)
    greedy = SamplingParams(temperature=0.0)
    for index, num_blocks in enumerate((1, 2, 1, 3, 1)):  # holes, so that a sequence lies in several runs
        engine.open(100 + index, SequenceSpec(greedy, NoiseAddress(0), 0, 16 * num_blocks, 0))
    for index in (0, 2, 3):
        engine.close(100 + index)
    live = dict.fromkeys(range(3), 0)
    for sequence in live:
        engine.open(sequence, SequenceSpec(SamplingParams(temperature=0.8), NoiseAddress(sequence), 0, MAX_LEN, MAX_NODES))
    num_wanted = 0
    for _ in range(NUM_STEPS):
        rows: list[SequenceRows] = []
        for sequence in generator.permutation(3)[: int(generator.integers(1, 4))].tolist():
            full = live[sequence] == MAX_NODES
            if live[sequence] and (full or generator.random() < 0.6):
                tree = engine._sequences.state(sequence).tree
                path = tuple(tree.path_to(int(generator.integers(-1, live[sequence]))))
                fits = engine.cached_len(sequence) + len(path) <= MAX_LEN - MAX_NODES
                kept = engine.keep(sequence, path if fits else (), subtree=bool(generator.random() < 0.4) and fits and bool(path))
                live[sequence] = len(kept)
            if engine.cached_len(sequence) >= MAX_LEN - MAX_NODES - 1 and not live[sequence]:
                engine.truncate(sequence, int(generator.integers(1, 20)))
            if live[sequence] < MAX_NODES:
                part, live[sequence] = random_rows(generator, engine, sequence, live[sequence])
                rows.append(part)
        if rows:
            for result in engine.step(StepPlan(tuple(rows))).results:
                num_wanted += len(result.picks)
    return num_wanted


def largest_difference(left: Captured, right: Captured) -> float:
    assert [part.shape for part in left] == [part.shape for part in right]
    return max(float((one - other).abs().max()) for one, other in zip(left, right, strict=True) if one.numel())


def compare(directory: Path, captured: Captured, seed: int) -> float:
    assert run_schedule(load(directory, arrays=False), seed) > 100
    torch_logits = captured.copy()
    captured.clear()
    run_schedule(load(directory, arrays=True), seed)
    difference = largest_difference(torch_logits, captured)
    captured.clear()
    return difference


@pytest.mark.parametrize("name", fakes_models.LEAN_ARCHITECTURES)
def test_numpy_gives_the_logits_of_torch(name: str, tmp_path: Path, captured: Captured) -> None:
    fakes_models.make_model(name, tmp_path)
    for seed in range(4):
        assert compare(tmp_path, captured, seed) < TOLERANCE


def test_biases_everywhere_and_mixed_windows(tmp_path: Path, captured: Captured) -> None:
    changes: dict[str, Any] = {"sliding_window": 9, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}
    fakes_models.make_model("qwen2", tmp_path, **changes)
    assert load(tmp_path, arrays=True)._forward._sizes.windows == (None, 9)  # type: ignore[attr-defined]
    assert compare(tmp_path, captured, 7) < TOLERANCE


def test_both_ways_may_take_turns_on_one_cache(tmp_path: Path, captured: Captured) -> None:
    fakes_models.make_model("mistral", tmp_path)
    run_schedule(load(tmp_path, arrays=False), 5)
    torch_logits = captured.copy()
    captured.clear()
    run_schedule(load(tmp_path, arrays=True, array_rows=8), 5)
    assert largest_difference(torch_logits, captured) < TOLERANCE


def without_windows(segment: Segment, positions: LongArray, window: int | None) -> KeyRange:
    return key_range(segment, positions, None)


def with_siblings(segment: Segment, positions: LongArray, window: int | None) -> KeyRange:
    found = key_range(segment, positions, window)
    return KeyRange(found.runs, None)


@pytest.mark.parametrize("broken", [without_windows, with_siblings])
def test_a_wrong_mask_would_be_noticed(
    broken: Callable[[Segment, LongArray, int | None], KeyRange], tmp_path: Path, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes_models.make_model("mistral", tmp_path)
    run_schedule(load(tmp_path, arrays=False), 5)
    torch_logits = captured.copy()
    captured.clear()
    monkeypatch.setattr(array_attention, "key_range", broken)
    run_schedule(load(tmp_path, arrays=True), 5)
    assert largest_difference(torch_logits, captured) > 100 * TOLERANCE


@pytest.mark.parametrize("where", ["attend", "logits"])
def test_a_failure_midway_leaves_the_sequence_as_it_was(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes_models.make_model("llama", tmp_path)
    engine = load(tmp_path, arrays=True)
    engine.open(1, SequenceSpec(SamplingParams(), NoiseAddress(4), 0, 60, 8))
    prompt, nodes, parents = np.arange(20, dtype=np.int32), np.array([4, 9, 9], np.int32), np.array([-1, -1, 0], np.int32)
    engine.step(StepPlan((SequenceRows(1, prompt[:10], NONE, NONE, wanted=False),)))
    owner: type[object] = array_attention.ArrayAttention if where == "attend" else lean_arrays._ArrayProjection

    def failing(*_: object) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(owner, "attend" if where == "attend" else "__call__", failing)
        with pytest.raises(MemoryError):
            engine.step(StepPlan((SequenceRows(1, prompt[10:], nodes, parents),)))
    assert engine.cached_len(1) == 10
    retried = engine.step(StepPlan((SequenceRows(1, prompt[10:], nodes, parents),))).results[0].picks.tolist()
    engine.open(2, SequenceSpec(SamplingParams(), NoiseAddress(4), 0, 60, 8))
    assert engine.step(StepPlan((SequenceRows(2, prompt, nodes, parents),))).results[0].picks.tolist() == retried


def test_arrays_are_for_fast_fp32_only(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path)
    for dtype, numerics in ((DType.BFLOAT16, Numerics.FAST), (DType.FLOAT32, Numerics.INVARIANT)):
        config = EngineConfig(str(tmp_path), kind=EngineKind.LEAN, dtype=dtype, numerics=numerics, num_blocks=4, probe=False)
        engine = load_engine(config)
        assert isinstance(engine, PagedEngine)
        assert engine._arrays is None


def test_a_step_of_weights_that_are_no_numbers_is_refused(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"].mul_(float("nan"))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for temperature in (0.0, 1.0):
        engine = load(tmp_path, arrays=True)
        engine.open(1, SequenceSpec(SamplingParams(temperature=temperature), NoiseAddress(4), 0, 60, 8))
        with pytest.raises(ModelRefused, match="largest logit"):
            engine.step(StepPlan((SequenceRows(1, np.arange(5, dtype=np.int32), np.array([3], np.int32), np.array([-1], np.int32)),)))


def test_the_load_time_probe_checks_the_numpy_way_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes_models.make_model("llama", tmp_path)
    load(tmp_path, arrays=True, probe=True)
    original = lean_arrays._gated
    monkeypatch.setattr(lean_arrays, "_gated", lambda gate, up: original(gate, up) * np.float32(1.1))
    with pytest.raises(ModelRefused, match="one by one"):
        load(tmp_path, arrays=True, probe=True)
