"""The served end of trunks: calls that come many to a stream are handed to the methods of this server as if each had come by itself.

Handlers, refusals while the server drains, deadlines and statuses are those of every other call. A handler whose caller reads slowly waits
once a window of responses is unread; nobody else on the trunk does. Of a caller that reads nothing at all no more is heard, once much waits
for it: every call that it began would be answered, if only with a refusal. Must not know services.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from outrider.errors import InvalidRequest, Overloaded
from outrider.rpc.bad_message import unreadable_status
from outrider.rpc.context import Context
from outrider.rpc.handled_call import CALLER_LEFT, Behavior, HandledCall, Metadata, Status
from outrider.rpc.pipe import MAX_UNREAD
from outrider.rpc.served_method import ServedMethod
from outrider.rpc.trunk_outbox import EVENT_RESERVE_BYTES, TrunkOutbox, too_large
from outrider.rpc.trunk_window import WINDOW, credit
from outrider.v1 import trunk_pb2 as pb
from outrider.v1.trunk_pb2_grpc import TrunkServiceServicer

MAX_QUOTED_LEN = 128  # of a method's name that nobody knows
US_PER_S = 1e6
FLOODED = Status(grpc.StatusCode.RESOURCE_EXHAUSTED, f"more than {MAX_UNREAD} messages wait for this call's handler")
TOO_MANY = Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")


class TrunkServicer(TrunkServiceServicer):
    """methods: by full name, those that calls may be of. max_calls: at a time, over all trunks; more are RESOURCE_EXHAUSTED."""

    def __init__(self, methods: Mapping[str, ServedMethod], max_calls: int, max_message_bytes: int) -> None:
        self._methods = methods
        self._max_calls = max_calls
        self._max_event_bytes = max_message_bytes - EVENT_RESERVE_BYTES
        self._trunks: set[_ServedTrunk] = set()
        self._endings: set[asyncio.Future[None]] = set()  # of trunks: the loop alone would not keep them

    @property
    def num_trunks(self) -> int:
        """Callers that have one."""
        return len(self._trunks)

    @property
    def num_calls(self) -> int:
        """Carried calls whose handlers have not ended."""
        return sum(trunk.num_calls for trunk in self._trunks)

    async def Carry(self, requests: AsyncIterator[pb.CarryRequest], context: Context) -> None:
        """See trunk.proto."""
        trunk = _ServedTrunk(self._methods, lambda: self.num_calls < self._max_calls, self._max_event_bytes)
        self._trunks.add(trunk)
        reading = asyncio.ensure_future(trunk.read(requests))

        async def write(events: Sequence[pb.HandlerEvent]) -> None:
            await context.write(pb.CarryResponse(events=events))

        try:
            await trunk.outbox.run(write)
            if reading.done():
                reading.result()
        finally:
            # A caller that leaves is heard to say no more first, and then cancels this, at whatever it waits for by then.
            self._endings.add(ending := asyncio.ensure_future(self._end(trunk, reading)))
            ending.add_done_callback(self._endings.discard)
            await asyncio.shield(ending)

    async def _end(self, trunk: _ServedTrunk, reading: asyncio.Future[None]) -> None:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await trunk.end()
        self._trunks.discard(trunk)

    def finish(self) -> None:
        """End every trunk, and the calls that are left on it, once what was said before has left."""
        for trunk in self._trunks:
            trunk.outbox.close()


class _ServedTrunk:
    """One of them. has_room: whether another call may begin."""

    def __init__(self, methods: Mapping[str, ServedMethod], has_room: Callable[[], bool], max_event_bytes: int) -> None:
        self.outbox: TrunkOutbox[pb.HandlerEvent] = TrunkOutbox(max_event_bytes)
        self._methods = methods
        self._has_room = has_room
        self._max_event_bytes = max_event_bytes
        self._calls: dict[int, _CarriedCall] = {}

    @property
    def num_calls(self) -> int:
        """Whose handlers have not ended."""
        return len(self._calls)

    async def read(self, requests: AsyncIterator[pb.CarryRequest]) -> None:
        """Take in what callers say until they say no more. Raises InvalidRequest for what cannot be said."""
        try:
            async for request in requests:
                for event in request.events:
                    self._take(event)
                    if self.outbox.is_full:
                        await self.outbox.room()
        finally:
            self.outbox.close()

    async def end(self) -> None:
        """The callers have gone: return once no handler runs."""
        for call in tuple(self._calls.values()):
            call.end(CALLER_LEFT)
        await asyncio.gather(*(call.wait_ended() for call in tuple(self._calls.values())))

    def _take(self, event: pb.CallerEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "begin":
            self._begin(event.call, event.begin)
            return
        if kind is None:
            raise InvalidRequest("events.event", "is not set")
        call = self._calls.get(event.call)
        if call is None:
            return  # it has ended meanwhile
        if kind == "message":
            call.hear(event.message)
        elif kind == "num_read":
            call.responses.read(event.num_read)
        else:
            call.end(CALLER_LEFT)

    def _begin(self, number: int, begin: pb.CallBegin) -> None:
        if number in self._calls:
            raise InvalidRequest("events.call", f"{number} begins a second time")
        method = self._methods.get(begin.method)
        if begin.HasField("timeout_us") and not begin.timeout_us:
            raise InvalidRequest("events.begin.timeout_us", "must be at least 1")
        if method is None or not method.gives_stream:
            self.outbox.add(_ended(number, _unknown(begin.method)))
        elif not self._has_room():
            self.outbox.add(_ended(number, TOO_MANY))
        else:
            timeout_s = begin.timeout_us / US_PER_S if begin.HasField("timeout_us") else None
            responses = _Carried(number, method, self.outbox, self._max_event_bytes)
            metadata = tuple((one.key, one.value) for one in begin.metadata)
            self._calls[number] = _CarriedCall(method.of_stream, responses, timeout_s, metadata, lambda call: self._forget(call.number))

    def _forget(self, number: int) -> None:
        del self._calls[number]


def _unknown(name: str) -> Status:
    quoted = name if len(name) <= MAX_QUOTED_LEN else f"{name[:MAX_QUOTED_LEN]}…"
    return Status(grpc.StatusCode.UNIMPLEMENTED, f"{quoted!r} is no method served here that answers with a stream")


def _ended(number: int, status: Status) -> pb.HandlerEvent:
    """A call's last event."""
    trailing = [pb.CallMetadata(key=key, value=value) for key, value in status.trailing]
    told = pb.CallStatus(code=int(status.code.value[0]), details=status.details, trailing_metadata=trailing)
    return pb.HandlerEvent(call=number, status=told)


class _Carried:
    """Responses of one call, on their way to the trunk. num_read: units, as the caller has told."""

    def __init__(self, number: int, method: ServedMethod, outbox: TrunkOutbox[pb.HandlerEvent], max_event_bytes: int) -> None:
        self.number = number
        self.method = method
        self.outbox = outbox
        self._max_event_bytes = max_event_bytes
        self._num_sent = 0
        self.num_read = 0
        self._room: asyncio.Future[None] | None = None

    async def send(self, message: Any) -> bool:
        """As a handler's context has it. Raises Overloaded for one that no message can hold."""
        payload = self.method.serialize(message)
        if len(payload) > self._max_event_bytes:
            raise Overloaded(too_large(payload, self._max_event_bytes))
        while self._num_sent - self.num_read >= WINDOW:
            self._room = asyncio.get_running_loop().create_future()
            await self._room
        self._num_sent += credit(payload)
        self.outbox.add(pb.HandlerEvent(call=self.number, message=payload))
        return True

    def read(self, num_read: int) -> None:
        """The caller has read so much, in all."""
        if not self.num_read <= num_read <= self._num_sent:
            raise InvalidRequest("events.num_read", f"is {num_read}, of {self._num_sent} sent and {self.num_read} read before")
        self.num_read = num_read
        room, self._room = self._room, None
        if room is not None and not room.done():  # done: the handler was cancelled
            room.set_result(None)


class _CarriedCall(HandledCall):
    """A call whose caller is at the other end of the trunk."""

    def __init__(
        self,
        behavior: Behavior,
        responses: _Carried,
        timeout_s: float | None,
        metadata: Metadata,
        on_end: Callable[[_CarriedCall], None],
    ) -> None:
        self.responses = responses
        super().__init__(behavior, responses, timeout_s, metadata, on_end)

    @property
    def number(self) -> int:
        """Within its trunk."""
        return self.responses.number

    def hear(self, payload: bytes) -> None:
        """A request."""
        if self.status is not None:
            return
        try:
            request = self.responses.method.parse(payload)
        except DecodeError:
            self.end(unreadable_status())
            return
        if not self.requests.put(request):
            self.end(FLOODED)

    async def wait_ended(self) -> None:
        """Return once its handler has ended."""
        await asyncio.wait([self._handler])

    def _say(self, status: Status) -> None:
        self.responses.outbox.add(_ended(self.number, status))
