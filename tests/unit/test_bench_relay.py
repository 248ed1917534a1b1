"""The wire between the two machines of a bench: late, in order, nothing lost, and over when either side is."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from outrider.errors import InvalidRequest
from outrider_bench.loopback import free_address
from outrider_bench.relay import CHUNK_BYTES, dial, join, listen

DEADLINE_S = 30.0


def wired(delay_s: float) -> tuple[socket.socket, socket.socket, threading.Thread]:
    (near, near_end), (far_end, far) = socket.socketpair(), socket.socketpair()
    for end in (near, far):
        end.settimeout(DEADLINE_S)
    return near, far, join(near_end, far_end, delay_s)


def received(end: socket.socket, num_bytes: int) -> bytes:
    got = b""
    while len(got) < num_bytes:
        chunk = end.recv(num_bytes - len(got))
        assert chunk, f"only {len(got)} of {num_bytes} bytes came"
        got += chunk
    return got


def test_bytes_arrive_in_order_and_not_before_the_delay_in_both_directions() -> None:
    near, far, _ = wired(delay_s=0.05)
    for source, sink in ((near, far), (far, near)):
        begun_s = time.monotonic()
        source.sendall(b"one")
        source.sendall(b"two")
        assert received(sink, 6) == b"onetwo"
        assert time.monotonic() - begun_s >= 0.05
    near.close()
    far.close()


def test_messages_under_way_do_not_wait_for_each_other() -> None:
    near, far, _ = wired(delay_s=0.2)
    begun_s = time.monotonic()
    for _ in range(20):
        near.sendall(b"x" * 100)
    received(far, 2000)
    assert time.monotonic() - begun_s < 20 * 0.2 / 2  # one delay, not twenty
    near.close()
    far.close()


def test_more_than_the_wire_holds_comes_whole() -> None:
    near, far, _ = wired(delay_s=0.0)
    sent = bytes(range(256)) * (CHUNK_BYTES // 64)
    near.settimeout(DEADLINE_S)
    near.sendall(sent[: len(sent) // 2])
    first = received(far, len(sent) // 2)
    near.sendall(sent[len(sent) // 2 :])
    assert first + received(far, len(sent) - len(first)) == sent
    near.close()
    far.close()


def test_the_end_of_one_side_reaches_the_other_after_what_was_sent() -> None:
    near, far, closing = wired(delay_s=0.01)
    near.sendall(b"last words")
    near.close()
    assert received(far, 10) == b"last words"
    assert far.recv(1) == b""
    far.close()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()


def test_a_side_that_is_gone_does_not_hold_the_other() -> None:
    near, far, closing = wired(delay_s=0.01)
    far.close()
    assert near.recv(1) == b""
    near.close()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_wire_is_called_and_calls_by_either_kind_of_address(kind: str, tmp_path: Path) -> None:
    address = free_address("127.0.0.14") if kind == "tcp" else f"unix:{tmp_path}/near.sock"
    with listen(address) as listener:
        listener.settimeout(DEADLINE_S)
        near = dial(address)
        accepted, _ = listener.accept()
    with near, accepted:
        near.sendall(b"hello")
        assert received(accepted, 5) == b"hello"
        assert kind == "unix" or near.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with pytest.raises(OSError, match=r"refused|No such file"):
        dial(free_address("127.0.0.14") if kind == "tcp" else f"unix:{tmp_path}/nobody.sock")


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="neither host:port nor unix"):
        listen("nowhere")
