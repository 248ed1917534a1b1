"""A verifier's side of lanes, without gRPC: losses that nothing else tells of, lanes that nobody takes, and pairs that are told to end.

pytest tests/unit/test_verifier_lanes.py
"""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from fakes import TableEngine, TruthTable
from fakes_drafter_service import table_identity
from fakes_simulation import spec_of
from outrider.errors import Unavailable
from outrider.rpc.convert.verifier_frames import verifier_frames
from outrider.rpc.lane import Lane
from outrider.types.frames import Close, Open
from outrider.v1 import drafter_pb2
from verifier_service.answer import AnswerStream, SessionRequest
from verifier_service.inbox import CancelAsked, Inbox, OpenAsked, PairDown, PairUp, StopAsked
from verifier_service.outgoing import Outgoing
from verifier_service.pair import Pair
from verifier_service.pairs import Pairs
from verifier_service.scheduler import Scheduler

TABLE = TruthTable(vocab_size=40, seed=3)
WAIT_S = 60.0
MAX_BYTES = 1 << 20


class Engine:
    """An engine thread, and what it hands to the event loop."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.lost: list[PairDown] = []
        self.num_frames = 0
        self.scheduler = Scheduler(lambda: TableEngine(TABLE), self.take, lambda: None, lambda: None, max_sessions=8, draft_len=4)
        self.scheduler.start()
        self.scheduler.engine_ready.result(WAIT_S)

    def take(self, outgoing: Outgoing) -> None:
        with self.changed:
            self.lost += outgoing.lost
            self.num_frames += sum(len(frames) for frames in outgoing.frames.values())
            self.changed.notify_all()

    def ask_and_cancel(self) -> None:
        """A session that ends in the turn that it begins in: nothing is stepped and nothing is left to wait for."""
        answer = AnswerStream(SessionRequest(spec_of(0, [5, 6, 7], 9, TABLE), "serial", "coupled", None, None), lambda: None)
        self.scheduler.inbox.put(OpenAsked(answer))
        self.scheduler.inbox.put(CancelAsked(answer, "never mind"))

    def stop(self) -> None:
        self.scheduler.inbox.put(StopAsked())
        assert self.scheduler.join(WAIT_S)
        self.scheduler.close_lanes()


async def test_a_lane_that_is_lost_in_sending_is_told_though_nothing_else_happens() -> None:
    engine, (own, other) = Engine(), socket.socketpair()
    other.shutdown(socket.SHUT_RD)  # what is sent fails, and there is nothing to be read that would wake the thread
    with engine.scheduler.inbox._lock:  # all of it in one turn
        engine.scheduler.inbox.put(PairUp("d", 1, Lane(own, MAX_BYTES)))
        engine.ask_and_cancel()
    with engine.changed:
        assert engine.changed.wait_for(lambda: engine.lost, WAIT_S)
    ((drafter, connection),) = {(down.drafter, down.connection) for down in engine.lost}
    assert (drafter, connection, own.fileno()) == ("d", 1, -1)
    engine.stop()
    other.close()


async def test_frames_of_a_lane_do_not_reach_the_event_loop_and_it_outlives_the_thread() -> None:
    engine, (own, end) = Engine(), socket.socketpair()
    other = Lane(end, MAX_BYTES)
    with engine.scheduler.inbox._lock:
        engine.scheduler.inbox.put(PairUp("d", 1, Lane(own, MAX_BYTES)))
        engine.ask_and_cancel()
    engine.scheduler.inbox.put(StopAsked())
    assert engine.scheduler.join(WAIT_S)
    frames = [frame for message in other.receive() for frame in verifier_frames(drafter_pb2.DraftRequest.FromString(message))]
    assert [type(frame) for frame in frames] == [Open, Close]
    assert (engine.num_frames, engine.lost, own.fileno() > 0) == (0, [], True)
    late, its_end = socket.socketpair()
    engine.scheduler.inbox.put(PairUp("d", 2, Lane(late, MAX_BYTES)))  # by a pair that has not ended yet
    engine.scheduler.close_lanes()
    assert (own.fileno(), late.fileno()) == (-1, -1)
    other.close()
    its_end.close()


async def test_an_older_connections_end_leaves_the_newer_ones_lane_alone() -> None:
    engine = Engine()
    (old, its_end), (new, other) = socket.socketpair(), socket.socketpair()
    with engine.scheduler.inbox._lock:
        engine.scheduler.inbox.put(PairUp("d", 1, Lane(old, MAX_BYTES)))
        engine.scheduler.inbox.put(PairUp("d", 2, Lane(new, MAX_BYTES)))
        engine.scheduler.inbox.put(PairDown("d", 1, "late"))
        engine.ask_and_cancel()
    its_end.settimeout(WAIT_S)
    assert its_end.recv(1) == b"", "closed, and nothing was sent"
    other.settimeout(WAIT_S)
    assert other.recv(1 << 16)
    engine.stop()
    assert engine.lost == []
    for end in (its_end, other):
        end.close()


async def test_a_pair_whose_stream_fails_as_it_is_told_to_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = asyncio.Event()

    async def fails_when_cancelled(self: Pair, channel: object) -> None:
        """What a task group does of which a task fails in that moment."""
        serving.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise Unavailable("the drafter ended the stream") from None

    monkeypatch.setattr(Pair, "_serve", fails_when_cancelled)
    pairs = Pairs(["localhost:1"], table_identity(40), "tests", Inbox(lambda: None))
    pairs.start()
    await serving.wait()
    async with asyncio.timeout(WAIT_S):
        await pairs.stop()
    (pair,) = pairs.all()
    assert pair.problem == "the drafter ended the stream"
