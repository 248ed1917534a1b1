"""Where verifiers of this machine open the lanes of their streams: a socket beside each unix: address the drafter listens at.

Knows tokens and sockets. Must not know streams: whoever has the token is handed on to the stream that gave it out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from outrider.errors import InvalidRequest
from outrider.rpc.lane import ACK, OPEN_TIMEOUT_S, TOKEN_BYTES, Lane, check_selectable, lane_path

_LOG = logging.getLogger(__name__)
MAX_KNOCKING = 16
_RETRY_S = 0.1
_MAX_PATH_LEN = 107  # of a unix socket's name, the closing zero left out


class LaneDoor:
    """open_for: takes a token and says what to do with its lane, None when nobody gave that token out (or its lane is open already)."""

    def __init__(
        self, addresses: Sequence[str], open_for: Callable[[bytes], Callable[[Lane], None] | None], max_message_bytes: int
    ) -> None:
        """Bind; raises InvalidRequest naming the address when that fails."""
        self._open_for = open_for
        self._max_message_bytes = max_message_bytes
        self._listeners: dict[Path, socket.socket] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        try:
            for address in addresses:
                path = lane_path(address)
                if path is None:
                    continue
                if len(os.fsencode(path)) > _MAX_PATH_LEN:  # the address itself may just fit: lanes are no reason to refuse it
                    _LOG.warning("no lanes beside %s: %s is longer than a socket's name may be", address, path)
                else:
                    self._listeners[Path(path)] = _bound(Path(path), address)
        except InvalidRequest:
            self._close()
            raise

    def start(self) -> None:
        """Begin to accept, in the running event loop."""
        for listener in self._listeners.values():
            self._keep(asyncio.create_task(self._accept(listener), name="lanes"))

    async def stop(self) -> None:
        """Accept no more; lanes that are open stay with their streams."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close()

    def _close(self) -> None:
        for path, listener in self._listeners.items():
            listener.close()
            path.unlink(missing_ok=True)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        knocking = asyncio.Semaphore(MAX_KNOCKING)
        while True:
            await knocking.acquire()
            try:
                end, _ = await loop.sock_accept(listener)
            except OSError as error:  # too many open files: streams go on without lanes until there is room
                _LOG.warning("a lane could not be accepted: %s", error)
                knocking.release()
                await asyncio.sleep(_RETRY_S)
                continue
            task = asyncio.create_task(self._admit(end))
            task.add_done_callback(lambda _: knocking.release())
            self._keep(task)

    async def _admit(self, end: socket.socket) -> None:
        """Whoever knows a token gets its stream's lane, anybody else is shown the door."""
        is_open = False
        try:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(OPEN_TIMEOUT_S):
                    is_open = await self._open(end)
        finally:
            if not is_open:
                end.close()

    async def _open(self, end: socket.socket) -> bool:
        """Whether it became a lane. Raises OSError when that failed."""
        loop = asyncio.get_running_loop()
        end.setblocking(False)
        check_selectable(end)
        hand_on = self._open_for(await _exactly(end, TOKEN_BYTES))
        if hand_on is None:
            return False
        await loop.sock_sendall(end, ACK)
        hand_on(Lane(end, self._max_message_bytes))
        return True


async def _exactly(end: socket.socket, length: int) -> bytes:
    """So many bytes; OSError when the other side ends before."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < length:
        more = await loop.sock_recv(end, length - len(data))
        if not more:
            raise OSError("closed")
        data += more
    return data


def _bound(path: Path, address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    try:
        if path.is_socket():  # left by a process that was killed; the address itself is bound by now, so no other drafter has it
            path.unlink()
        listener.bind(os.fspath(path))
        listener.listen(MAX_KNOCKING)
    except OSError as error:
        listener.close()
        raise InvalidRequest("listen", f"cannot bind the lanes of {address} (--no-lanes does without): {error}") from error
    return listener
