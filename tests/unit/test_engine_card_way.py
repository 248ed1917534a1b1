"""Which engines go the card's own way, the one line that says why one does not, and the order in which torch is asked to record.

There is no card here: torch's and its answers are stood in for. Run: pytest tests/unit/test_engine_card_way.py
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drafter_service import settings as drafter_settings
from fakes_models import make_model
from outrider.engine import card_probe, card_way, paged_engine
from outrider.engine.card_graphs import WARM_UP_RUNS, CudaGraphs
from outrider.engine.card_way import NO_TRITON, CardWay, card_problem
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.engine.torch_settings import await_device
from outrider.errors import ModelRefused
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from verifier_service import settings as verifier_settings


class PlayedCard:
    """Stands in for torch.cuda; notes what is asked of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes: list[str] = []
        self.capability = (9, 0)
        self.reserved = 100
        self.num_streams = 0
        for name, stand_in in {
            "get_device_capability": lambda device: self.capability,
            "set_device": lambda device: self.notes.append(f"on {device}"),
            "graph_pool_handle": lambda: "pool",
            "memory_reserved": lambda: self.reserved,
            "Stream": self._new_stream,
            "current_stream": lambda device=None: self._stream("main" if device is None else f"{device}'s"),
            "stream": self._using,
            "CUDAGraph": lambda: self,
            "graph": self._recording,
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)

    def _new_stream(self) -> Any:
        self.num_streams += 1
        return self._stream("side")

    def replay(self) -> None:
        """As a graph."""
        self.notes.append("replay")

    def _stream(self, name: str) -> Any:
        notes = self.notes

        class Stream:
            def __str__(self) -> str:
                return name

            def synchronize(self) -> None:
                notes.append(f"{name} is awaited")

            def wait_stream(self, other: object) -> None:
                notes.append(f"{name} waits for {other}")

        return Stream()

    @contextmanager
    def _using(self, stream: object) -> Iterator[None]:
        self.notes.append(f"begin {stream}")
        yield
        self.notes.append(f"end {stream}")

    @contextmanager
    def _recording(self, graph: object, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        assert graph is self
        assert capture_error_mode == "thread_local"
        self.notes.append(f"record into {pool} on {stream}")
        yield
        self.notes.append("recorded")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> PlayedCard:
    return PlayedCard(monkeypatch)


def test_work_is_warmed_up_on_a_side_stream_and_then_recorded(card: PlayedCard) -> None:
    graphs = CudaGraphs()
    play = graphs.capture(lambda: card.notes.append("work"))
    assert card.notes == [
        "side waits for main", "begin side", *["work"] * WARM_UP_RUNS, "end side", "main waits for side",
        "record into pool on side", "work", "recorded",
    ]  # fmt: skip
    graphs.capture(lambda: None)
    assert card.num_streams == 1, "libraries may keep a workspace for each"
    play()
    assert card.notes[-1] == "replay"
    card.reserved = 130
    assert graphs.num_bytes == 30


def test_a_step_without_an_answer_to_read_is_awaited(card: PlayedCard) -> None:
    await_device(torch.device("cpu"))
    assert card.notes == []
    await_device(torch.device("cuda:1"))
    assert card.notes == ["cuda:1's is awaited"]


@pytest.mark.parametrize("numerics", list(Numerics))
def test_nobody_wants_a_row_of_a_chunk_and_all_is_done_behind_it(
    numerics: Numerics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model("llama", tmp_path)
    engine = load_engine(EngineConfig(str(tmp_path), kind=EngineKind.TRANSFORMERS, num_threads=1, num_blocks=4, numerics=numerics))
    awaited: list[str] = []
    monkeypatch.setattr(paged_engine, "await_device", lambda device: awaited.append(str(device)))
    engine.open(1, SequenceSpec(SamplingParams(temperature=0.0), NoiseAddress(0), 12, 20, 0))
    prompt, nothing = np.arange(12, dtype=np.int32), np.empty(0, np.int32)
    engine.step(StepPlan((SequenceRows(1, prompt[:8], nothing, nothing, wanted=False),)))
    assert awaited == ["cpu"]
    engine.step(StepPlan((SequenceRows(1, prompt[8:], nothing, nothing, acceptance="coupled"),)))
    assert awaited == ["cpu"], "its answer was read"


def test_an_engine_on_a_cpu_or_in_invariant_numerics_stays_as_it_is(card: PlayedCard) -> None:
    assert card_way.card_way(EngineConfig("m"), can_record=True) is None
    assert card_way.card_way(EngineConfig("m", device="cuda:0", numerics=Numerics.INVARIANT), can_record=True) is None
    assert card.notes == []


@pytest.mark.parametrize(("can_record", "wants_graphs", "records"), [(True, True, True), (False, True, False), (True, False, False)])
def test_an_engine_on_a_card_goes_its_way(card: PlayedCard, can_record: bool, wants_graphs: bool, records: bool) -> None:
    way = card_way.card_way(EngineConfig("m", device="cuda:1", card_graphs=wants_graphs), can_record=can_record)
    assert way is not None
    assert (way.new_graphs is not None) == records
    assert card.notes == ["on cuda:1"]


def test_without_triton_one_line_says_so(card: PlayedCard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with caplog.at_level(logging.INFO):
        assert card_way.card_way(EngineConfig("m", device="cuda"), can_record=True) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"steps on cuda run on plain torch operations, which is slower: {NO_TRITON}"
    ]


def test_an_old_card_is_a_reason(card: PlayedCard) -> None:
    assert card_problem(torch.device("cuda")) is None
    card.capability = (7, 5)
    assert "7.5" in str(card_problem(torch.device("cuda")))


@pytest.mark.parametrize("failure", [ModelRefused("the decode row is off by 0.5"), RuntimeError("no kernel image")])
def test_kernels_that_fail_their_probe_are_not_used(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(card_probe, "probe_card", fail)
    nothing: Any = None
    with caplog.at_level(logging.WARNING):
        assert card_probe.probed_way(CardWay(None), nothing, nothing, torch.float32, "cuda") is None
    assert len(caplog.records) == 1
    assert str(failure) in caplog.records[0].getMessage()


def test_kernels_that_pass_their_probe_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(card_probe, "probe_card", lambda *arguments: asked.append(arguments))
    nothing: Any = None
    way = CardWay(None)
    assert card_probe.probed_way(way, nothing, nothing, torch.float32, "cuda") is way
    assert card_probe.probed_way(None, nothing, nothing, torch.float32, "cpu") is None
    assert len(asked) == 1


@pytest.mark.parametrize("service", [verifier_settings, drafter_settings])
def test_recording_is_an_option_of_both_services(service: Any) -> None:
    arguments = ["--model", "m", "--listen", "127.0.0.1:0"]
    assert service.parse_settings(arguments).engine.card_graphs
    assert not service.parse_settings([*arguments, "--no-card-graphs"]).engine.card_graphs
    assert "--no-card-graphs" in service._parser().format_help()
