"""A small Python client of GenerationService: values in, values out, errors of ours instead of statuses.

Knows grpc channels through outrider.rpc. Must not know verifiers or drafters. One client is one channel; use it from one event loop. With
many requests at a time `connect(..., share_stream=True)` has what comes for all of them at once come in one message.

    async with await connect("127.0.0.1:7070") as client:
        async for event in client.generate(GenerationRequest(prompt="2 + 2 =")):
            ...

An answer that goes on at another gateway when its own is lost: outrider.resuming.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import grpc

from outrider.errors import InvalidRequest, Unavailable
from outrider.rpc.channel import MAX_MESSAGE_BYTES, READY_TIMEOUT_S, ChannelLimits, open_channel, wait_connected, wait_ready
from outrider.rpc.context import MAX_TIMEOUT_S
from outrider.rpc.convert.bundle import TAKES_BUNDLES, unbundled
from outrider.rpc.convert.generation import (
    abort_to_proto,
    answer_from_proto,
    chat_to_proto,
    event_from_proto,
    model_info_from_proto,
    request_to_proto,
    text_to_proto,
)
from outrider.rpc.status import error_from_rpc
from outrider.rpc.trunk_channel import TrunkChannel
from outrider.types.generation import Answer, AnswerEvent, ChatMessage, GenerationRequest, ServedModelInfo
from outrider.v1 import generation_pb2 as pb
from outrider.v1.generation_pb2_grpc import GenerationServiceStub

INFO_TIMEOUT_S = 10.0


class OutriderClient:
    """Made by `connect`. Calls raise the errors of outrider.errors, as the gateway meant them; DeadlinePassed after timeout_s.
    Overloaded.retry_after_s says when to ask again, where somebody could tell."""

    def __init__(
        self, address: str, channel: grpc.aio.Channel, *, share_stream: bool = False, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self.address = address
        self._channel = channel
        self._trunks = TrunkChannel(channel, max_message_bytes) if share_stream else None
        self._stub: Any = GenerationServiceStub(self._trunks or channel)  # type: ignore[no-untyped-call]
        self._is_closed = False

    async def generate(self, request: GenerationRequest, timeout_s: float | None = None) -> AsyncIterator[AnswerEvent]:
        """Stream an answer: Started, Deltas, one Finished per sample, Done. Leaving the loop early (aclose) cancels the request.

        timeout_s: the whole request's deadline, kept by every service; None, or infinite: no deadline.
        """
        self._check_open()
        call = self._stub.Generate(request_to_proto(request), timeout=checked_timeout(timeout_s), metadata=TAKES_BUNDLES)
        try:
            with _errors_of_ours():
                async for bundle in call:
                    for message in unbundled(bundle):
                        yield event_from_proto(message)
        finally:
            call.cancel()

    async def generate_once(self, request: GenerationRequest, timeout_s: float | None = None) -> Answer:
        """The whole answer at once."""
        message = pb.GenerateOnceRequest(request=request_to_proto(request))
        return answer_from_proto(await self._call(self._stub.GenerateOnce, message, timeout_s))

    async def abort(self, request_id: str) -> None:
        """End a live request; raises UnknownSession when none has this id."""
        await self._call(self._stub.Abort, abort_to_proto(request_id), INFO_TIMEOUT_S)

    async def model_info(self) -> ServedModelInfo:
        """What the gateway serves and holds."""
        return model_info_from_proto(await self._call(self._stub.GetModelInfo, pb.GetModelInfoRequest(), INFO_TIMEOUT_S))

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, as a prompt would be."""
        response = await self._call(self._stub.Tokenize, text_to_proto(text), INFO_TIMEOUT_S)
        return tuple(response.token_ids)

    async def tokenize_chat(self, messages: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Token ids of a conversation through the model's template, as a chat request would be."""
        response = await self._call(self._stub.Tokenize, chat_to_proto(messages), INFO_TIMEOUT_S)
        return tuple(response.token_ids)

    async def close(self) -> None:
        """Close the channel; live calls end with Unavailable, and further ones raise it."""
        self._is_closed = True
        if self._trunks is not None:
            await self._trunks.close()
        await self._channel.close(None)

    async def __aenter__(self) -> OutriderClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def _check_open(self) -> None:
        """grpc raises what is none of our errors."""
        if self._is_closed:
            raise Unavailable(f"this client of {self.address} was closed")

    async def _call(self, method: Any, message: Any, timeout_s: float | None) -> Any:
        self._check_open()
        with _errors_of_ours():
            return await method(message, timeout=checked_timeout(timeout_s))


@contextmanager
def _errors_of_ours() -> Iterator[None]:
    """In place of what grpc raises. A channel that is closed cancels its calls, whose readers nobody asked to end: a task group would take
    it for its own doing, and the answer would be lost without a word."""
    try:
        yield
    except grpc.aio.AioRpcError as failure:
        raise error_from_rpc(failure) from failure
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise Unavailable("the client was closed") from None


def checked_timeout(timeout_s: float | None) -> float | None:
    """None for one beyond MAX_TIMEOUT_S. Raises InvalidRequest for what is no time."""
    if timeout_s is None:
        return None
    if not timeout_s >= 0.0:  # nor is NaN
        raise InvalidRequest("timeout_s", f"must be at least 0, got {timeout_s}")
    return timeout_s if timeout_s <= MAX_TIMEOUT_S else None


async def connect(
    address: str, timeout_s: float = READY_TIMEOUT_S, limits: ChannelLimits | None = None, *, share_stream: bool = False
) -> OutriderClient:
    """Open a channel and wait until the gateway answers; raises Unavailable naming the address when it does not within timeout_s.

    share_stream: its answers come over one stream (trunk.proto), for a client with many requests at a time; not at a gateway from before
    there were trunks, whose answers then end with Unavailable."""
    limits = limits or ChannelLimits()
    channel = open_channel(address, limits)
    try:
        await wait_ready(channel, address, timeout_s)
    except BaseException:
        await channel.close(None)
        raise
    return OutriderClient(address, channel, share_stream=share_stream, max_message_bytes=limits.max_message_bytes)


async def connect_at_once(address: str, timeout_s: float) -> OutriderClient:
    """As `connect`, but an address at which nobody listens is given up at once."""
    channel = open_channel(address)
    try:
        await wait_connected(channel, address, timeout_s)
    except BaseException:
        await channel.close(None)
        raise
    return OutriderClient(address, channel)


def address_of_ready_line(line: str) -> str:
    """The address in a service's ready line; raises Unavailable when the line is not one."""
    try:
        ready = json.loads(line)
    except ValueError:
        ready = None
    if not isinstance(ready, dict) or ready.get("ready") is not True or not isinstance(ready.get("address"), str):
        raise Unavailable(f"not a ready line: {line.strip()[:200]!r}")
    return str(ready["address"])
