"""numerics=invariant: the logits of a token have the same bits however its rows were scheduled, whoever shared the batch, wherever its
cache lies. Broken twins (fast numerics, unpadded products) show that the comparison would notice.

Run: pytest tests/unit/test_engine_invariant.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fakes_models
from mostly_slow import crossed
from outrider.engine import paged_engine
from outrider.engine.config import DType, EngineConfig, EngineKind, WeightFormat
from outrider.engine.lean_thin import LeanThin
from outrider.engine.load import load_engine
from outrider.engine.lone_step import LoneStep
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.row_picker import RowPicker
from outrider.engine.sequence_state import SequenceState
from outrider.engine.step_batch import StepBatch
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceResult, SequenceRows, SequenceSpec, StepPlan, StepResult
from outrider.types.tree import FloatArray, IntArray

NONE: IntArray = np.empty(0, np.int32)
PROMPT_LEN = 75  # beyond a window of 64 positions, so that shared blocks take part
OUTPUT_LEN = 20
MAX_LEN = 128
SEQUENCE = 500

Captured = dict[int, torch.Tensor]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Captured:
    """sequence -> logits of its wanted rows in the newest step, whichever way it went."""
    seen: Captured = {}
    original, original_lone = RowPicker.results, LoneStep.step

    def spy(self: RowPicker, batch: StepBatch, logits: torch.Tensor | FloatArray) -> tuple[SequenceResult, ...]:
        begin = 0
        for segment in batch.segments:
            seen[segment.rows.sequence] = torch.as_tensor(logits[begin : begin + segment.num_wanted]).clone()
            begin += segment.num_wanted
        return original(self, batch, logits)

    def lone_spy(self: LoneStep, rows: SequenceRows, state: SequenceState, started_ns: int) -> StepResult | None:
        found = original_lone(self, rows, state, started_ns)
        if found is not None:
            seen[rows.sequence] = torch.from_numpy(self._picks.chain.logits[: len(found.results[0].picks)].copy())
        return found

    monkeypatch.setattr(RowPicker, "results", spy)
    monkeypatch.setattr(LoneStep, "step", lone_spy)
    return seen


def load(
    model_dir: Path,
    kind: EngineKind,
    dtype: DType,
    numerics: Numerics = Numerics.INVARIANT,
    array_rows: int = 64,
    thin_rows: int = 64,
    weights: WeightFormat = WeightFormat.FULL,
) -> PagedEngine:
    config = EngineConfig(str(model_dir), kind=kind, dtype=dtype, numerics=numerics, num_blocks=48, block_len=16, probe=False)
    engine = load_engine(replace(config, array_rows=array_rows, thin_rows=thin_rows, weights=weights))
    assert isinstance(engine, PagedEngine)
    return engine


def spec(seed: int) -> SequenceSpec:
    return SequenceSpec(SamplingParams(temperature=0.8, top_p=0.95, frequency_penalty=0.3), NoiseAddress(seed), PROMPT_LEN, MAX_LEN, 12)


def plain(engine: PagedEngine, prompt: IntArray, captured: Captured) -> tuple[list[int], list[torch.Tensor]]:
    """The answer one token a step, alone, and the logits it came from."""
    engine.open(SEQUENCE, spec(3))
    tokens, logits, committed = [], [], prompt
    for _ in range(OUTPUT_LEN):
        result = engine.step(StepPlan((SequenceRows(SEQUENCE, committed, NONE, NONE),))).results[0]
        committed = result.picks
        tokens.append(int(committed[0]))
        logits.append(captured[SEQUENCE][0])
    engine.close(SEQUENCE)
    return tokens, logits


def random_tree(generator: np.random.Generator, upcoming: list[int]) -> tuple[IntArray, IntArray]:
    """Up to 10 nodes: a true path of random length with decoys hung anywhere, in random but legal order."""
    tokens: list[int] = []
    parents: list[int] = []
    tip, depth = -1, 0
    taken: set[tuple[int, int]] = set()
    for _ in range(int(generator.integers(0, 11))):
        if depth < len(upcoming) and generator.random() < 0.6:
            parent, token = tip, upcoming[depth]
            tip, depth = len(tokens), depth + 1
        else:
            parent, token = int(generator.integers(-1, len(tokens))), int(generator.integers(0, fakes_models.VOCAB))
            if parent == tip and depth < len(upcoming) and token == upcoming[depth]:
                continue
        if (parent, token) not in taken:
            taken.add((parent, token))
            tokens.append(token)
            parents.append(parent)
        elif parent == tip:
            break
    return np.asarray(tokens, np.int32), np.asarray(parents, np.int32)


def scheduled(
    engine: PagedEngine, prompt: IntArray, truth: list[int], captured: Captured, seed: int
) -> tuple[list[int], list[torch.Tensor]]:
    """The same answer under a random schedule: chunks, trees, neighbours, fragmented slots."""
    generator = np.random.default_rng(seed)
    fillers = [int(size) for size in generator.integers(1, 60, 4)]
    for index, size in enumerate(fillers):
        engine.open(index, SequenceSpec(SamplingParams(temperature=0.0), NoiseAddress(0), 0, size, 0))
    for index in (0, 2):
        engine.close(index)
    engine.open(SEQUENCE, spec(3))
    engine.open(7, SequenceSpec(SamplingParams(), NoiseAddress(9), 0, 100, 6))
    fed, neighbour_len = 0, 0

    def neighbour() -> tuple[SequenceRows, ...]:
        nonlocal neighbour_len
        if neighbour_len > 80 or generator.random() < 0.4:
            return ()
        size = int(generator.integers(1, 9))
        neighbour_len += size
        nodes = generator.integers(0, fakes_models.VOCAB, int(generator.integers(0, 4))).astype(np.int32)
        rows = SequenceRows(7, generator.integers(0, fakes_models.VOCAB, size).astype(np.int32), nodes, np.full(len(nodes), -1, np.int32))
        return (rows,)

    def step(rows: SequenceRows) -> SequenceResult:
        others = neighbour()
        order = (*others, rows) if generator.random() < 0.5 else (rows, *others)
        results = engine.step(StepPlan(order)).results
        for other in others:
            engine.keep(other.sequence, ())
        return next(result for result in results if result.sequence == SEQUENCE)

    while fed < len(prompt) - 1:
        size = int(generator.integers(1, min(30, len(prompt) - 1 - fed) + 1))
        step(SequenceRows(SEQUENCE, prompt[fed : fed + size], NONE, NONE, wanted=bool(generator.random() < 0.5)))
        fed += size
    tokens: list[int] = []
    logits: list[torch.Tensor] = []
    committed = prompt[fed:]
    while len(tokens) < OUTPUT_LEN:
        nodes, parents = random_tree(generator, truth[len(tokens) : OUTPUT_LEN - 1])
        result = step(SequenceRows(SEQUENCE, committed, nodes, parents))
        rows = captured[SEQUENCE]
        path: list[int] = []
        here = -1
        while True:
            token = int(result.picks[here + 1])
            tokens.append(token)
            logits.append(rows[here + 1])
            children = [node for node in range(len(nodes)) if parents[node] == here and nodes[node] == token]
            if not children:
                break
            here = children[0]
            path.append(here)
        engine.keep(SEQUENCE, tuple(path))
        committed = np.asarray(tokens[-1:], np.int32)
    for index in (1, 3, 7, SEQUENCE):
        engine.close(index)
    assert engine.num_free_blocks == engine.limits.num_blocks
    return tokens, logits


def mismatches(engine: PagedEngine, captured: Captured, seeds: range) -> int:
    prompt = np.random.default_rng(1).integers(0, fakes_models.VOCAB, PROMPT_LEN).astype(np.int32)
    truth, expected = plain(engine, prompt, captured)
    count = 0
    for seed in seeds:
        tokens, logits = scheduled(engine, prompt, truth, captured, seed)
        count += sum(not torch.equal(left, right) for left, right in zip(expected, logits[:OUTPUT_LEN], strict=True))
        count += tokens[:OUTPUT_LEN] != truth
    return count


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
def test_thin_products_need_no_padding(name: str, tmp_path: Path, captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes_models.make_model(name, tmp_path, hidden_size=64)
    monkeypatch.setattr(paged_engine, "InvariantAttention", None)  # whoever pads would need it
    for thin_rows in (5, 64):  # steps in parts, and whole
        engine = load(tmp_path, EngineKind.LEAN, DType.FLOAT32, thin_rows=thin_rows)
        assert isinstance(engine._arrays, LeanThin)
        assert len(engine._arrays._buffers.states) == thin_rows
        assert mismatches(engine, captured, range(8)) == 0


@pytest.mark.parametrize(("dtype", "array_rows"), [(DType.FLOAT32, 64), (DType.FLOAT32, 0), (DType.BFLOAT16, 64)])
def test_int8_bits_do_not_depend_on_the_schedule(dtype: DType, array_rows: int, tmp_path: Path, captured: Captured) -> None:
    """On thin products, and on torch's in either dtype: drafts of any shape give what plain decoding of the int8 model gives."""
    fakes_models.make_model("qwen3", tmp_path)
    engine = load(tmp_path, EngineKind.LEAN, dtype, array_rows=array_rows, weights=WeightFormat.INT8)
    assert isinstance(engine._arrays, LeanThin) == (dtype is DType.FLOAT32 and array_rows > 0)
    assert mismatches(engine, captured, range(6)) == 0


def test_parts_of_any_size_give_the_same_bits(tmp_path: Path, captured: Captured) -> None:
    fakes_models.make_model("mistral", tmp_path)
    prompt = np.random.default_rng(1).integers(0, fakes_models.VOCAB, PROMPT_LEN).astype(np.int32)
    answers = [plain(load(tmp_path, EngineKind.LEAN, DType.FLOAT32, thin_rows=size), prompt, captured) for size in (1, 7, 64)]
    for tokens, logits in answers[1:]:
        assert tokens == answers[0][0]
        assert all(torch.equal(left, right) for left, right in zip(logits, answers[0][1], strict=True))


SERVED = [
    ("llama", EngineKind.TRANSFORMERS),
    ("llama_tied_one_kv_head", EngineKind.LEAN),
    ("qwen3", EngineKind.LEAN),
    ("mistral", EngineKind.LEAN),
    ("gemma2", EngineKind.TRANSFORMERS),
    ("gpt_neox", EngineKind.TRANSFORMERS),
]


@pytest.mark.parametrize(("model", "dtype"), crossed(SERVED, [DType.FLOAT32, DType.BFLOAT16]))
def test_bits_do_not_depend_on_the_schedule(model: tuple[str, EngineKind], dtype: DType, tmp_path: Path, captured: Captured) -> None:
    name, kind = model
    fakes_models.make_model(name, tmp_path)
    assert mismatches(load(tmp_path, kind, dtype), captured, range(8)) == 0


def test_bfloat16_bits_do_not_depend_on_the_schedule_where_torch_multiplies(tmp_path: Path, captured: Captured) -> None:
    """As on every processor that does not multiply such numbers itself."""
    fakes_models.make_model("qwen3", tmp_path)
    engine = load(tmp_path, EngineKind.LEAN, DType.BFLOAT16, array_rows=0)
    assert engine._arrays is None
    assert mismatches(engine, captured, range(8)) == 0


def test_fast_numerics_would_be_noticed(tmp_path: Path, captured: Captured) -> None:
    fakes_models.make_model("llama", tmp_path)
    assert mismatches(load(tmp_path, EngineKind.LEAN, DType.FLOAT32, Numerics.FAST), captured, range(2)) > 0


def test_unpadded_products_would_be_noticed(tmp_path: Path, captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    identity: Callable[[torch.Tensor, int], torch.Tensor] = lambda rows, num_rows: rows  # noqa: E731
    monkeypatch.setattr(paged_engine, "_padded", identity)
    fakes_models.make_model("llama", tmp_path)
    assert mismatches(load(tmp_path, EngineKind.LEAN, DType.FLOAT32), captured, range(2)) > 0
