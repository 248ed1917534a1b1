"""How a prompt was cut into chunks leaves no trace in `invariant` numerics: neither in the bits, nor in what a verifier answers under any
bound on reading. The same comparison notices `fast` numerics.

    pytest tests/unit/test_prefill_identity.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fakes_models
from fakes_scheduler import Loop, ended
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.row_picker import RowPicker
from outrider.engine.step_batch import StepBatch
from outrider.session.events import FinishReason
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceResult, SequenceRows, SequenceSpec, StepPlan, StepResult
from outrider.types.tree import FloatArray, IntArray
from verifier_service.prefill_price import PrefillPrice

NONE: IntArray = np.empty(0, np.int32)
PROMPT_LEN, OUTPUT_LEN, MAX_ROWS = 150, 12, 128
CHUNKS = (1, 16, 37, 64, MAX_ROWS)
READS, DECODES = 1, 2
PROMPT = np.random.default_rng(4).integers(1, fakes_models.VOCAB, PROMPT_LEN).astype(np.int32)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> dict[int, torch.Tensor]:
    """sequence -> its newest logits."""
    seen: dict[int, torch.Tensor] = {}
    original = RowPicker.results

    def spy(self: RowPicker, batch: StepBatch, found: torch.Tensor | FloatArray) -> tuple[SequenceResult, ...]:
        begin = 0
        for segment in batch.segments:
            seen[segment.rows.sequence] = torch.as_tensor(found[begin : begin + segment.num_wanted]).clone()
            begin += segment.num_wanted
        return original(self, batch, found)

    monkeypatch.setattr(RowPicker, "results", spy)
    return seen


def load(folder: Path, kind: EngineKind, numerics: Numerics) -> PagedEngine:
    if not (folder / "config.json").exists():
        fakes_models.make_model("qwen3", folder)
    config = EngineConfig(str(folder), kind=kind, numerics=numerics, num_blocks=64, block_len=16, max_rows=MAX_ROWS, probe=False)
    engine = load_engine(config)
    assert isinstance(engine, PagedEngine)
    return engine


def read_in_chunks(engine: PagedEngine, size: int, logits: dict[int, torch.Tensor]) -> tuple[list[int], list[torch.Tensor]]:
    """The answer after a prompt that was read so many tokens a step, beside a sequence that decodes all the while."""
    sampling = SamplingParams(temperature=0.8)
    engine.open(READS, SequenceSpec(sampling, NoiseAddress(3), PROMPT_LEN, PROMPT_LEN + OUTPUT_LEN, 0))
    engine.open(DECODES, SequenceSpec(sampling, NoiseAddress(9), 1, 2 * PROMPT_LEN, 0))
    tokens: list[int] = []
    found: list[torch.Tensor] = []
    committed, beside, fed = PROMPT[:0], PROMPT[:1], 0
    while len(tokens) < OUTPUT_LEN:
        if fed < PROMPT_LEN:
            committed = PROMPT[fed : fed + min(size, MAX_ROWS - 1)]
        fed += len(committed)
        both = (SequenceRows(DECODES, beside, NONE, NONE), SequenceRows(READS, committed, NONE, NONE, wanted=fed >= PROMPT_LEN))
        results = engine.step(StepPlan(both)).results
        beside = results[0].picks
        if fed >= PROMPT_LEN:
            committed = results[1].picks
            tokens.append(int(committed[0]))
            found.append(logits[READS][0])
    engine.close(READS)
    engine.close(DECODES)
    return tokens, found


def num_differences(engine: PagedEngine, logits: dict[int, torch.Tensor]) -> int:
    """Logits that are not those of the prompt read in the largest chunks, bit for bit."""
    truth, expected = read_in_chunks(engine, CHUNKS[-1], logits)
    count = 0
    for size in CHUNKS[:-1]:
        tokens, found = read_in_chunks(engine, size, logits)
        count += sum(not torch.equal(left, right) for left, right in zip(expected, found, strict=True)) + (tokens != truth)
    return count


@pytest.mark.parametrize("kind", [EngineKind.LEAN, EngineKind.TRANSFORMERS])
def test_the_size_of_chunks_changes_no_bit(kind: EngineKind, tmp_path: Path, logits: dict[int, torch.Tensor]) -> None:
    assert num_differences(load(tmp_path, kind, Numerics.INVARIANT), logits) == 0


def test_fast_numerics_would_be_noticed(tmp_path: Path, logits: dict[int, torch.Tensor]) -> None:
    """The broken twin: here the bits depend on what shared a step."""
    assert num_differences(load(tmp_path, EngineKind.TRANSFORMERS, Numerics.FAST), logits) > 0


def answered(folder: Path, stretch: float, monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[int]], int]:
    """What a verifier with this bound answers to a short prompt and a long one that come together, and the most rows that were read beside
    one who decodes."""
    engine = load(folder, EngineKind.LEAN, Numerics.INVARIANT)
    most = 0
    original = engine.step

    def step(plan: StepPlan) -> StepResult:
        nonlocal most
        lens = [len(rows.committed) for rows in plan.sequences]
        if 1 in lens:
            most = max([most, *(num for num in lens if num > 1)])
        return original(plan)

    monkeypatch.setattr(engine, "step", step)
    loop = Loop(engine, prefill_price=PrefillPrice(stretch))
    most = 0  # what costs were measured with does not count
    vocab: dict[str, Any] = {
        "vocab_size": fakes_models.VOCAB,
        "stop_token_ids": frozenset[int](),
        "sampling": SamplingParams(temperature=0.8),
    }
    with loop.scheduler.inbox._lock:
        answers = [
            loop.open(40, prefix=PROMPT[:3], num_prompt=3, max_len=43, **vocab),
            loop.open(OUTPUT_LEN, prefix=PROMPT, num_prompt=PROMPT_LEN, max_len=PROMPT_LEN + OUTPUT_LEN, **vocab),
        ]
    assert [ended(loop, answer).reason for answer in answers] == [FinishReason.LENGTH] * 2
    loop.stop()
    return [loop.tokens(answer) for answer in answers], most


def test_a_verifier_answers_the_same_under_every_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tight, tight_rows), (loose, loose_rows) = (answered(tmp_path, stretch, monkeypatch) for stretch in (1.001, 0.0))
    assert tight == loose
    assert [len(tokens) for tokens in tight] == [40, OUTPUT_LEN]
    assert tight_rows < loose_rows, "or nothing was compared"
