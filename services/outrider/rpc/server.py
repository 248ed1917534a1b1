"""The grpc.aio server every service runs in: bounds, health, reflection, error statuses, ready line and drain.

Knows grpc. Must not know any service's business. Order of a drain: health says NOT_SERVING, new calls are refused with UNAVAILABLE,
the service finishes or ends what it holds within its grace, then the sockets close and what is left is cancelled.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from outrider.errors import InvalidRequest
from outrider.rpc.address import check_address
from outrider.rpc.channel import KEEPALIVE_TIMEOUT_MS, MAX_MESSAGE_BYTES
from outrider.rpc.in_process_channel import InProcessChannel
from outrider.rpc.interceptor import ErrorInterceptor
from outrider.rpc.listening import REMEDY, check_unserved, why_not
from outrider.rpc.served_method import ServedMethod
from outrider.rpc.trunk_service import TrunkServicer
from outrider.v1 import trunk_pb2
from outrider.v1.trunk_pb2_grpc import add_TrunkServiceServicer_to_server

_LOG = logging.getLogger(__name__)
MAX_CONCURRENT_RPCS = 1024
# A peer whose machine has fallen off the network ends no stream, and a farewell that was lost is not said again. What is held for it (a
# drafter's sessions, a verifier's) is freed after this and KEEPALIVE_TIMEOUT_MS.
SERVER_KEEPALIVE_TIME_MS = 10_000
MIN_CLIENT_PING_INTERVAL_MS = 5_000
DRAIN_GRACE_S = 10.0
CLOSE_GRACE_S = 0.5
INIT_PID = 1
OVERALL = ""
TRUNK_SERVICE = trunk_pb2.DESCRIPTOR.services_by_name["TrunkService"].full_name
NOTHING_ELSE: Mapping[str, str] = {}

Drain = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """max_message_bytes: both ways; larger is RESOURCE_EXHAUSTED. max_concurrent_rpcs: more are RESOURCE_EXHAUSTED at once."""

    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_concurrent_rpcs: int = MAX_CONCURRENT_RPCS


class RpcServer:
    """One grpc.aio server. Use: construct, `add` services, `start`, `set_serving`, and `stop` (or `run_until_signal`).

    Construct it inside a running event loop. addresses (after start) are as bound, with real port numbers.
    trunks: None without `add_trunks`.
    """

    def __init__(self, addresses: Sequence[str], limits: ServerLimits | None = None) -> None:
        limits = limits or ServerLimits()
        assert addresses, "a server listens on at least one address"
        for address in addresses:
            check_address("listen", address)
        self._wanted = tuple(addresses)
        self._limits = limits
        self._methods: dict[str, ServedMethod] = {}
        self.trunks: TrunkServicer | None = None
        self._in_process: list[InProcessChannel] = []
        self._interceptor = ErrorInterceptor()
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs know the threaded servicer only
        self._names: list[str] = []
        self._kept: list[asyncio.Task[None]] = []
        self.addresses: tuple[str, ...] = ()
        self._server = grpc.aio.server(
            interceptors=[self._interceptor],
            options=_options(limits),
            maximum_concurrent_rpcs=limits.max_concurrent_rpcs,
        )
        self._by_name = _ByName(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._by_name)

    @property
    def address(self) -> str:
        """The first bound address; only after `start`."""
        return self.addresses[0]

    @property
    def draining(self) -> bool:
        """Whether new calls are refused."""
        return self._interceptor.draining

    def add(self, full_name: str, register: Callable[[Any, Any], None], servicer: object) -> None:
        """Add a service before `start`: its full name (for health and reflection), the generated add_..._to_server, the servicer."""
        register(servicer, self._by_name)
        register(servicer, _Methods(self._interceptor, self._methods))
        self._names.append(full_name)

    def add_trunks(self) -> None:
        """Before `start`: streams of the services that were added may come over trunks too."""
        self.trunks = TrunkServicer(self._methods, self._limits.max_concurrent_rpcs, self._limits.max_message_bytes)
        add_TrunkServiceServicer_to_server(self.trunks, self._by_name)  # type: ignore[no-untyped-call]
        self._names.append(TRUNK_SERVICE)

    def in_process_channel(self) -> grpc.aio.Channel:
        """A channel to the services that were added, for callers on this event loop; it ends with the server, or when it is closed."""
        channel = InProcessChannel(self._methods, self._limits.max_concurrent_rpcs)
        self._in_process.append(channel)
        return cast(grpc.aio.Channel, channel)

    def keep(self, task: asyncio.Task[None]) -> None:
        """A task that is to run as long as the server does."""
        self._kept.append(task)

    async def start(self) -> None:
        """Bind every address and accept calls; health answers NOT_SERVING until `set_serving`. Raises InvalidRequest naming an address."""
        for name in (OVERALL, *self._names):
            await self._health.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
        names = (*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflected = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]  # as with health
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflected, self._by_name)
        self.addresses = tuple(self._bind(address) for address in self._wanted)
        await self._server.start()

    async def set_serving(self, serving: bool = True, full_name: str | None = None) -> None:
        """Readiness of one service, or of all and overall; ignored once draining."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in (OVERALL, *self._names) if full_name is None else (full_name,):
            await self._health.set(name, status)

    async def stop(self, drain: Drain | None = None, grace_s: float = DRAIN_GRACE_S) -> None:
        """Drain and close. `drain(grace_s)` lets the service finish or end what it holds; past grace_s it is left behind."""
        await self._health.enter_graceful_shutdown()
        self._interceptor.draining = True
        if drain is not None:
            try:
                async with asyncio.timeout(grace_s):
                    await drain(grace_s)
            except TimeoutError:
                _LOG.warning("drain did not end within %g s; cancelling what is left", grace_s)
        if self.trunks is not None:
            self.trunks.finish()
        await self._server.stop(CLOSE_GRACE_S)
        for channel in self._in_process:
            await channel.close()
        for task in self._kept:
            task.cancel()
        await asyncio.gather(*self._kept, return_exceptions=True)

    def _bind(self, address: str) -> str:
        check_unserved("listen", address)
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise InvalidRequest("listen", f"cannot bind {address}: {why_not(address) or error}; {REMEDY}") from error
        if address.startswith("unix:"):
            return address
        return f"{address.rpartition(':')[0]}:{port}"


class _ByName:
    """Stands where generated code registers handlers, so that grpc looks each call's method up by its name.

    For methods that are registered one by one, grpc waits for the next call of each, and takes up all of these waits anew with every call
    that comes: ten function calls for each method of the server.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        """What looks methods up."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        """The same methods as above, one by one."""


class _Methods:
    """Stands where generated code registers handlers, and keeps what calls them."""

    def __init__(self, interceptor: ErrorInterceptor, methods: dict[str, ServedMethod]) -> None:
        self._interceptor = interceptor
        self._methods = methods

    def add_generic_rpc_handlers(self, handlers: Sequence[object]) -> None:
        """The same methods as below, for servers that look them up one by one."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]]) -> None:
        """Methods by their short names."""
        for name, handler in handlers.items():
            method = f"/{service}/{name}"
            behavior = self._interceptor.guarded(handler, method)
            assert handler.request_deserializer is not None, "generated code says how requests are read"
            assert handler.response_serializer is not None, "generated code says how responses are written"
            codec = handler.request_deserializer, handler.response_serializer
            self._methods[method] = ServedMethod(behavior, *codec, bool(handler.request_streaming), bool(handler.response_streaming))


async def run_until_signal(
    server: RpcServer,
    service: str,
    drain: Drain | None = None,
    grace_s: float = DRAIN_GRACE_S,
    metrics_url: str = "",
    also: Mapping[str, str] = NOTHING_ELSE,
) -> None:
    """Print the ready line of a started, serving server, wait for SIGTERM or SIGINT, drain.

    A second signal cuts the drain short: calls have CLOSE_GRACE_S to say how they end.
    """
    loop = asyncio.get_running_loop()
    first, second = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (second if first.is_set() else first).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    # What a started service holds (some 400,000 objects where torch and transformers are imported) it holds for good: a full collection
    # that walked through it would hold up every session for a tenth of a second and more.
    gc.freeze()
    try:
        print_ready(server, service, metrics_url, also)
        await first.wait()
        if not await _ends_before(second, server.stop(drain, grace_s)):
            await server.stop()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def print_ready(server: RpcServer, service: str, metrics_url: str = "", also: Mapping[str, str] = NOTHING_ELSE) -> None:
    """The one line on stdout that supervisors wait for: {"ready": true, "address": ..., "service": ..., ...}. metrics_url: where the
    process is scraped, left out when empty. also: what else is to stand there."""
    line: dict[str, object] = {
        "ready": True,
        "address": server.address,
        "service": service,
        "addresses": list(server.addresses),
        "pid": os.getpid(),
    }
    if metrics_url:
        line["metrics"] = metrics_url
    print(json.dumps(line | dict(also)), file=sys.stdout, flush=True)


def run_service(main: Coroutine[Any, Any, None]) -> None:
    """Run a process's main coroutine, on uvloop where it is installed.

    Until it serves (`run_until_signal`) it holds nothing that must be given back, so SIGINT ends it at once, as SIGTERM does: Python's
    own way would wait for threads that are loading, and end in a traceback. As the first process of a container it must say so itself: the
    kernel keeps from it what it has no handler for, and it would go on to serve for what is left of its supervisor's grace.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getpid() == INIT_PID:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: os._exit(128 + number))
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


async def _ends_before(cut_short: asyncio.Event, stopping: Coroutine[Any, Any, None]) -> bool:
    """Whether it came to its end; else it is cancelled."""
    stop_task, cut_task = asyncio.ensure_future(stopping), asyncio.ensure_future(cut_short.wait())
    done, pending = await asyncio.wait({stop_task, cut_task}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    if stop_task in done:
        stop_task.result()
    return stop_task in done


def _options(limits: ServerLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", limits.max_message_bytes),
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.keepalive_time_ms", SERVER_KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_CLIENT_PING_INTERVAL_MS),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_CLIENT_PING_INTERVAL_MS),
        ("grpc.so_reuseport", 0),
    ]
