"""One Decode stream at a verifier: opened, read in order, stopped or cancelled, and always closed.

Knows the messages of VerifierService.Decode. Must not know text. What a verifier sends is checked for order and lengths, so that its
mistake fails this request with a sentence instead of corrupting an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

import grpc

from outrider.errors import Cancelled, OutriderError, Unavailable
from outrider.gateway.liveness import Listener
from outrider.gateway.verifiers import Verifier
from outrider.rpc.status import RemoteFailure, error_from_rpc
from outrider.v1 import generation_pb2
from outrider.v1 import verifier_pb2 as pb

SETTLE_TIMEOUT_S = 2.0


class DecodeStream:
    """Use: `stream = await open_stream(...)`, `read` until a DecodeFinished (or `settle`), and `close` in any case."""

    def __init__(
        self,
        verifier: Verifier,
        call: Any,
        responses: AsyncIterator[pb.DecodeResponse],
        started: pb.DecodeStarted,
        start: pb.DecodeStart,
    ) -> None:
        self.verifier = verifier
        self.started = started
        self._call = call
        # Iterated rather than read(): grpc refuses read() once a write has failed, although messages still wait.
        self._responses = responses
        self._committed_len = len(start.prefix)
        self._wants_logprobs = start.HasField("top_logprobs")
        self._closed = False
        self._end: pb.DecodeFinished | None = None  # came with the newest tokens
        self.listener = Listener(verifier.liveness)
        self._clock = asyncio.get_running_loop().time

    @property
    def has_ended(self) -> bool:
        """Whether the end came with the newest tokens."""
        return self._end is not None

    async def read(self) -> pb.DecodeCommitted | pb.DecodeFinished:
        """The next message; raises the verifier's error, or RemoteFailure for a message that cannot be. Inside `async with listener`, a
        verifier that is lost while this waits ends the block."""
        if self._end is not None:
            return self._end
        self.listener.since_s = self._clock()
        try:
            message = await _read(self._responses)
        finally:
            self.listener.since_s = None
        kind = message.WhichOneof("message")
        if kind == "finished":
            return message.finished
        if kind != "committed":
            raise RemoteFailure(f"the verifier sent {kind} where committed tokens or the end were due")
        self._check(message.committed)
        if message.committed.HasField("end"):
            self._end = message.committed.end
        return message.committed

    async def settle(self, *, stop: bool) -> generation_pb2.DraftStatistics:
        """The session's statistics once it has ended; what it still commits is discarded. stop: tell it to end (a stop string was
        found, which only we know of). Empty ones when it does not end within SETTLE_TIMEOUT_S."""
        if self._end is not None:
            return self._end.statistics
        try:
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                return await self._settle(stop)
        except (TimeoutError, OutriderError):
            return generation_pb2.DraftStatistics()

    def close(self) -> None:
        """Cancel the call if it still runs; safe to repeat."""
        if not self._closed:
            self._closed = True
            self.verifier.num_live -= 1
            self._call.cancel()

    async def _settle(self, stop: bool) -> generation_pb2.DraftStatistics:
        if stop:
            await self._send_stop()
        while True:
            message = await _read(self._responses)
            if message.HasField("finished"):
                return message.finished.statistics
            if message.committed.HasField("end"):
                return message.committed.end.statistics
            if not stop:
                stop = True
                await self._send_stop()

    async def _send_stop(self) -> None:
        """Best effort: the session may have ended by itself meanwhile, and its last messages can still be read."""
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self._call.write(pb.DecodeRequest(stop=pb.DecodeStop(detail="the answer is complete")))

    def _check(self, committed: pb.DecodeCommitted) -> None:
        num_tokens = len(committed.token_ids)
        if committed.begin != self._committed_len:
            raise RemoteFailure(f"the verifier committed tokens at {committed.begin} where {self._committed_len} was due")
        if len(committed.origins) != num_tokens:
            raise RemoteFailure(f"the verifier sent {len(committed.origins)} origins for {num_tokens} tokens")
        if self._wants_logprobs and len(committed.logprobs) != num_tokens:
            raise RemoteFailure(f"the verifier sent {len(committed.logprobs)} log-probabilities for {num_tokens} tokens")
        self._committed_len += num_tokens


async def open_stream(
    verifier: Verifier, start: pb.DecodeStart, timeout_s: float | None, metadata: tuple[tuple[str, str], ...]
) -> DecodeStream:
    """Start a session and wait until it is admitted; raises the verifier's refusal, or VerifierLost when it does not answer. Nothing is
    held after a raise."""
    listener = Listener(verifier.liveness)
    listener.since_s = asyncio.get_running_loop().time()
    async with listener:
        return await _open(verifier, start, timeout_s, metadata)


async def _open(verifier: Verifier, start: pb.DecodeStart, timeout_s: float | None, metadata: tuple[tuple[str, str], ...]) -> DecodeStream:
    call = verifier.stub.Decode(timeout=timeout_s, metadata=metadata)
    verifier.num_live += 1
    try:
        await _write_start(call, start, verifier.address)
        responses: AsyncIterator[pb.DecodeResponse] = aiter(call)
        message = await _read(responses)
        if not message.HasField("started"):
            raise RemoteFailure(f"the verifier's first message was {message.WhichOneof('message')}, not started")
        return DecodeStream(verifier, call, responses, message.started, start)
    except BaseException:
        verifier.num_live -= 1
        call.cancel()
        raise


def check_fingerprint(streams: Sequence[DecodeStream], fingerprint: str) -> None:
    """Raises Unavailable, with the streams closed, when another engine answers at the verifier's address than when it was last asked."""
    if all(stream.started.fingerprint == fingerprint for stream in streams):
        return
    for stream in streams:
        stream.close()
    raise Unavailable(f"verifier {streams[0].verifier.address} has changed since it was last asked; it will be asked anew who it is")


async def _write_start(call: Any, start: pb.DecodeStart, address: str) -> None:
    """A call that ends before our first message left has done nothing: another verifier may be asked."""
    try:
        await call.write(pb.DecodeRequest(start=start))
    except asyncio.InvalidStateError as failure:
        raise Unavailable(f"verifier {address} ended the call before it began") from failure
    except grpc.aio.AioRpcError as failure:
        error = _error_of(failure)
        raise Unavailable(f"verifier {address}: {error}") if isinstance(error, RemoteFailure) else error from failure


async def _read(responses: AsyncIterator[pb.DecodeResponse]) -> pb.DecodeResponse:
    try:
        return await anext(responses)
    except StopAsyncIteration:
        raise RemoteFailure("the verifier ended the stream before the answer was complete") from None
    except grpc.aio.AioRpcError as failure:
        raise _error_of(failure) from failure


def _error_of(failure: grpc.aio.AioRpcError) -> OutriderError:
    """What we cancel ourselves never comes back as a status: a verifier that cancels closes down, and the request may be asked again."""
    error = error_from_rpc(failure)
    return Unavailable(f"the verifier gave the answer up: {error}") if type(error) is Cancelled else error
