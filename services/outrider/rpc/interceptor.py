"""One server interceptor: errors become statuses, requests that cannot be read among them, a draining server refuses new calls, and
generators are closed on cancellation.

Knows the four handler shapes of grpc.aio. Must not know any service. Streaming handlers may be async generators or coroutines that
use `context.read` / `context.write`; generators run inside a coroutine that closes them, so that their `finally` blocks run at once
when a call is cancelled (grpc itself leaves that to garbage collection).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from outrider.errors import OutriderError, Unavailable
from outrider.rpc.bad_message import UNREADABLE, guarded_parse, unreadable
from outrider.rpc.context import Context
from outrider.rpc.status import error_metadata, status_details, status_of

_LOG = logging.getLogger(__name__)
_ALWAYS_SERVED = ("/grpc.health.", "/grpc.reflection.")

if TYPE_CHECKING:  # generic in the stubs only
    _ServerInterceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    _ServerInterceptor = grpc.aio.ServerInterceptor

Behavior = Callable[[Any, Context], Awaitable[Any]]


class ErrorInterceptor(_ServerInterceptor):
    """Maps OutriderError through the status table; anything else is INTERNAL, with its traceback in the log only."""

    def __init__(self) -> None:
        self.draining = False
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}  # of the methods that are served, wrapped at their first call

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Wraps the handler of a method; unknown methods stay grpc's business."""
        method = handler_call_details.method
        wrapped = self._handlers.get(method)
        if wrapped is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        wrapped = self._handlers[method] = self._wrapped(handler, method)
        return wrapped

    def guarded(self, handler: grpc.RpcMethodHandler[Any, Any], method: str) -> Behavior:
        """What grpc is given to call, of any of the four shapes, for calls that come past it."""
        return self._guarded(handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream, method)

    def _wrapped(self, handler: grpc.RpcMethodHandler[Any, Any], method: str) -> grpc.RpcMethodHandler[Any, Any]:
        parse = handler.request_deserializer
        serializers = {
            "request_deserializer": parse and guarded_parse(parse, takes_stream=bool(handler.request_streaming)),
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._guarded(handler.unary_unary, method), **serializers)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._guarded(handler.unary_stream, method), **serializers)
        if handler.stream_unary:
            return grpc.stream_unary_rpc_method_handler(self._guarded(handler.stream_unary, method), **serializers)
        return grpc.stream_stream_rpc_method_handler(self._guarded(handler.stream_stream, method), **serializers)

    def _guarded(self, behavior: Any, method: str) -> Behavior:
        run: Behavior = _written_out(behavior) if inspect.isasyncgenfunction(behavior) else behavior
        may_be_refused = not method.startswith(_ALWAYS_SERVED)

        async def call(request: Any, context: Context) -> Any:
            try:
                if request is UNREADABLE:
                    raise unreadable()
                if self.draining and may_be_refused:
                    raise Unavailable("the service is draining; ask another replica or retry later")
                return await run(request, context)
            except OutriderError as error:
                await _abort(context, error, method)
            except grpc.aio.InternalError as error:
                await _refused_by_core(context, error, method)
            except (grpc.aio.AbortError, grpc.aio.AioRpcError) as error:
                await _pass_on(context, error, method)
            except Exception:  # noqa: BLE001 -- the process's edge: a bug costs its own call, never the server
                _LOG.exception("unexpected failure in %s", method)
                await context.abort(grpc.StatusCode.INTERNAL, "internal error; the server's log has the details")

        return call


def _written_out(behavior: Callable[[Any, Context], AsyncGenerator[Any, None]]) -> Behavior:
    """An async generator as a coroutine that writes what it yields."""

    async def call(request: Any, context: Context) -> None:
        async with aclosing(behavior(request, context)) as responses:
            async for response in responses:
                await context.write(response)

    return call


async def _abort(context: Context, error: OutriderError, method: str) -> NoReturn:
    try:
        await context.abort(status_of(error), status_details(error), error_metadata(error))
    except grpc.aio.InternalError as failure:
        raise _caller_left(method) from failure


async def _refused_by_core(context: Context, error: grpc.aio.InternalError, method: str) -> NoReturn:
    """Core refuses to send to a caller that has gone before grpc has cancelled our task, and to a peer what no message or header may be.
    Whoever is there is told, or would wait for ever; who has gone cannot be."""
    try:
        await context.abort(grpc.StatusCode.INTERNAL, "internal error; the server's log has the details")
    except grpc.aio.AbortError:
        _LOG.error("grpc refused what the handler of %s gave it, or its caller has just left", method, exc_info=error)
        raise
    except grpc.aio.InternalError as failure:
        raise _caller_left(method) from failure


def _caller_left(method: str) -> asyncio.CancelledError:
    """Core refuses to send to a caller that has gone before grpc has cancelled our task: the same event, told twice."""
    _LOG.debug("the caller of %s left while we wrote to it", method)
    return asyncio.CancelledError()


async def _pass_on(context: Context, error: BaseException, method: str) -> NoReturn:
    """A handler that aborted stays aborted; a peer's failure that nobody translated is ours to report as INTERNAL."""
    if isinstance(error, grpc.aio.AioRpcError):
        _LOG.error("untranslated failure of a peer in %s", method, exc_info=error)
        await context.abort(grpc.StatusCode.INTERNAL, "internal error; the server's log has the details")
    raise error
