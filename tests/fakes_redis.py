"""Redis for tests: a real server (Valkey) for a module, and listeners that behave as no server should."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from outrider_bench.chaos.redis_server import RedisServer
from outrider_bench.loopback import free_address

WAIT_S = 30.0  # a bound on what would hang, no measure of speed
HOST = "127.0.0.16"  # where nobody else takes a port between its choice and its use


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    server = RedisServer(free_address(HOST), folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def strange_server(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """The URL of a listener that answers whatever it reads with `answer` of it, nothing for b""."""
    with socket.create_server((HOST, 0)) as listener:
        threads: list[threading.Thread] = []
        over = threading.Event()

        def serve(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(WAIT_S)
                while not over.is_set() and (asked := connection.recv(1 << 16)):
                    if told := answer(asked):
                        connection.sendall(told)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
                    threads[-1].start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield f"redis://{HOST}:{listener.getsockname()[1]}/0"
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(WAIT_S)


def until(is_so: Callable[[], object], wait_s: float = WAIT_S) -> None:
    """Return once it is so, looked at a hundred times a second; fails after wait_s."""
    never = threading.Event()
    for _ in range(round(100 * wait_s)):
        if is_so():
            return
        never.wait(0.01)
    raise AssertionError("it did not come to be")
