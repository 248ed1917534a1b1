"""Lanes, sets of them and the doorbell: messages whole and in order, nothing that blocks or grows, and every end of a lane told once.

pytest tests/unit/test_rpc_lane.py
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outrider.errors import ProtocolViolation, Unavailable
from outrider.rpc import lane as lane_module
from outrider.rpc.doorbell import Doorbell
from outrider.rpc.lane import ACK, MAX_MESSAGES_AT_ONCE, SUFFIX, TOKEN_BYTES, Lane, lane_path, open_lane
from outrider.rpc.lane_set import LaneSet

MAX_BYTES = 1 << 22
WITHIN_S = 30.0
TOKEN = bytes(range(TOKEN_BYTES))
LARGE = 3 * MAX_BYTES // 4  # many times what a socket holds


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets."""
    first, second = socket.socketpair()
    yield first, second
    first.close()
    second.close()


@pytest.fixture
def lanes(ends: tuple[socket.socket, socket.socket]) -> tuple[Lane, Lane]:
    """Both ends of one lane."""
    return Lane(ends[0], MAX_BYTES), Lane(ends[1], MAX_BYTES)


def received(reader: Lane, num: int, writer: Lane | None = None) -> list[bytes]:
    """So many messages, while the writer sends what it kept back."""
    messages: list[bytes] = []
    while len(messages) < num:
        if writer is not None and writer.backlog:
            writer.flush()
        select.select([reader], [], [], WITHIN_S)
        messages += reader.receive()
    return messages


def stuffed(lane: Lane) -> None:
    """Send until the socket has no more room."""
    while not lane.backlog:
        lane.send(bytes(1 << 16))


# --- one lane -------------------------------------------------------------------------------------------------------------


def test_messages_of_every_size_arrive_whole_and_in_order(lanes: tuple[Lane, Lane]) -> None:
    writer, reader = lanes
    messages = [os.urandom(length) for length in (0, 1, 3, 4, 5, 255, 256, 65_535, 65_536, 0, LARGE, 7, MAX_BYTES)]
    for message in messages:
        writer.send(message)
    assert writer.backlog > 0, "so much does not fit into a socket"
    assert received(reader, len(messages), writer) == messages
    assert writer.backlog == 0
    assert reader.receive() == []


def test_both_directions_are_one_lane(lanes: tuple[Lane, Lane]) -> None:
    first, second = lanes
    first.send(b"there")
    second.send(b"and back")
    assert (received(second, 1), received(first, 1)) == ([b"there"], [b"and back"])


@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_a_message_may_come_in_pieces_of_any_length(ends: tuple[socket.socket, socket.socket], step: int) -> None:
    writer, reader = ends[0], Lane(ends[1], MAX_BYTES)
    messages = [b"", b"a", b"bc", bytes(300), b"", b"end"]
    wire = b"".join(struct.pack("<I", len(message)) + message for message in messages)
    came: list[bytes] = []
    for begin in range(0, len(wire), step):
        writer.sendall(wire[begin : begin + step])
        whole = reader.receive()
        came += whole
        assert came == messages[: len(came)]
    assert came == messages


def test_what_has_no_room_waits_and_follows_in_order(lanes: tuple[Lane, Lane]) -> None:
    writer, reader = lanes
    stuffed(writer)
    kept = writer.backlog
    writer.flush()
    assert writer.backlog == kept, "nobody has read"
    writer.send(b"last")
    assert writer.backlog == kept + 8
    messages: list[bytes] = []
    while not messages or messages[-1] != b"last":
        messages += received(reader, 1, writer)
    assert all(message == bytes(1 << 16) for message in messages[:-1])
    assert writer.backlog == 0


def test_one_look_takes_a_bounded_amount(lanes: tuple[Lane, Lane]) -> None:
    writer, reader = lanes
    stuffed(writer)
    assert 0 < len(reader.receive()) <= 4
    assert reader.receive() == []


@pytest.mark.parametrize("excess", [1, 1 << 31])
def test_a_message_beyond_the_bound_is_refused_before_it_is_read(ends: tuple[socket.socket, socket.socket], excess: int) -> None:
    reader = Lane(ends[1], 100)
    ends[0].sendall(struct.pack("<I", 100) + bytes(100) + struct.pack("<I", 100 + excess))
    with pytest.raises(ProtocolViolation, match=f"a message of {100 + excess} bytes"):
        reader.receive()


def test_a_flood_of_crumbs_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    reader = Lane(ends[1], 100)
    ends[0].sendall(bytes(4 * MAX_MESSAGES_AT_ONCE))
    assert reader.receive() == [b""] * MAX_MESSAGES_AT_ONCE
    ends[0].sendall(bytes(4 * MAX_MESSAGES_AT_ONCE + 4))
    with pytest.raises(ProtocolViolation, match="at once"):
        reader.receive()


def test_the_last_words_come_before_the_end(lanes: tuple[Lane, Lane]) -> None:
    first, second = lanes
    second.send(b"unread")
    first.send(b"goodbye")
    first.close()
    assert second.receive() == [b"goodbye"]
    with pytest.raises(Unavailable):
        second.receive()


def test_a_closed_other_side_is_unavailable(lanes: tuple[Lane, Lane]) -> None:
    first, second = lanes
    first.close()
    with pytest.raises(Unavailable, match="closed the lane"):
        second.receive()
    with pytest.raises(Unavailable, match="the lane broke"):
        second.send(b"hello")


# --- sets of lanes --------------------------------------------------------------------------------------------------------


def test_a_message_is_not_made_before_there_is_room_for_it(lanes: tuple[Lane, Lane]) -> None:
    port, reader = lanes
    waiting, num_made = [b"one", b"two"], 0

    def next_message() -> bytes | None:
        nonlocal num_made
        num_made += len(waiting) > 0
        return waiting.pop(0) if waiting else None

    lane_set: LaneSet[str] = LaneSet()
    lane_set.add("v", port, next_message)
    stuffed(port)
    lane_set.send("v")
    lane_set.send_backlogs()
    assert num_made == 0
    came: list[bytes] = []
    while waiting or port.backlog:
        came += received(reader, 1)
        lane_set.send_backlogs()
    came += received(reader, 2 - sum(message in (b"one", b"two") for message in came))
    assert came[-2:] == [b"one", b"two"]
    assert num_made == 2
    assert not lane_set.has_lost


def test_each_message_is_handed_on_by_whose_it_is() -> None:
    lane_set: LaneSet[str] = LaneSet()
    others = {}
    for key in "ab":
        own, other = socket.socketpair()
        lane_set.add(key, Lane(own, MAX_BYTES), lambda: None)
        others[key] = Lane(other, MAX_BYTES)
    others["b"].send(b"1")
    others["a"].send(b"2")
    others["b"].send(b"3")
    assert sorted(lane_set.receive()) == [("a", b"2"), ("b", b"1"), ("b", b"3")]
    assert "a" in lane_set
    lane_set.drop("a")
    assert "a" not in lane_set
    lane_set.drop_all()
    assert not lane_set.lanes
    for other_lane in others.values():
        with pytest.raises(Unavailable):
            other_lane.receive()
        other_lane.close()
    assert lane_set.take_lost() == [], "dropped is not lost"


@pytest.mark.parametrize("how", ["receive", "send", "garbage"])
def test_a_lost_lane_is_closed_and_told_once(ends: tuple[socket.socket, socket.socket], how: str) -> None:
    port = Lane(ends[0], 100)
    lane_set: LaneSet[int] = LaneSet()
    lane_set.add(7, port, lambda: b"news")
    if how == "garbage":
        ends[1].sendall(b"\xff" * 8)
    else:
        ends[1].close()
    assert not lane_set.has_lost
    if how == "send":
        lane_set.send(7)
    else:
        assert lane_set.receive() == []
    assert port.fileno() == -1
    assert 7 not in lane_set
    lane_set.lose(7, Unavailable("found out again"))
    assert lane_set.has_lost
    ((key, error),) = lane_set.take_lost()
    assert (key, type(error)) == (7, ProtocolViolation if how == "garbage" else Unavailable)
    assert lane_set.take_lost() == []
    assert lane_set.receive() == []
    lane_set.send_backlogs()


def test_a_key_has_one_lane_and_the_newest_counts(lanes: tuple[Lane, Lane]) -> None:
    old, new = lanes
    lane_set: LaneSet[int] = LaneSet()
    lane_set.add(1, old, lambda: None)
    lane_set.add(1, new, lambda: None)
    assert (old.fileno(), list(lane_set.lanes)) == (-1, [new])
    assert lane_set.take_lost() == []


# --- the doorbell ---------------------------------------------------------------------------------------------------------


def is_rung(bell: Doorbell) -> bool:
    return bool(select.select([bell._inside], [], [], 0)[0])


def asleep(bell: Doorbell, *lanes: Lane) -> threading.Thread:
    """A thread that waits without end; daemon, so that one that never wakes fails its test alone."""
    sleeper = threading.Thread(target=bell.wait, args=(None, lanes), daemon=True)
    sleeper.start()
    return sleeper


def wakes(sleeper: threading.Thread) -> bool:
    sleeper.join(WITHIN_S)
    return not sleeper.is_alive()


def test_a_ring_wakes_whoever_waits() -> None:
    bell = Doorbell()
    sleeper = asleep(bell)
    bell.ring()
    assert wakes(sleeper)
    assert not is_rung(bell)


def test_rings_before_the_wait_are_kept_as_one() -> None:
    bell = Doorbell()
    for _ in range(10_000):  # more than a socket holds
        bell.ring()
    assert wakes(asleep(bell))
    assert not is_rung(bell)
    bell.wait(0.001)
    bell.ring()
    assert is_rung(bell)


def test_a_hushed_ring_is_forgotten() -> None:
    bell = Doorbell()
    bell.ring()
    bell.hush()
    assert not is_rung(bell)
    bell.hush()


def test_bytes_on_a_lane_wake_and_leave_the_rings_alone(lanes: tuple[Lane, Lane]) -> None:
    bell = Doorbell()
    sleeper = asleep(bell, lanes[0])
    lanes[1].send(b"news")
    assert wakes(sleeper)
    assert lanes[0].receive() == [b"news"]
    bell.ring()
    assert is_rung(bell)


def test_the_end_of_a_lane_wakes(lanes: tuple[Lane, Lane]) -> None:
    sleeper = asleep(Doorbell(), lanes[0])
    lanes[1].close()
    assert wakes(sleeper)


def test_room_for_what_waits_wakes(lanes: tuple[Lane, Lane]) -> None:
    writer, reader = lanes
    stuffed(writer)
    bell = Doorbell()
    bell.wait(0.001, [writer])
    sleeper = asleep(bell, writer)
    while reader.receive():
        pass
    assert wakes(sleeper)
    writer.flush()
    assert writer.backlog == 0


# --- opening --------------------------------------------------------------------------------------------------------------


def num_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@asynccontextmanager
async def door(folder: Path, answer: bytes | None) -> AsyncIterator[str]:
    """Reads a token, says `answer` and closes behind itself (None: says nothing and keeps the caller); yields the drafter's address."""
    gone = asyncio.Event()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        token = await reader.readexactly(TOKEN_BYTES)
        if answer is None:
            await gone.wait()
        elif token == TOKEN:
            writer.write(answer + struct.pack("<I", 5) + b"hello")
        writer.close()

    server = await asyncio.start_unix_server(meet, folder / f"d.sock{SUFFIX}")
    try:
        yield f"unix:{folder}/d.sock"
    finally:
        gone.set()
        server.close()
        await server.wait_closed()


def test_only_a_unix_address_has_lanes() -> None:
    assert lane_path("unix:/run/d.sock") == "/run/d.sock.lane"
    assert lane_path("localhost:50051") is None


async def test_a_token_opens_a_lane(tmp_path: Path) -> None:
    async with door(tmp_path, ACK) as address:
        lane = await open_lane(address, TOKEN, MAX_BYTES)
        assert lane is not None
        assert received(lane, 1) == [b"hello"], "what comes right behind the acknowledgement is the lane's"
        lane.close()


@pytest.mark.parametrize("case", ["no token", "not here", "no socket", "wrong token", "wrong answer", "endless path", "no socket file"])
async def test_where_there_is_no_lane_there_is_none_and_nothing_stays_open(tmp_path: Path, case: str) -> None:
    (tmp_path / f"file{SUFFIX}").touch()
    answer = b"\x15" if case == "wrong answer" else ACK
    async with door(tmp_path, answer) as address:
        before = num_open_files()
        asked = {
            "no token": (address, b""),
            "not here": ("localhost:1", TOKEN),
            "no socket": (f"unix:{tmp_path}/other.sock", TOKEN),
            "wrong token": (address, bytes(TOKEN_BYTES)),
            "wrong answer": (address, TOKEN),
            "endless path": (f"unix:{tmp_path}/{'x' * 200}", TOKEN),
            "no socket file": (f"unix:{tmp_path}/file", TOKEN),
        }[case]
        assert await open_lane(*asked, MAX_BYTES) is None
        async with asyncio.timeout(WITHIN_S):
            while num_open_files() > before:  # the door's own end
                await asyncio.sleep(0)


async def test_a_door_that_never_answers_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "OPEN_TIMEOUT_S", 0.05)
    async with door(tmp_path, None) as address, asyncio.timeout(WITHIN_S):
        assert await open_lane(address, TOKEN, MAX_BYTES) is None


async def test_a_caller_that_gives_up_leaves_no_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.fspath(tmp_path / f"d.sock{SUFFIX}"))
        listener.listen()
        before = num_open_files()
        opening = asyncio.ensure_future(open_lane(f"unix:{tmp_path}/d.sock", TOKEN, MAX_BYTES))
        accepted, _ = await asyncio.to_thread(listener.accept)
        assert await asyncio.to_thread(accepted.recv, TOKEN_BYTES) == TOKEN
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        accepted.settimeout(WITHIN_S)
        assert accepted.recv(1) == b"", "the other end is closed"
        accepted.close()
        assert num_open_files() == before


async def test_a_file_number_that_select_cannot_take_is_no_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "_MAX_FD", 2)
    async with door(tmp_path, ACK) as address:
        before = num_open_files()
        assert await open_lane(address, TOKEN, MAX_BYTES) is None
        assert num_open_files() == before
