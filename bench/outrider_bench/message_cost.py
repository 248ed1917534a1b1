"""What a message of committed tokens costs between the engine thread and the client's socket, with gRPC itself left out.

The verifier's conversion, the wire's bytes, and the gateway's whole request (stream, sample, text, queue, client write) run for real on one
event loop; a call that makes up the tokens stands where the network is. Must not know rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

from outrider.errors import OutriderError
from outrider.gateway.answer import Answer
from outrider.gateway.checks import check_request
from outrider.gateway.client_stream import ClientStream
from outrider.gateway.limits import GatewayLimits, ServedModel
from outrider.gateway.request_run import RequestRun
from outrider.gateway.resolved import resolve
from outrider.gateway.tokenizer import load_tokenizer
from outrider.gateway.verifiers import Verifier, VerifierPool
from outrider.rpc.context import Context
from outrider.rpc.convert.bundle import TAKES_BUNDLES
from outrider.rpc.handled_call import Metadata
from outrider.session.events import FinishReason
from outrider.types.identity import ModelIdentity
from outrider.types.statistics import DraftStatistics
from outrider.types.tree import TokenOrigin
from outrider.v1 import generation_pb2, verifier_pb2
from outrider_bench.part_clock import PartClock
from verifier_service.answer import AnswerMessage, SessionEnded, SessionStarted, TokensCommitted
from verifier_service.answer_messages import answer_to_proto

PROMPT_IDS = (5, 6, 7)


class MessageLoop:
    """One answer of num_messages messages of num_tokens tokens each. folder: the model's, for its tokenizer. clock: a round a message."""

    def __init__(self, folder: Path, identity: ModelIdentity, num_messages: int, num_tokens: int, clock: PartClock) -> None:
        self._tokenizer = load_tokenizer(folder)
        self._identity = identity
        self._num_messages, self._num_tokens = num_messages, num_tokens
        self._clock = clock
        self._written = asyncio.Event()
        self._to_proto = clock.timed(answer_to_proto, "verifier: to the wire's values")
        self._to_bytes = clock.timed(lambda message: message.SerializeToString(), "(bytes)")
        self._of_bytes = clock.timed(verifier_pb2.DecodeResponse.FromString, "(bytes)")

    def run(self) -> None:
        """Answer it. Raises what the gateway raises."""
        self._clock.watch(Answer, "push", "gateway: text")
        try:
            asyncio.run(self._answer())
        finally:
            self._clock.stop()
            self._clock.release()

    async def _answer(self) -> None:
        served, limits = ServedModel("target", self._identity), GatewayLimits()
        ids = generation_pb2.TokenIds(ids=PROMPT_IDS)
        message = generation_pb2.GenerateRequest(token_ids=ids, max_tokens=self._num_messages * self._num_tokens + 1)
        resolved = resolve(check_request(message, served, limits), "it", "token_ids", PROMPT_IDS, served, limits)
        run = RequestRun(resolved, "gw", "target", limits.max_queued_events, 0.0)
        stream = ClientStream(cast(Context, _Client(self)))
        await run.run(cast(VerifierPool, _Pool(self, self._identity)), self._tokenizer, None, (), stream.write)

    async def messages(self) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        """What the verifier would send, through bytes."""
        yield self._sent(SessionStarted(self._identity.fingerprint))
        begin = len(PROMPT_IDS)
        origins = (TokenOrigin.ACCEPTED,) * self._num_tokens
        for number in range(self._num_messages):
            await self._written.wait()  # one message at a time
            self._written.clear()
            self._clock.end_round()
            tokens = tuple(20 + (number + 7 * at) % 60 for at in range(self._num_tokens))
            yield self._sent(TokensCommitted(begin, tokens, origins, None))
            begin += self._num_tokens
        yield self._sent(SessionEnded(FinishReason.LENGTH, DraftStatistics()))

    def write(self, response: generation_pb2.GenerateResponse) -> None:
        """The client's socket."""
        self._to_bytes(response)
        self._written.set()

    def _sent(self, message: AnswerMessage) -> verifier_pb2.DecodeResponse:
        return self._of_bytes(self._to_bytes(self._to_proto(message, "serial")))


class _Client:
    def __init__(self, loop: MessageLoop) -> None:
        self._loop = loop

    def invocation_metadata(self) -> Metadata:
        return TAKES_BUNDLES

    async def write(self, response: generation_pb2.GenerateResponse) -> None:
        self._loop.write(response)
        await asyncio.sleep(0)  # a write goes through the event loop once


class _Pool:
    """One verifier that is always there."""

    def __init__(self, loop: MessageLoop, identity: ModelIdentity) -> None:
        self.identity = identity
        self._verifier = Verifier("127.0.0.1:1")
        self._verifier.stub = cast(Any, _Stub(loop))

    async def candidates(self, preferred: Sequence[str] = ()) -> list[Verifier]:
        return [self._verifier]

    def report_failure(self, verifier: Verifier, error: OutriderError) -> None:
        raise error


class _Stub:
    def __init__(self, loop: MessageLoop) -> None:
        self._loop = loop

    def Decode(self, timeout: float | None, metadata: object) -> _Call:
        return _Call(self._loop)


class _Call:
    def __init__(self, loop: MessageLoop) -> None:
        self._loop = loop

    async def write(self, request: verifier_pb2.DecodeRequest) -> None:
        """The start, or a stop."""

    def cancel(self) -> None:
        """Nothing is under way."""

    def __aiter__(self) -> AsyncIterator[verifier_pb2.DecodeResponse]:
        return self._loop.messages()
