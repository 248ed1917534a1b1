"""The callers' end of a trunk: a channel whose streams share one, for generated stubs that need not know of it.

Calls of one message each way go as they always do, and so does a large request for a stream: on the trunk all others would wait behind it,
and a server that takes less than the caller may send would end them with it. A trunk is opened with the first stream and again after it
broke; what breaks it ends the calls it carries, with its own status, as a broken connection would. Must not know services.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, cast

import grpc

from outrider.rpc.channel import MAX_MESSAGE_BYTES
from outrider.rpc.handled_call import CALLER_LEFT, EXPIRED, Metadata, Status
from outrider.rpc.pipe import Pipe
from outrider.rpc.trunk_outbox import EVENT_RESERVE_BYTES, TrunkOutbox, too_large
from outrider.rpc.trunk_window import TELL_AFTER_S, TELL_EVERY, WINDOW, credit
from outrider.v1 import trunk_pb2 as pb
from outrider.v1.trunk_pb2_grpc import TrunkServiceStub

CODES = {int(code.value[0]): code for code in grpc.StatusCode}
_OVERWRITTEN = "Internal error from Core"  # grpc's own words, in place of what the peer said (its issue 36066)
ENDED = Status(grpc.StatusCode.UNAVAILABLE, "the peer ended the stream that carried this call")
FLOODED = Status(grpc.StatusCode.INTERNAL, f"the peer sent more than {WINDOW} messages ahead of their reader")
US_PER_S = 1e6
LARGE_BYTES = 64 * 1024  # a request for a stream beyond this has a stream of its own
_Serialize = Callable[[Any], bytes]
_Parse = Callable[[bytes], Any]


class TrunkChannel:
    """channel: to a server with a TrunkService; it stays its owner's to close, after this one. max_message_bytes: as of the channel."""

    def __init__(self, channel: grpc.aio.Channel, max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._channel = channel
        self._max_event_bytes = max_message_bytes - EVENT_RESERVE_BYTES
        self._stub = TrunkServiceStub(channel)  # type: ignore[no-untyped-call]
        self._trunk: _Trunk | None = None

    @property
    def num_calls(self) -> int:
        """Streams that have not ended."""
        return 0 if self._trunk is None else self._trunk.num_calls

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """A stub's method of one message each way."""
        return self._channel.unary_unary(method, *args, **kwargs)

    def stream_stream(
        self, method: str, request_serializer: _Serialize, response_deserializer: _Parse, **_: Any
    ) -> Callable[..., TrunkCall]:
        """A stub's method of a stream each way."""

        def call(timeout: float | None = None, metadata: Iterable[tuple[str, str]] = ()) -> TrunkCall:
            begun = TrunkCall(self._live_trunk(), request_serializer, response_deserializer)
            begun.begin(method, timeout, tuple(metadata))
            return begun

        return call

    def unary_stream(self, method: str, request_serializer: _Serialize, response_deserializer: _Parse, **_: Any) -> Callable[..., Any]:
        """A stub's method of one message there and a stream back."""
        begin = self.stream_stream(method, request_serializer, response_deserializer)
        alone = self._channel.unary_stream(method, None, response_deserializer)

        def call(request: Any, timeout: float | None = None, metadata: Iterable[tuple[str, str]] = ()) -> Any:
            payload = request_serializer(request)
            if len(payload) > LARGE_BYTES:
                return alone(payload, timeout=timeout, metadata=tuple(metadata))
            begun = begin(timeout, metadata)
            begun.send_payload(payload)
            return begun

        return call

    async def close(self) -> None:
        """End the trunk and its calls."""
        if self._trunk is not None:
            await self._trunk.close()

    def _live_trunk(self) -> _Trunk:
        if self._trunk is None or self._trunk.has_ended:
            self._trunk = _Trunk(self._stub, self._max_event_bytes)
        return self._trunk


class _Trunk:
    """One stream, until it breaks. max_event_bytes: of a request."""

    def __init__(self, stub: TrunkServiceStub, max_event_bytes: int) -> None:
        self.max_event_bytes = max_event_bytes
        self.outbox: TrunkOutbox[pb.CallerEvent] = TrunkOutbox(max_event_bytes)
        self.has_ended = False
        self._numbers = itertools.count()
        self._calls: dict[int, TrunkCall] = {}
        self._stream: Any = stub.Carry()
        self._writing = asyncio.create_task(self._write())
        self._reading = asyncio.create_task(self._read())

    @property
    def num_calls(self) -> int:
        """That have not ended."""
        return len(self._calls)

    def add(self, call: TrunkCall) -> int:
        """Carry it; returns its number."""
        number = next(self._numbers)
        self._calls[number] = call
        return number

    def forget(self, number: int) -> None:
        """It has ended."""
        self._calls.pop(number, None)

    async def close(self) -> None:
        """From this side. What a task does at its end is not done by one that has not begun: a trunk may be closed where it was opened."""
        self._reading.cancel()
        self._end(ENDED)
        await asyncio.gather(self._reading, self._writing, return_exceptions=True)

    async def _write(self) -> None:
        async def write(events: Sequence[pb.CallerEvent]) -> None:
            await self._stream.write(pb.CarryRequest(events=events))

        try:
            await self.outbox.run(write)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader hears why

    async def _read(self) -> None:
        status = ENDED
        try:
            async for response in self._stream:
                for event in response.events:
                    self._take(event)
        except grpc.aio.AioRpcError as failure:
            status = _status_of(failure)
        finally:
            self._end(status)

    def _take(self, event: pb.HandlerEvent) -> None:
        call = self._calls.get(event.call)
        if call is None:
            return  # it was given up meanwhile
        if event.HasField("status"):
            trailing = tuple((one.key, one.value) for one in event.status.trailing_metadata)
            call.end(Status(CODES.get(event.status.code, grpc.StatusCode.UNKNOWN), event.status.details, trailing))
        elif not call.hear(event.message):
            call.give_up(FLOODED)

    def _end(self, status: Status) -> None:
        self.has_ended = True
        for call in tuple(self._calls.values()):
            call.end(status)
        self.outbox.close()
        self._writing.cancel()
        self._stream.cancel()


class TrunkCall:
    """A caller's half, as grpc's: `write`, `cancel`, and responses by iteration."""

    def __init__(self, trunk: _Trunk, serialize: _Serialize, parse: _Parse) -> None:
        self._trunk = trunk
        self._serialize = serialize
        self._parse = parse
        self._number = trunk.add(self)
        self._responses: Pipe[bytes] = Pipe()
        self._status: Status | None = None
        self._left = False
        self._num_read = 0
        self._num_told = 0
        self._clock = asyncio.get_running_loop().time
        self._told_s = self._clock()
        self._expiry: asyncio.TimerHandle | None = None

    def begin(self, method: str, timeout_s: float | None, metadata: Metadata) -> None:
        """Say what is called."""
        begin = pb.CallBegin(method=method, metadata=[pb.CallMetadata(key=key, value=value) for key, value in metadata])
        if timeout_s is not None:
            begin.timeout_us = max(1, round(timeout_s * US_PER_S))
            self._expiry = asyncio.get_running_loop().call_later(timeout_s, self.give_up, EXPIRED)
        self._say(begin=begin)

    async def write(self, request: Any) -> None:
        """Send one message. Raises asyncio.InvalidStateError once the call has ended, as grpc does."""
        if self._status is not None:
            raise asyncio.InvalidStateError("the call has ended")
        self.send(request)

    def send(self, request: Any) -> None:
        """A message; of a call that has ended nobody hears."""
        self.send_payload(self._serialize(request))

    def send_payload(self, payload: bytes) -> None:
        """A message's bytes. Those that no message of the trunk can hold end this call: sent, they would end the trunk."""
        if len(payload) > self._trunk.max_event_bytes:
            self.give_up(Status(grpc.StatusCode.RESOURCE_EXHAUSTED, too_large(payload, self._trunk.max_event_bytes)))
        else:
            self._say(message=payload)

    def cancel(self) -> bool:
        """The caller wants no more; whether that ended the call."""
        was_live = self._status is None
        self._left = self._left or was_live
        self.give_up(CALLER_LEFT)
        return was_live

    def hear(self, payload: bytes) -> bool:
        """A response came. False: it was not to be sent yet."""
        return self._responses.put(payload)

    def give_up(self, status: Status) -> None:
        """End it from this side, and tell the handler."""
        if self._status is None:
            self._say(cancelled=pb.CallCancelled())
            self.end(status)

    def end(self, status: Status) -> None:
        """So it ended; the caller hears of it behind what is unread."""
        if self._status is not None:
            return
        self._status = status
        if self._expiry is not None:
            self._expiry.cancel()
        self._trunk.forget(self._number)
        self._responses.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """The next message, StopAsyncIteration after the last of a call that went well. Raises grpc.aio.AioRpcError for any other end, and
        CancelledError to a caller that cancelled it."""
        payload = await self._responses.receive()
        if payload is not None:
            self._count_read(payload)
            return self._parse(payload)
        assert self._status is not None, "a closed pipe has a status"
        raise self._status.end_of_iteration(left=self._left)

    def _count_read(self, payload: bytes) -> None:
        self._num_read += credit(payload)
        now_s = self._clock()
        is_due = self._num_read - self._num_told >= TELL_EVERY or now_s - self._told_s >= TELL_AFTER_S
        if is_due and self._status is None:
            self._num_told, self._told_s = self._num_read, now_s
            self._say(num_read=self._num_read)

    def _say(self, **event: Any) -> None:
        self._trunk.outbox.add(pb.CallerEvent(call=self._number, **event))


def _status_of(failure: grpc.aio.AioRpcError) -> Status:
    """Of a trunk, for the calls it carried. A peer that knows no trunks will say so when it is next asked who it is; until then it counts
    as gone. So does one whose stream ended while it was written to."""
    metadata = cast("Iterable[tuple[str, str]]", failure.trailing_metadata() or ())
    trailing = tuple((key, str(value)) for key, value in metadata)
    code, details = failure.code(), failure.details() or ""
    is_gone = code is grpc.StatusCode.UNIMPLEMENTED or (code is grpc.StatusCode.INTERNAL and details == _OVERWRITTEN)
    return Status(grpc.StatusCode.UNAVAILABLE if is_gone else code, details, trailing)
