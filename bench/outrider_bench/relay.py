"""A wire that takes time: every byte sent through it arrives `delay` later, in order, in both directions.

Stands between a verifier and a drafter on one machine, so that they meet as if a network lay between them. What it adds beside the delay
is handing each chunk from one thread to another, tens of microseconds. Must not know what it carries.
"""

from __future__ import annotations

import argparse
import json
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence

from outrider.rpc.address import check_address

CHUNK_BYTES = 64 * 2**10
MAX_CHUNKS_UNDER_WAY = 256  # then the sender is held back, as by a full pipe
MAX_WAITING_CONNECTIONS = 16
_UNIX = "unix:"


def main() -> None:
    """Listen, say so on stdout as the services do, and carry until killed."""
    arguments = build_parser().parse_args()
    check_address("--to", arguments.to)
    listener = listen(arguments.listen)
    print(json.dumps({"address": arguments.listen}), flush=True)
    while True:
        near, _ = listener.accept()
        try:
            far = dial(arguments.to)
        except OSError as error:
            print(f"{arguments.to} is not there: {error}", file=sys.stderr, flush=True)
            near.close()
            continue
        _at_once(near)
        join(near, far, arguments.delay_us / 1e6)


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m outrider_bench.relay", description="A wire between two sockets that takes time.")
    parser.add_argument("--listen", required=True, help="host:port or unix:/path to be called at")
    parser.add_argument("--to", required=True, help="host:port or unix:/path of whoever is to be reached")
    parser.add_argument("--delay-us", type=int, required=True, help="microseconds each byte is under way, one way")
    return parser


def listen(address: str) -> socket.socket:
    """A listening socket. Raises InvalidRequest for what is no address, OSError for one that cannot be had."""
    check_address("--listen", address)
    if not address.startswith(_UNIX):
        return socket.create_server(_host_and_port(address), backlog=MAX_WAITING_CONNECTIONS)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address.removeprefix(_UNIX))
    listener.listen(MAX_WAITING_CONNECTIONS)
    return listener


def dial(address: str) -> socket.socket:
    """A connection. Raises OSError when nobody is there."""
    end = socket.socket(socket.AF_UNIX if address.startswith(_UNIX) else socket.AF_INET)
    try:
        end.connect(address.removeprefix(_UNIX) if address.startswith(_UNIX) else _host_and_port(address))
    except OSError:
        end.close()
        raise
    _at_once(end)
    return end


def join(near: socket.socket, far: socket.socket, delay_s: float) -> threading.Thread:
    """Carry both ways until both sides have ended, then close both sockets; returns the thread that does so last."""
    carrying = (*carry(near, far, delay_s), *carry(far, near, delay_s))
    closing = threading.Thread(target=_close_after, args=(carrying, (near, far)), daemon=True)
    closing.start()
    return closing


def carry(source: socket.socket, sink: socket.socket, delay_s: float) -> tuple[threading.Thread, threading.Thread]:
    """What comes from `source` goes to `sink` delay_s later; the end of one is the end of the other."""
    under_way: queue.Queue[tuple[float, bytes]] = queue.Queue(MAX_CHUNKS_UNDER_WAY)
    threads = (
        threading.Thread(target=_take, args=(source, under_way, delay_s), daemon=True),
        threading.Thread(target=_deliver, args=(sink, under_way), daemon=True),
    )
    for thread in threads:
        thread.start()
    return threads


def _close_after(carrying: Sequence[threading.Thread], sockets: Sequence[socket.socket]) -> None:
    for thread in carrying:
        thread.join()
    for each in sockets:
        each.close()


def _take(source: socket.socket, under_way: queue.Queue[tuple[float, bytes]], delay_s: float) -> None:
    while True:
        try:
            chunk = source.recv(CHUNK_BYTES)
        except OSError:
            chunk = b""  # a broken line ends like a closed one
        under_way.put((time.monotonic() + delay_s, chunk))
        if not chunk:
            return


def _deliver(sink: socket.socket, under_way: queue.Queue[tuple[float, bytes]]) -> None:
    is_open = True
    while True:
        due_s, chunk = under_way.get()
        left_s = due_s - time.monotonic()
        if left_s > 0.0:
            time.sleep(left_s)
        if not chunk:
            break
        if is_open:
            is_open = _sent(sink, chunk)  # a sink that is gone: go on taking, so that the other thread can end
    if is_open:
        _end(sink)


def _sent(sink: socket.socket, chunk: bytes) -> bool:
    try:
        sink.sendall(chunk)
    except OSError:
        return False
    return True


def _end(sink: socket.socket) -> None:
    try:
        sink.shutdown(socket.SHUT_WR)
    except OSError as error:
        print(f"the other side had hung up already: {error}", file=sys.stderr, flush=True)


def _at_once(end: socket.socket) -> None:
    """Small messages do not wait for the acknowledgement of those before them: the delay is ours alone."""
    if end.family == socket.AF_INET:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main()
