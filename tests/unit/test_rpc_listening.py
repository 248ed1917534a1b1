"""A socket's name that is taken, left over or no place for one: what a service says before it serves, and whom it leaves alone.

pytest tests/unit/test_rpc_listening.py
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.errors import InvalidRequest
from outrider.rpc.channel import open_channel, wait_ready
from outrider.rpc.listening import check_unserved, why_not
from outrider.rpc.server import RpcServer

WAIT_S = 30.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: unix socket names have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="o-") as name:
        yield Path(name)


async def test_a_socket_that_is_served_is_not_taken_from_its_owner(folder: Path) -> None:
    address = f"unix:{folder}/s.sock"
    owner, other = RpcServer([address]), RpcServer([address])
    await owner.start()
    try:
        with pytest.raises(InvalidRequest, match=rf"listen: cannot bind {address}: another process serves there; end what listens there"):
            await other.start()
        await other.stop()
        async with open_channel(address) as channel:
            await wait_ready(channel, address, WAIT_S)
    finally:
        await owner.stop()


async def test_a_socket_that_a_killed_process_left_is_taken_over(folder: Path) -> None:
    address = f"unix:{folder}/s.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(f"{folder}/s.sock")
        killed.listen()
    server = RpcServer([address])
    await server.start()
    async with open_channel(address) as channel:
        await wait_ready(channel, address, WAIT_S)
    await server.stop()


def test_one_whose_queue_is_full_is_served_all_the_same(folder: Path) -> None:
    """As of a process that is stopped."""
    with socket.socket(socket.AF_UNIX) as stopped, socket.socket(socket.AF_UNIX) as waiting:
        stopped.bind(f"{folder}/s.sock")
        stopped.listen(0)
        waiting.connect(f"{folder}/s.sock")
        with pytest.raises(InvalidRequest, match="--listen: cannot bind unix:"):
            check_unserved("--listen", f"unix:{folder}/s.sock")


def test_the_systems_reason_is_said(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert why_not(f"127.0.0.1:{taken.getsockname()[1]}") == "Address already in use"
    assert why_not("127.0.0.1:0") == ""
    assert why_not(f"unix:{folder}/nowhere/s.sock") == "No such file or directory"
    assert "too long" in why_not(f"unix:{folder}/{'x' * 107}")
    assert why_not(f"unix:{folder}/free.sock") == ""
    (folder / "file").write_text("somebody's")
    assert why_not(f"unix:{folder}/file") == "Address already in use"
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert (folder / "file").read_text() == "somebody's"
