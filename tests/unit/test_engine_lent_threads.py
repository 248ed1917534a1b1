"""Threads that a step is lent: the same bits in `invariant` numerics however they come and go, held from step to step until the loan
ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

import fakes_models
from fakes_engines import results_fail
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.step_batch import StepBatch
from outrider.engine.step_threads import TeamThreads, TorchThreads, step_threads
from outrider.errors import InvalidRequest, UnknownSession
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray
from outrider_kernels.thin_team import ThinTeam

NONE: IntArray = np.empty(0, np.int32)
PROMPT: IntArray = np.random.default_rng(1).integers(0, fakes_models.VOCAB, 21).astype(np.int32)
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 8, "num_key_value_heads": 4}
NUM_LENT = 2
TURNS = (0, 2, 1, 0, 2, 2, 0, 9)  # 9: more than there are


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
    threadpool_limits(1, user_api="blas")


def load(directory: Path, kind: EngineKind, numerics: Numerics, array_rows: int = 64) -> Engine:
    fakes_models.make_model("llama", directory, **WIDE)
    config = EngineConfig(
        str(directory),
        kind=kind,
        numerics=numerics,
        num_threads=1,
        lent_threads=NUM_LENT,
        num_blocks=24,
        block_len=16,
        array_rows=array_rows,
        probe=False,
    )
    return load_engine(config)


def answer(engine: Engine, lent: tuple[int, ...]) -> list[tuple[int, bytes]]:
    """Tokens with the bits of their log-probabilities, each step on what it is lent."""
    spec = SequenceSpec(SamplingParams(temperature=0.8), NoiseAddress(3), len(PROMPT), 64, 0)
    engine.open(1, spec)
    found: list[tuple[int, bytes]] = []
    committed = PROMPT
    for lent_threads in lent:
        (result,) = engine.step(StepPlan((SequenceRows(1, committed, NONE, NONE, top_logprobs=3),), lent_threads)).results
        assert result.logprobs is not None
        found.append((int(result.picks[0]), result.logprobs.chosen.tobytes() + result.logprobs.top.tobytes()))
        committed = np.asarray(found[-1:][0][:1], np.int32)
    engine.close(1)
    return found


@pytest.mark.parametrize("kind", [EngineKind.LEAN, EngineKind.TRANSFORMERS])
def test_bits_in_invariant_numerics_do_not_depend_on_what_is_lent(tmp_path: Path, kind: EngineKind) -> None:
    engine = load(tmp_path, kind, Numerics.INVARIANT)
    assert engine.limits.lent_threads == (NUM_LENT if kind is EngineKind.LEAN else 0), "torch's sums depend on its threads"
    assert answer(engine, TURNS) == answer(engine, (0,) * len(TURNS))
    engine.end_loan()
    assert answer(engine, (2, 2)) == answer(engine, (0, 0))
    assert torch.get_num_threads() == 1


def test_one_model_has_one_fingerprint_whatever_it_can_be_lent(tmp_path: Path) -> None:
    engine = load(tmp_path, EngineKind.LEAN, Numerics.INVARIANT)
    alone = load_engine(EngineConfig(str(tmp_path), kind=EngineKind.LEAN, numerics=Numerics.INVARIANT, num_threads=1, probe=False))
    assert alone.limits.lent_threads == 0
    assert engine.identity.fingerprint == alone.identity.fingerprint


@pytest.mark.parametrize(("kind", "array_rows"), [(EngineKind.LEAN, 0), (EngineKind.TRANSFORMERS, 64)])
def test_torch_is_lent_threads_in_fast_numerics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: EngineKind, array_rows: int) -> None:
    engine = load(tmp_path, kind, Numerics.FAST, array_rows)
    assert engine.limits.lent_threads == NUM_LENT
    seen: list[int] = []
    original = PagedEngine._logits

    def spy(self: PagedEngine, batch: StepBatch) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return original(self, batch)

    monkeypatch.setattr(PagedEngine, "_logits", spy)
    answer(engine, TURNS)
    assert seen == [1 + min(NUM_LENT, lent) for lent in TURNS]
    assert torch.get_num_threads() == 1 + NUM_LENT, "held for the next step"
    engine.end_loan()
    assert torch.get_num_threads() == 1


def test_a_team_is_held_to_its_own_threads_only_where_the_loan_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(tmp_path, EngineKind.LEAN, Numerics.FAST)
    held: list[int] = []
    original = TeamThreads.use

    def spy(self: TeamThreads, num_lent: int) -> None:
        original(self, num_lent)
        held.append(self._team.num_active)

    monkeypatch.setattr(TeamThreads, "use", spy)
    answer(engine, (2, 2, 0, 2))
    engine.end_loan()
    engine.end_loan()
    assert held == [3, 3, 1, 3, 1, 1], "one call a step, and none after it"


@pytest.mark.parametrize(("kind", "array_rows"), [(EngineKind.LEAN, 64), (EngineKind.LEAN, 0), (EngineKind.TRANSFORMERS, 64)])
def test_a_loan_can_become_the_engines_own(tmp_path: Path, kind: EngineKind, array_rows: int) -> None:
    engine = load(tmp_path, kind, Numerics.FAST, array_rows)
    assert isinstance(engine, PagedEngine)
    lent, before = answer(engine, (2, 2)), answer(engine, (0, 0))
    engine.own_loan()
    assert answer(engine, (0, 0)) == lent == answer(engine, (2, 9)), "the same as with all that was lent, asked for or not"
    assert [token for token, _ in lent] == [token for token, _ in before]
    engine.end_loan()
    if isinstance(threads := engine._threads, TeamThreads):
        assert threads._team.num_active == 1 + NUM_LENT
    else:
        assert torch.get_num_threads() == 1 + NUM_LENT
        assert {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"} == {1 + NUM_LENT}


def test_a_step_that_fails_leaves_the_loan_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(tmp_path, EngineKind.TRANSFORMERS, Numerics.FAST)
    engine.open(1, SequenceSpec(SamplingParams(), NoiseAddress(3), len(PROMPT), 64, 0))
    with results_fail(engine, monkeypatch):
        engine.step(StepPlan((SequenceRows(1, PROMPT, NONE, NONE),), NUM_LENT))
    assert torch.get_num_threads() == 1 + NUM_LENT
    engine.end_loan()
    assert torch.get_num_threads() == 1


def test_a_plan_that_is_refused_still_says_what_is_lent(tmp_path: Path) -> None:
    engine = load(tmp_path, EngineKind.TRANSFORMERS, Numerics.FAST)
    for lent_threads in (NUM_LENT, 0):
        with pytest.raises(UnknownSession):
            engine.step(StepPlan((SequenceRows(7, PROMPT, NONE, NONE),), lent_threads))
        assert torch.get_num_threads() == 1 + lent_threads


def test_numpys_library_follows_torch() -> None:
    threads = TorchThreads(1)
    for num_lent in (1, 0, 5, 0):
        threads.use(num_lent)
        assert torch.get_num_threads() == 1 + min(1, num_lent)
        assert {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"} == {torch.get_num_threads()}


@pytest.mark.parametrize("lent_threads", [0, 1])
def test_torch_has_its_threads_in_steps_of_torch_and_one_beside_a_team(lent_threads: int) -> None:
    """Engines of one thread take turns, as a pair does."""
    torch.set_num_threads(3)
    config = EngineConfig("model", num_threads=3, lent_threads=lent_threads)
    theirs, ours = step_threads(config), step_threads(config, ThinTeam(3 + lent_threads))
    for num_lent in (0, 0, lent_threads, 0):
        ours.use(num_lent)
        assert torch.get_num_threads() == 1
        theirs.use(num_lent)
        assert torch.get_num_threads() == 3 + num_lent


def test_a_team_begins_with_its_own_threads() -> None:
    team = ThinTeam(3)
    threads = TeamThreads(team, 2)
    assert team.num_active == 1
    for num_lent, num_active in ((2, 3), (1, 2), (7, 3), (0, 1)):
        threads.use(num_lent)
        assert team.num_active == num_active


def test_a_team_is_spoken_to_only_when_its_size_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of compiled code lets go of the interpreter: before each step, it cost every one of them."""
    sizes: list[int] = []
    monkeypatch.setattr(ThinTeam, "hold", lambda _, num_threads: sizes.append(num_threads))
    threads = TeamThreads(ThinTeam(3), 2)
    for num_lent in (0, 2, 2, 5, 1, 0, 0):
        threads.use(num_lent)
    assert sizes == [1, 3, 2, 1]


def test_a_negative_loan_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="lent_threads: must be 0 or positive"):
        EngineConfig("model", lent_threads=-1).check()
