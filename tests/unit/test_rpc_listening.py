"""A socket's name that is taken, left over or no place for one: what a service says before it serves, and whom it leaves alone.

pytest tests/unit/test_rpc_listening.py
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from drafter_service.__main__ import serve_loaded
from drafter_service.settings import parse_settings as drafter_settings
from machine_service.__main__ import main as run_machine
from outrider.errors import InvalidRequest
from outrider.gateway.__main__ import parse_config
from outrider.gateway.gateway import start_gateway
from outrider.rpc.channel import open_channel, wait_ready
from outrider.rpc.listening import check_free, check_unserved, why_not
from outrider.rpc.server import RpcServer
from verifier_service.process import serve_engine
from verifier_service.settings import parse_settings as verifier_settings

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


def test_what_is_free_or_left_over_may_be_listened_at(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(f"{folder}/left.sock")
    check_free({"--listen": ("127.0.0.1:0", f"unix:{folder}/free.sock", f"unix:{folder}/left.sock")})
    assert [path.name for path in folder.iterdir()] == ["left.sock"], "what was tried leaves nothing, and takes nothing away"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InvalidRequest, match=f"--listen: cannot bind {address}: Address already in use; end what listens there"):
            check_free({"--listen": ("127.0.0.1:0", address)})


def test_a_name_that_stands_for_what_this_machine_has_not_is_free_where_it_stands_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """In containers without IPv6 `localhost` is ::1 too, and grpc listens at the other."""
    here, elsewhere = ("127.0.0.1", 0), ("192.0.2.1", 0)  # of TEST-NET-1, which no machine has

    def named(*places: tuple[str, int]) -> None:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    named(elsewhere, here)
    assert why_not("localhost:0") == ""
    named(elsewhere)
    assert why_not("localhost:0") == "Cannot assign requested address"
    with socket.create_server(here) as taken:
        named(elsewhere, ("127.0.0.1", taken.getsockname()[1]))
        assert why_not("localhost:7070") == "Address already in use"


def test_what_a_process_wants_twice_is_noticed(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    check_free({"--listen": ("127.0.0.1:0", "127.0.0.1:0", f"unix:{folder}/a"), "--metrics-port": (f"127.0.0.1:{port}",)})
    for one, other in ((f"127.0.0.1:{port}",) * 2, (f"127.0.0.1:{port}", f"0.0.0.0:{port}"), (f"unix:{folder}/a", f"unix:{folder}/./a")):
        with pytest.raises(InvalidRequest, match=f"--metrics-port: {other} is taken by this process's own --listen {one}; name another"):
            check_free({"--listen": (one,), "--metrics-port": (other,)})


@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize("option", ["--listen", "--metrics-port"])
def test_a_taken_address_is_noticed_before_a_model_is_loaded(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> NoReturn:
        raise AssertionError("nothing is loaded for an address that is taken")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken_option = [option, str(port) if option == "--metrics-port" else f"127.0.0.1:{port}"]
        options = ["--model", "m", "--listen", "127.0.0.1:0", *taken_option]
        assert serve_engine(verifier_settings(options), load) == 2
        assert f"verifier_service: {option}: cannot bind 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err
        assert serve_loaded(drafter_settings(options if option == "--metrics-port" else options[:2] + taken_option), load) == 2
        assert f"drafter_service: {option}: cannot bind 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err
        gateway = ["--verifier", "127.0.0.1:1", "--verifier-timeout-s", "2", "--listen", "127.0.0.1:0", *taken_option]
        with pytest.raises(InvalidRequest, match=f"{option}: cannot bind 127.0.0.1:{port}: Address already in use"):
            asyncio.run(start_gateway(parse_config(gateway)[0]))
        assert run_machine([*options[:2], "--", "--", *(taken_option if option == "--listen" else options[2:])]) == 2
        assert f"machine_service: {option}: cannot bind 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err
