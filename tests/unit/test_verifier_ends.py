"""The end of a session: said to the client first, then worked off, before anybody else is admitted."""

from __future__ import annotations

import threading

import pytest

from fakes import TableEngine
from fakes_scheduler import TABLE, WAIT_S, Loop, ended
from outrider.session.events import FinishReason
from outrider.session.verifier import VerifierSession
from verifier_service.prompt_kinds import PromptKinds


class _SlowToClose(TableEngine):
    """Whose blocks are given back when the test says so."""

    def __init__(self) -> None:
        super().__init__(TABLE, num_blocks=3)
        self.may_close = threading.Event()
        self.may_close.set()
        self.closed: list[int] = []

    def close(self, sequence: int) -> None:
        """See Engine."""
        assert self.may_close.wait(WAIT_S)
        super().close(sequence)
        self.closed.append(sequence)


async def test_an_end_is_said_before_it_is_worked_off_and_nobody_is_admitted_in_between() -> None:
    engine = _SlowToClose()
    loop = Loop(engine)
    engine.closed.clear()  # what was opened to measure steps
    engine.may_close.clear()
    first = loop.open()
    assert ended(loop, first).reason is FinishReason.LENGTH
    assert engine.closed == []
    second = loop.open()
    engine.may_close.set()
    assert ended(loop, second).error is None, "the first one's blocks are free again"
    loop.stop()
    assert len(engine.closed) == 2
    assert engine.num_free_blocks == engine.limits.num_blocks


async def test_an_error_in_what_a_session_taught_costs_what_it_taught(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: PromptKinds, session: VerifierSession) -> None:
        raise RuntimeError("a bug in what is learned")

    monkeypatch.setattr(PromptKinds, "ended", broken)
    engine = TableEngine(TABLE)
    loop = Loop(engine)
    for _ in range(2):
        assert ended(loop, loop.open()).error is None
    loop.stop()
    assert [record.exc_info is not None for record in caplog.records if "taught is lost" in record.message] == [True, True]
    assert engine.num_free_blocks == engine.limits.num_blocks


async def test_a_session_that_cannot_be_freed_ends_no_other(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TableEngine(TABLE)
    close, loop = engine.close, Loop(engine)

    def broken(sequence: int) -> None:
        close(sequence)
        raise RuntimeError("a bug in what is freed")

    monkeypatch.setattr(engine, "close", broken)
    for _ in range(2):
        assert ended(loop, loop.open()).error is None
    loop.stop()
    assert sum("could not be freed" in record.message for record in caplog.records) == 2
