"""Links between machines that can be cut and slowed while they are in use: TCP, one relay for each link, all on one thread.

A relay stands on the machine of whoever it leads to, so that whoever calls it uses that machine's cable. A cut link is silent: nobody hears
of an end, and what was sent arrives once it is mended. Must not know what it carries, nor why it is cut.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from types import TracebackType

from outrider_bench.machine import Machine

CHUNK_BYTES = 64 * 2**10
MAX_CHUNKS_UNDER_WAY = 256  # then the sender is held back, as by a full pipe
MAX_WAITING_CONNECTIONS = 128
START_TIMEOUT_S = 10.0


class Wire:
    """One link. listen: where it is called at; to: who is reached by it; both on the machine. Made by Wires.add."""

    def __init__(self, machine: Machine, listen: str, to: str) -> None:
        self._machine = machine
        self.listen = listen
        self.to = to
        self.delay_s = 0.0
        self._whole = asyncio.Event()
        self._whole.set()
        self._carrying: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """On the wires' thread: silence."""
        self._whole.clear()

    def mend(self) -> None:
        """On the wires' thread: what waits arrives."""
        self._whole.set()

    def end(self) -> None:
        """On the wires' thread: every connection ends."""
        for call in self._carrying:
            call.cancel()

    async def serve(self) -> asyncio.Server:
        """Listen; connections last until one side ends them."""
        with self._machine.inside():
            listener = socket.create_server(_split(self.listen), backlog=MAX_WAITING_CONNECTIONS)
        return await asyncio.start_server(self._accept, sock=listener)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The caller's connection ends with its task, also with one that is cancelled before it has begun."""
        call = asyncio.create_task(self._lead(reader, writer))
        self._carrying.add(call)

        def end(_: asyncio.Task[None]) -> None:
            self._carrying.discard(call)
            writer.transport.abort()  # a peer that was killed resets too

        call.add_done_callback(end)

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            far_reader, far_writer = await self._dial()
        except OSError:  # nobody is there: the caller finds out as it would without us
            writer.close()
            return
        both = [asyncio.create_task(self._carry(reader, far_writer)), asyncio.create_task(self._carry(far_reader, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            far_writer.transport.abort()  # at once: the end of all wires may come while we wait for the two
            await asyncio.gather(*both, return_exceptions=True)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises OSError when nobody is there."""
        with self._machine.inside():
            end = socket.socket()
        end.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(end, _split(self.to))
        except BaseException:
            end.close()
            raise
        return await asyncio.open_connection(sock=end)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_CHUNKS_UNDER_WAY)
        clock = asyncio.get_running_loop().time

        async def take() -> None:
            with suppress(ConnectionError):  # who is killed resets its connections: that is their end, too
                while chunk := await source.read(CHUNK_BYTES):
                    await under_way.put((clock() + self.delay_s, chunk))
            await under_way.put((clock() + self.delay_s, b""))

        taking = asyncio.create_task(take())
        try:
            while True:
                due_s, chunk = await under_way.get()
                if (wait_s := due_s - clock()) > 0.0:
                    await asyncio.sleep(wait_s)  # the delay itself, not a way to wait for anybody
                await self._whole.wait()
                if not chunk:
                    return
                sink.write(chunk)
                await sink.drain()
        except ConnectionError:
            return
        finally:
            taking.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await taking


class Wires:
    """All links of a run, on a thread of their own. Use as a context manager; the methods may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._servers: list[asyncio.Server] = []
        self._wires: list[Wire] = []

    def add(self, machine: Machine, listen: str, to: str) -> Wire:
        """Lay a link from `listen` to `to`, both host:port of the machine. Raises OSError for an address that cannot be had."""

        async def lay() -> Wire:
            wire = Wire(machine, listen, to)
            self._servers.append(await wire.serve())
            self._wires.append(wire)
            return wire

        return asyncio.run_coroutine_threadsafe(lay(), self._loop).result(START_TIMEOUT_S)

    def cut(self, wire: Wire) -> None:
        """Silence from now on."""
        self._loop.call_soon_threadsafe(wire.cut)

    def mend(self, wire: Wire) -> None:
        """Whole again."""
        self._loop.call_soon_threadsafe(wire.mend)

    def slow(self, wire: Wire, delay_s: float) -> None:
        """Every byte that comes from now on is so long under way, each way."""
        wire.delay_s = delay_s

    def __enter__(self) -> Wires:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        async def close() -> None:
            for server in self._servers:
                server.close()
            while others := asyncio.all_tasks() - {asyncio.current_task()}:  # asyncio's own, which accept, bring us the last of ours
                for wire in self._wires:
                    wire.end()
                await asyncio.wait(others)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)
        self._loop.close()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
