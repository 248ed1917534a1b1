"""The ways of the lean forward for few rows (numpy, thin products) against its torch way, step by step over one random schedule: chunks,
trees over trees, several sequences in a step, rows nobody wants, windows, fragmented caches, and two ways taking turns on one cache.

Run: pytest tests/unit/test_engine_lean_arrays.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fakes_models
from outrider.engine import array_attention, lean_arrays, lean_engine, lean_thin
from outrider.engine.config import DType, EngineConfig, EngineKind
from outrider.engine.key_range import KeyRange, key_range
from outrider.engine.lean_arrays import LeanArrays
from outrider.engine.lean_thin import LeanThin
from outrider.engine.load import load_engine
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.row_picker import RowPicker
from outrider.engine.step_batch import LongArray, Segment, StepBatch
from outrider.errors import ModelRefused
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceResult, SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import FloatArray, IntArray
from outrider_kernels.native_library import NativeUnavailable
from outrider_kernels.thin_product import ThinProduct
from outrider_kernels.thin_program import ThinProgram
from outrider_kernels.thin_team import takes_bfloat16

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

    def spy(self: RowPicker, batch: StepBatch, logits: torch.Tensor | FloatArray) -> tuple[SequenceResult, ...]:
        seen.append(torch.as_tensor(logits).clone())
        return original(self, batch, logits)

    monkeypatch.setattr(RowPicker, "results", spy)
    return seen


WAYS: dict[str, Any] = {"torch": type(None), "numpy": LeanArrays, "thin": LeanThin}
FEW_ROWS = ["numpy", "thin"]


def load(directory: Path, way: str, probe: bool = False, array_rows: int = 64, dtype: DType = DType.FLOAT32) -> PagedEngine:
    """way: one of WAYS. array_rows: longer steps go to torch, or in parts."""
    settings = EngineConfig(
        str(directory), EngineKind.LEAN, dtype, num_blocks=40, block_len=16, max_rows=256,
        array_rows=0 if way == "torch" else array_rows, thin_rows=array_rows, num_threads=1, probe=probe, thin_products=way == "thin"
    )  # fmt: skip
    engine = load_engine(settings)
    assert isinstance(engine, PagedEngine)
    assert isinstance(engine._arrays, WAYS[way])
    engine._lone = None  # its logits are nowhere to be seen; test_engine_lone_step.py compares it with this way
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


def mean_square(left: Captured, right: Captured) -> float:
    """Of the differences."""
    return float(torch.cat([(one - other).double().flatten() for one, other in zip(left, right, strict=True)]).square().mean())


def compare(directory: Path, way: str, captured: Captured, seed: int) -> float:
    assert run_schedule(load(directory, "torch"), seed) > 100
    torch_logits = captured.copy()
    captured.clear()
    run_schedule(load(directory, way), seed)
    difference = largest_difference(torch_logits, captured)
    captured.clear()
    return difference


@pytest.mark.parametrize("way", FEW_ROWS)
@pytest.mark.parametrize("name", fakes_models.LEAN_ARCHITECTURES)
def test_few_rows_have_the_logits_of_torch(name: str, way: str, tmp_path: Path, captured: Captured) -> None:
    fakes_models.make_model(name, tmp_path, hidden_size=64)
    for seed in range(2):
        assert compare(tmp_path, way, captured, seed) < TOLERANCE


@pytest.mark.parametrize("way", FEW_ROWS)
def test_biases_everywhere_and_mixed_windows(way: str, tmp_path: Path, captured: Captured) -> None:
    changes: dict[str, Any] = {
        "sliding_window": 9,
        "use_sliding_window": True,
        "layer_types": ["full_attention", "sliding_attention"],
        "hidden_size": 64,
    }
    fakes_models.make_model("qwen2", tmp_path, **changes)
    assert load(tmp_path, way)._forward._sizes.windows == (None, 9)  # type: ignore[attr-defined]
    assert compare(tmp_path, way, captured, 7) < TOLERANCE


@pytest.mark.parametrize("way", FEW_ROWS)
def test_long_steps_go_to_torch_or_in_parts(way: str, tmp_path: Path, captured: Captured) -> None:
    """numpy leaves them to torch, on the same cache; thin operations take them that many at a time."""
    fakes_models.make_model("mistral", tmp_path)
    run_schedule(load(tmp_path, "torch"), 5)
    torch_logits = captured.copy()
    captured.clear()
    run_schedule(load(tmp_path, way, array_rows=8), 5)
    assert largest_difference(torch_logits, captured) < TOLERANCE


def without_windows(segment: Segment, positions: LongArray, window: int | None) -> KeyRange:
    return key_range(segment, positions, None)


def with_siblings(segment: Segment, positions: LongArray, window: int | None) -> KeyRange:
    found = key_range(segment, positions, window)
    return KeyRange(found.runs, None)


@pytest.mark.parametrize(("way", "reader"), [("numpy", array_attention), ("thin", lean_thin)])
@pytest.mark.parametrize("broken", [without_windows, with_siblings])
def test_a_wrong_mask_would_be_noticed(
    broken: Callable[[Segment, LongArray, int | None], KeyRange],
    way: str,
    reader: ModuleType,
    tmp_path: Path,
    captured: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fakes_models.make_model("mistral", tmp_path)
    run_schedule(load(tmp_path, "torch"), 5)
    torch_logits = captured.copy()
    captured.clear()
    monkeypatch.setattr(reader, "key_range", broken)
    run_schedule(load(tmp_path, way), 5)
    assert largest_difference(torch_logits, captured) > 100 * TOLERANCE


FAILING = {
    "attention of numpy": (array_attention.ArrayAttention, "attend", "numpy"),
    "a product of numpy": (lean_arrays._ArrayProjection, "__call__", "numpy"),
    "thin layers": (ThinProgram, "run", "thin"),
    "the thin head": (ThinProduct, "run", "thin"),
}


@pytest.mark.parametrize("where", list(FAILING))
def test_a_failure_midway_leaves_the_sequence_as_it_was(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    owner, method, way = FAILING[where]
    engine = load(tmp_path, way)
    engine.open(1, SequenceSpec(SamplingParams(), NoiseAddress(4), 0, 60, 8))
    prompt, nodes, parents = np.arange(20, dtype=np.int32), np.array([4, 9, 9], np.int32), np.array([-1, -1, 0], np.int32)
    engine.step(StepPlan((SequenceRows(1, prompt[:10], NONE, NONE, wanted=False),)))

    def failing(*_: object) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, failing)
        with pytest.raises(MemoryError):
            engine.step(StepPlan((SequenceRows(1, prompt[10:], nodes, parents),)))
    assert engine.cached_len(1) == 10
    retried = engine.step(StepPlan((SequenceRows(1, prompt[10:], nodes, parents),))).results[0].picks.tolist()
    engine.open(2, SequenceSpec(SamplingParams(), NoiseAddress(4), 0, 60, 8))
    assert engine.step(StepPlan((SequenceRows(2, prompt, nodes, parents),))).results[0].picks.tolist() == retried


@pytest.mark.parametrize(
    ("dtype", "numerics", "thin_products", "expected"),
    [
        (DType.BFLOAT16, Numerics.FAST, False, None),
        (DType.BFLOAT16, Numerics.FAST, True, LeanThin if takes_bfloat16() else None),
        (DType.BFLOAT16, Numerics.INVARIANT, True, LeanThin if takes_bfloat16() else None),
        (DType.FLOAT16, Numerics.FAST, True, None),
        (DType.FLOAT32, Numerics.INVARIANT, False, None),
        (DType.FLOAT32, Numerics.INVARIANT, True, LeanThin),
        (DType.FLOAT32, Numerics.FAST, True, LeanThin),
    ],
)
def test_the_ways_for_few_rows_are_for_fp32_and_what_the_processor_multiplies_and_numpys_for_fast_only(
    dtype: DType, numerics: Numerics, thin_products: bool, expected: type | None, tmp_path: Path
) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    config = EngineConfig(
        str(tmp_path), kind=EngineKind.LEAN, dtype=dtype, numerics=numerics, num_blocks=4, probe=True, thin_products=thin_products
    )
    engine = load_engine(config)
    assert isinstance(engine, PagedEngine)
    assert isinstance(engine._arrays, expected or type(None))


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("way", ["thin"] if takes_bfloat16() else ["torch"])
def test_bfloat16_steps_are_as_near_to_float32_as_torchs(way: str, name: str, tmp_path: Path, captured: Captured) -> None:
    """Of a checkpoint whose numbers are no bfloat16 ones: both round them, and nothing else is more than a rounding away."""
    fakes_models.make_model(name, tmp_path, hidden_size=64)
    logits: dict[str, Captured] = {}
    for each, dtype in ((way, DType.BFLOAT16), ("torch", DType.BFLOAT16), ("torch", DType.FLOAT32)):
        captured.clear()
        run_schedule(load(tmp_path, each, dtype=dtype), 5)
        logits[f"{each} {dtype.value}"] = captured.copy()
    exact = logits["torch float32"]
    ours, torchs = (mean_square(logits[f"{each} bfloat16"], exact) for each in (way, "torch"))
    assert 1e-8 < ours <= torchs, "rounded, and no farther away than torch's bfloat16"


def test_a_step_of_weights_that_are_no_numbers_is_refused(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"].mul_(float("nan"))
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    for temperature in (0.0, 1.0):
        engine = load(tmp_path, "thin")
        engine.open(1, SequenceSpec(SamplingParams(temperature=temperature), NoiseAddress(4), 0, 60, 8))
        with pytest.raises(ModelRefused, match="largest logit"):
            engine.step(StepPlan((SequenceRows(1, np.arange(5, dtype=np.int32), np.array([3], np.int32), np.array([-1], np.int32)),)))


@pytest.mark.parametrize("way", FEW_ROWS)
def test_the_load_time_probe_checks_the_ways_for_few_rows_too(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    load(tmp_path, way, probe=True)
    original = WAYS[way].logits
    monkeypatch.setattr(WAYS[way], "logits", lambda *arguments: original(*arguments) * np.float32(1.1))
    with pytest.raises(ModelRefused, match="one by one"):
        load(tmp_path, way, probe=True)


def test_without_a_compiler_the_engine_takes_numpy_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=64)
    with_products = load(tmp_path, "thin").identity.fingerprint

    def unavailable(num_threads: int) -> None:
        raise NativeUnavailable("no C compiler was found")

    monkeypatch.setattr(lean_engine, "ThinTeam", unavailable)
    engine = load_engine(EngineConfig(str(tmp_path), EngineKind.LEAN, num_blocks=40, block_len=16, num_threads=1, probe=False))
    assert isinstance(engine, PagedEngine)
    assert isinstance(engine._arrays, LeanArrays)
    assert "no C compiler was found" in caplog.text
    assert engine.identity.fingerprint != with_products, "other sums, other bits"


def test_heads_of_an_odd_length_are_left_to_numpy(tmp_path: Path) -> None:
    fakes_models.make_model("llama", tmp_path, hidden_size=48)
    engine = load_engine(EngineConfig(str(tmp_path), EngineKind.LEAN, num_blocks=40, block_len=16, num_threads=1, probe=False))
    assert isinstance(engine, PagedEngine)
    assert isinstance(engine._arrays, LeanArrays)


def test_weights_that_are_bfloat16_numbers_are_kept_as_such(tmp_path: Path) -> None:
    fakes_models.make_model("qwen3", tmp_path)
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    for changed, is_half in ((False, True), (True, False)):
        if changed:
            tensors = {name: tensor.float() * 1.001 for name, tensor in tensors.items()}
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        weights = load(tmp_path, "thin")._forward._weights  # type: ignore[attr-defined]
        packed = [
            weights.thin_head,
            *(getattr(layer.thin, name) for layer in weights.layers for name in ("qkv", "output", "gate_up", "down")),
        ]
        assert {matrix.is_half for matrix in packed} == {is_half}


@pytest.mark.parametrize("way", ["thin"] if takes_bfloat16() else ["torch"])
def test_every_number_of_a_bfloat16_model_is_one_whatever_the_checkpoint_holds(way: str, tmp_path: Path) -> None:
    fakes_models.make_model("qwen3", tmp_path, hidden_size=64)
    tensors = {name: tensor.float() * 1.001 for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    weights = load(tmp_path, way, dtype=DType.BFLOAT16)._forward._weights  # type: ignore[attr-defined]
    norms = [layer.qk_norm for layer in weights.layers]
    for kept in (weights.embedding, weights.final_norm, *norms):
        assert torch.equal(kept, kept.bfloat16().to(kept.dtype))


def test_a_matrix_that_thin_products_read_is_in_memory_once(tmp_path: Path) -> None:
    fakes_models.make_model("qwen3", tmp_path)
    weights = load(tmp_path, "thin", probe=True)._forward._weights  # type: ignore[attr-defined]
    layer = weights.layers[0]
    for projection, thin in ((layer.qkv, layer.thin.qkv), (layer.down, layer.thin.down), (weights.head, weights.thin_head)):
        assert vars(projection) == {"shape": projection.shape, "bias": projection.bias, "_thin": thin}
        assert projection.bias is None or projection.bias.ndim == 1
