"""Where lanes are opened: one lane for each token, nothing for strangers, and no file or socket left behind.

pytest tests/unit/test_drafter_lane_door.py
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from drafter_service import lane_door
from drafter_service.lane_door import MAX_KNOCKING, LaneDoor
from outrider.errors import InvalidRequest, ProtocolViolation
from outrider.rpc import lane as lane_module
from outrider.rpc.lane import TOKEN_BYTES, Lane, open_lane

MAX_BYTES = 1 << 20
WITHIN_S = 30.0
TOKEN, OTHER_TOKEN = bytes(range(TOKEN_BYTES)), bytes(TOKEN_BYTES)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: unix socket names have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="ol-") as name:
        yield Path(name)


class Streams:
    """Who waits for a lane, as the servicer knows it, and the lanes that were opened."""

    def __init__(self, *tokens: bytes) -> None:
        self.tokens = set(tokens)
        self.opened: dict[bytes, Lane] = {}
        self.num_asked = 0

    def open_for(self, token: bytes) -> Callable[[Lane], None] | None:
        self.num_asked += 1
        if token not in self.tokens:
            return None
        self.tokens.remove(token)
        return lambda lane: self.opened.update({token: lane})


@asynccontextmanager
async def standing(folder: Path, streams: Streams) -> AsyncIterator[str]:
    """An open door; yields the address of its drafter."""
    address = f"unix:{folder}/d.sock"
    door = LaneDoor(["localhost:50051", address], streams.open_for, MAX_BYTES)
    door.start()
    try:
        yield address
    finally:
        await door.stop()
        for lane in streams.opened.values():
            lane.close()


async def stranger(folder: Path) -> socket.socket:
    """Somebody who connects and says nothing."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.setblocking(False)
    await asyncio.get_running_loop().sock_connect(end, os.fspath(folder / "d.sock.lane"))
    return end


async def shown_the_door(end: socket.socket) -> bool:
    async with asyncio.timeout(WITHIN_S):
        try:
            return not await asyncio.get_running_loop().sock_recv(end, 1)
        except ConnectionResetError:  # it closed on words of ours that it had not read
            return True


async def test_a_token_opens_one_lane_only(folder: Path) -> None:
    streams = Streams(TOKEN, OTHER_TOKEN)
    async with standing(folder, streams) as address:
        first = await open_lane(address, TOKEN, MAX_BYTES)
        assert first is not None
        assert await open_lane(address, TOKEN, MAX_BYTES) is None
        other = await open_lane(address, OTHER_TOKEN, MAX_BYTES)
        assert other is not None
        for lane, token in ((first, TOKEN), (other, OTHER_TOKEN)):
            streams.opened[token].send(token)
            assert lane.receive() == [token]
            lane.close()


async def test_both_ends_know_the_bound_of_a_message(folder: Path) -> None:
    streams = Streams(TOKEN)
    async with standing(folder, streams) as address:
        lane = await open_lane(address, TOKEN, MAX_BYTES)
        assert lane is not None
        lane.send(bytes(MAX_BYTES + 1))
        with pytest.raises(ProtocolViolation):
            streams.opened[TOKEN].receive()
        lane.close()


@pytest.mark.parametrize("words", [bytes(TOKEN_BYTES), b"GET / HTTP/1.1\r\n\r\n", TOKEN[:-1] + b"!"])
async def test_a_stranger_is_shown_the_door_and_nobody_else_notices(folder: Path, words: bytes) -> None:
    streams = Streams(TOKEN)
    async with standing(folder, streams) as address:
        end = await stranger(folder)
        await asyncio.get_running_loop().sock_sendall(end, words)
        assert await shown_the_door(end)
        end.close()
        assert (streams.num_asked, streams.tokens) == (1, {TOKEN})
        lane = await open_lane(address, TOKEN, MAX_BYTES)
        assert lane is not None
        lane.close()


async def test_whoever_hangs_up_or_stops_in_the_middle_is_never_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_door, "OPEN_TIMEOUT_S", 0.05)
    streams = Streams(TOKEN)
    async with standing(folder, streams):
        gone, halting = await stranger(folder), await stranger(folder)
        gone.close()
        await asyncio.get_running_loop().sock_sendall(halting, TOKEN[:-1])
        assert await shown_the_door(halting)
        halting.close()
        assert streams.num_asked == 0


async def test_silent_strangers_keep_nobody_out(folder: Path) -> None:
    streams = Streams(TOKEN)
    async with standing(folder, streams) as address, asyncio.timeout(lane_module.OPEN_TIMEOUT_S / 2):
        silent = [await stranger(folder) for _ in range(MAX_KNOCKING - 1)]
        lane = await open_lane(address, TOKEN, MAX_BYTES)
        assert lane is not None
        lane.close()
        for end in silent:
            end.close()


async def test_more_silent_strangers_than_are_heard_hold_a_caller_up_until_they_are_thrown_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_door, "OPEN_TIMEOUT_S", 0.05)
    streams = Streams(TOKEN)
    async with standing(folder, streams) as address:
        silent = [await stranger(folder) for _ in range(2 * MAX_KNOCKING)]
        monkeypatch.setattr(lane_module, "OPEN_TIMEOUT_S", WITHIN_S)
        lane = await open_lane(address, TOKEN, MAX_BYTES)
        assert lane is not None
        lane.close()
        for end in silent:
            end.close()


async def test_a_file_number_that_select_cannot_take_is_turned_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(TOKEN)
    async with standing(folder, streams):
        monkeypatch.setattr(lane_module, "_MAX_FD", 2)
        end = await stranger(folder)
        await asyncio.get_running_loop().sock_sendall(end, TOKEN)
        assert await shown_the_door(end)
        end.close()
        assert streams.num_asked == 0


async def test_a_socket_that_a_killed_drafter_left_is_replaced(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stale:
        stale.bind(os.fspath(folder / "d.sock.lane"))
    streams = Streams(TOKEN)
    async with standing(folder, streams) as address:
        lane = await open_lane(address, TOKEN, MAX_BYTES)
        assert lane is not None
        lane.close()


async def test_a_closed_door_leaves_no_file_and_no_socket_but_its_lanes_stay(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    streams = Streams(TOKEN)
    door = LaneDoor([f"unix:{folder}/{name}.sock" for name in "de"], streams.open_for, MAX_BYTES)
    assert sorted(path.name for path in folder.iterdir()) == ["d.sock.lane", "e.sock.lane"]
    door.start()
    silent = await stranger(folder)
    lane = await open_lane(f"unix:{folder}/e.sock", TOKEN, MAX_BYTES)
    assert lane is not None
    await door.stop()
    assert list(folder.iterdir()) == []
    assert await shown_the_door(silent)
    lane.send(b"still here")
    assert streams.opened[TOKEN].receive() == [b"still here"]
    for end in (silent, lane, streams.opened[TOKEN]):
        end.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("case", ["no folder", "taken by a file"])
async def test_a_path_that_cannot_be_used_is_named_and_what_was_bound_is_given_back(folder: Path, case: str) -> None:
    (folder / "f.sock.lane").touch()
    name = {"no folder": "none/d", "taken by a file": "f"}[case]
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(InvalidRequest, match=f"listen: cannot bind the lanes of unix:{folder}/{name}.sock .--no-lanes does without.: "):
        LaneDoor([f"unix:{folder}/d.sock", f"unix:{folder}/{name}.sock"], Streams().open_for, MAX_BYTES)
    assert [path.name for path in folder.iterdir()] == ["f.sock.lane"]
    assert len(os.listdir("/proc/self/fd")) == before


async def test_an_address_that_just_fits_has_no_lanes(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = len(os.fsencode(folder)) + len("/.sock.lane")
    fits, too_long = "x" * (107 - whole), "x" * (108 - whole)
    door = LaneDoor([f"unix:{folder}/{name}.sock" for name in (fits, too_long)], Streams().open_for, MAX_BYTES)
    assert [path.name for path in folder.iterdir()] == [f"{fits}.sock.lane"]
    assert "no lanes beside" in caplog.text
    await door.stop()
