"""What a request costs on the event loop of a process that holds gateway and verifier, with gRPC and the engine thread left out.

Gateway, in-process channel and verifier run for real on one event loop; in place of the engine thread something commits tokens as soon as
the client has the ones before, and in place of gRPC a write takes one turn of the loop. A request has phases: its OPENING ends when the
engine is asked, FIRST when the client has the first tokens, MESSAGE with every further one's, END with everything freed. Must not know what
is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from outrider.engine.config import EngineConfig
from outrider.engine.contract import EngineLimits
from outrider.gateway import servicer as gateway_servicer
from outrider.gateway.answer import Answer
from outrider.gateway.limits import GatewayLimits
from outrider.gateway.placing import Placing
from outrider.gateway.servicer import GenerationServicer
from outrider.gateway.tokenizer import load_tokenizer
from outrider.gateway.verifiers import VerifierPool
from outrider.rpc.channel import MAX_MESSAGE_BYTES
from outrider.rpc.context import Context
from outrider.rpc.convert.bundle import TAKES_BUNDLES, unbundled
from outrider.rpc.handled_call import Metadata
from outrider.rpc.server import RpcServer
from outrider.session.events import FinishReason
from outrider.types.identity import ModelIdentity
from outrider.types.statistics import DraftStatistics
from outrider.types.tree import TokenOrigin
from outrider.v1 import generation_pb2
from outrider.v1.verifier_pb2_grpc import add_VerifierServiceServicer_to_server
from outrider_bench.part_clock import PartClock
from verifier_service import servicer as verifier_servicer
from verifier_service.admission import Admission
from verifier_service.answer import AnswerStream, SessionEnded, SessionStarted, TokensCommitted
from verifier_service.inbox import Control, OpenAsked
from verifier_service.pairs import Pairs
from verifier_service.scheduler import Scheduler, SchedulerSnapshot
from verifier_service.service import SERVICE
from verifier_service.servicer import VerifierServicer
from verifier_service.settings import DraftDefaults, VerifierSettings

OPENING, FIRST, MESSAGE, END = "opening", "first token", "a message", "end"
PHASES = (OPENING, FIRST, MESSAGE, END)
PROMPT_IDS = (5, 6, 7)
MESSAGE_TOKENS = 6
NUM_MESSAGES = 4
_ADDRESS = "127.0.0.1:1"  # nobody listens there, nor is it asked
_TIMEOUT_S = 60.0


class RequestLoop:
    """num_requests requests, one at a time. folder: the model's, for its tokenizer. clock: a round a phase, one between two requests."""

    def __init__(self, folder: Path, identity: ModelIdentity, num_requests: int, clock: PartClock) -> None:
        self._tokenizer = load_tokenizer(folder)
        self._identity = identity
        self._num_requests = num_requests
        self._clock = clock
        self._engine = _Committing(clock, identity)

    def run(self) -> list[generation_pb2.GenerateResponse]:
        """Answer them all; the last one's messages. Raises what the gateway raises."""
        clock = self._clock
        clock.watch(gateway_servicer, "check_request", "gateway: checks")
        clock.watch(gateway_servicer, "resolve", "gateway: checks")
        clock.watch(Answer, "push", "gateway: text")
        clock.watch(Admission, "check", "verifier: checks")
        clock.watch(verifier_servicer, "answer_to_proto", "verifier: to the wire's values")
        try:
            return asyncio.run(self._answer_all())
        finally:
            clock.stop()
            clock.release()

    def of_phase(self, phase: str) -> list[dict[str, float]]:
        """The clock's rounds of one phase."""
        found: list[dict[str, float]] = []
        period = 2 + NUM_MESSAGES  # a pause, the opening, and the messages, the last of which is the end's
        for begin in range(0, len(self._clock.rounds), period):
            of_one = self._clock.rounds[begin + 1 : begin + period]
            parts = {OPENING: of_one[:1], FIRST: of_one[1:2], MESSAGE: of_one[2:-1], END: of_one[-1:]}
            found += parts[phase]
        return found

    async def _answer_all(self) -> list[generation_pb2.GenerateResponse]:
        verifier = RpcServer((_ADDRESS,))  # never started: what it serves is called past it
        scheduler = cast(Scheduler, self._engine)
        pairs = Pairs((), self._identity, "verifier", scheduler.inbox)
        settings = VerifierSettings(EngineConfig(self._identity.model), _ADDRESS, (), DraftDefaults(), stream_interval_ms=0.0)
        served = VerifierServicer(settings, self._identity, _LIMITS, scheduler, pairs)
        self._engine.forget = served.forget
        verifier.add(SERVICE, add_VerifierServiceServicer_to_server, served)
        pool = VerifierPool((_ADDRESS,), None, {_ADDRESS: verifier.in_process_channel()})
        await pool.connect(_TIMEOUT_S)
        gateway = GenerationServicer(pool, Placing(None, pool), self._tokenizer, GatewayLimits(), "target", MAX_MESSAGE_BYTES)
        client = _Client(self._engine)
        try:
            for _ in range(self._num_requests):
                await self._answer(gateway, served, client)
        finally:
            await pool.close()
        return client.responses

    async def _answer(self, gateway: GenerationServicer, served: VerifierServicer, client: _Client) -> None:
        ids = generation_pb2.TokenIds(ids=PROMPT_IDS)
        request = generation_pb2.GenerateRequest(token_ids=ids, max_tokens=MESSAGE_TOKENS * NUM_MESSAGES)
        client.responses.clear()
        self._clock.end_round()
        await gateway.Generate(request, cast(Context, client))
        while served.num_streams:
            await asyncio.sleep(0)
        self._clock.end_round()


_TOKENS = tuple(range(20, 20 + MESSAGE_TOKENS))
_ORIGINS = (TokenOrigin.ACCEPTED,) * MESSAGE_TOKENS
_LIMITS = EngineLimits(64, 32, 64, 2048, prefix_cache=True)


def _nothing(_: object) -> None:
    """Until there is a service."""


@dataclass
class _Committing:
    """Stands for the scheduler with its engine thread: commits what is next as soon as the client has what was before."""

    clock: PartClock
    identity: ModelIdentity
    resident: None = None
    snapshot: SchedulerSnapshot = field(default_factory=SchedulerSnapshot)
    forget: Callable[[AnswerStream], None] = _nothing
    _answer: AnswerStream | None = None
    _num_committed: int = 0

    @property
    def inbox(self) -> Any:
        """Takes what is asked."""
        return self

    def __len__(self) -> int:
        return 0

    def put(self, item: Control) -> None:
        """A stream begins; what else is asked comes too late."""
        if isinstance(item, OpenAsked):
            self.clock.end_round()
            self._answer, self._num_committed = item.answer, 0
            item.answer.push(SessionStarted(self.identity.fingerprint))
            asyncio.get_running_loop().call_soon(self._commit)  # what says that it began waits for the first tokens, so nobody hears it

    def heard(self) -> None:
        """The client has all that was committed."""
        self.clock.end_round()
        self._commit()

    def _commit(self) -> None:
        assert self._answer is not None
        begin = len(PROMPT_IDS) + self._num_committed
        self._num_committed += MESSAGE_TOKENS
        self._answer.push(TokensCommitted(begin, _TOKENS, _ORIGINS, None))
        if self._num_committed == MESSAGE_TOKENS * NUM_MESSAGES:
            self.forget(self._answer)
            self._answer.push(SessionEnded(FinishReason.LENGTH, DraftStatistics()))


class _Client:
    """grpc's context, of a client that takes bundles: a write goes through the event loop once."""

    def __init__(self, engine: _Committing) -> None:
        self._engine = engine
        self.responses: list[generation_pb2.GenerateResponse] = []

    def time_remaining(self) -> float | None:
        return None

    def invocation_metadata(self) -> Metadata:
        return TAKES_BUNDLES

    async def write(self, bundle: generation_pb2.GenerateResponse) -> None:
        self.responses += unbundled(bundle)
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        loop.call_soon(self._written, written)
        await written

    def _written(self, written: asyncio.Future[None]) -> None:
        written.set_result(None)
        if not self.responses[-1].HasField("done"):
            self._engine.heard()
