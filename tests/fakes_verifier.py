"""A VerifierService that answers from a script: runs of any length, held, hurt or failing where a test wants it, counting what is live;
and a gateway over such verifiers, in this process but on real sockets.

Knows the Decode messages. Its answers are exact in order and positions, so that the gateway's checks pass; `overrun` makes it keep
committing beyond stop tokens and max_tokens, as a run of accepted drafts would if nobody cut it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import grpc

from outrider.client import OutriderClient, connect
from outrider.engine.vocabulary import read_vocabulary
from outrider.errors import AlreadyExists, OutriderError, ProtocolViolation, Unavailable
from outrider.gateway.gateway import Gateway, GatewayConfig, start_gateway
from outrider.gateway.limits import GatewayLimits
from outrider.gateway.verifiers import REFRESH_S
from outrider.rpc.channel import ChannelLimits, open_channel
from outrider.rpc.context import Context
from outrider.rpc.convert import identity_to_proto, statistics_to_proto
from outrider.rpc.server import RpcServer
from outrider.types.identity import ModelIdentity, Numerics
from outrider.types.statistics import DraftStatistics
from outrider.v1 import generation_pb2, identity_pb2, sampling_pb2
from outrider.v1 import verifier_pb2 as pb
from outrider.v1.generation_pb2_grpc import GenerationServiceStub
from outrider.v1.verifier_pb2_grpc import VerifierServiceServicer, add_VerifierServiceServicer_to_server

VERIFIER_SERVICE = "outrider.v1.VerifierService"
IDLE_TIMEOUT_S = 30.0
STALL_S = 0.3
MODEL_DIR = Path(__file__).parents[1] / "models" / "ref-small"
_VOCABULARY = read_vocabulary(MODEL_DIR)
assert _VOCABULARY is not None
VOCAB_HASH = _VOCABULARY.hash


class Hurt(Enum):
    """What befalls a verifier once a stream has committed `FakeVerifier.hurt_after` tokens.

    DIE: its server closes every connection. FREEZE: nobody gets an answer, GetInfo neither, until `thaw`. STUCK: only GetInfo answers, and
    steps stand still until `thaw`. DRAIN: every stream ends with UNAVAILABLE, and no new one is taken.
    """

    DIE = 1
    FREEZE = 2
    STUCK = 3
    DRAIN = 4


class Hold(Enum):
    """Where a stream waits until `FakeVerifier.release` is set."""

    BEFORE_STARTED = 1
    AFTER_STARTED = 2
    AFTER_FIRST_COMMIT = 3
    BEFORE_FINISHED = 4


def fake_identity(vocab_size: int = 2048, max_context: int = 512, eos: tuple[int, ...] = (3,), model: str = "fake/target") -> ModelIdentity:
    """An identity that passes every check."""
    return ModelIdentity(
        model=model,
        revision="r1",
        weights_hash="aa" * 16,
        vocab_hash=VOCAB_HASH,
        vocab_size=vocab_size,
        dtype="float32",
        numerics=Numerics.INVARIANT,
        fingerprint="cc" * 16,
        max_context=max_context,
        eos_token_ids=eos,
    )


@dataclass
class FakeVerifier(VerifierServiceServicer):
    """script: the whole answer, as tokens or as a function of the start. run_lens: lengths of successive commits, repeated for ever.

    refuse: raised instead of starting. fail: raised after the first commit. hurt, hurt_after: see Hurt; it happens once. starts: every
    DecodeStart seen. num_live: streams held. reached: a hold was reached. hurting: it was hurt. stalled: a commit could not be written for
    STALL_S. num_asked: GetInfo calls. draining: commits say so. end_with_tokens: the end comes with the last commit.
    carries_calls: its streams may come over trunks. refuse_info: raised instead of saying who it is.
    """

    script: Sequence[int] | Callable[[pb.DecodeStart], Sequence[int]]
    run_lens: Sequence[int] = (1,)
    identity: ModelIdentity = field(default_factory=fake_identity)
    overrun: bool = False
    hold: Hold | None = None
    refuse: OutriderError | None = None
    fail: OutriderError | None = None
    hurt: Hurt | None = None
    hurt_after: int = 1
    logprob_rows: int = 0
    starts: list[pb.DecodeStart] = field(default_factory=list)
    num_live: int = 0
    num_stopped: int = 0
    num_commits: int = 0
    num_asked: int = 0
    draining: bool = False
    end_with_tokens: bool = False
    carries_calls: bool = True
    refuse_info: OutriderError | None = None

    def __post_init__(self) -> None:
        self.release = asyncio.Event()
        self.reached = asyncio.Event()
        self.stalled = asyncio.Event()
        self.hurting = asyncio.Event()
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._frozen = False
        self._dying: asyncio.Future[None] | None = None
        self._changed = asyncio.Condition()
        self._live_ids: set[str] = set()
        self._leaving: set[asyncio.Future[None]] = set()
        self.server: RpcServer | None = None

    async def GetInfo(self, request: pb.VerifierServiceGetInfoRequest, context: Context) -> pb.VerifierServiceGetInfoResponse:
        self.num_asked += 1
        async with self._changed:
            self._changed.notify_all()
        if self.refuse_info is not None:
            raise self.refuse_info
        if self._frozen:
            await self._thawed.wait()
        drafter = identity_to_proto(fake_identity(model="fake/draft"))
        pairs = [pb.PairInfo(endpoint="a", connected=True, identity=drafter), pb.PairInfo(endpoint="b", problem="gone")]
        live = identity_pb2.LiveCounts(sessions=self.num_live, streams=self.num_live)
        identity = identity_to_proto(self.identity)
        return pb.VerifierServiceGetInfoResponse(
            identity=identity, pairs=pairs, live=live, pacings=["plain"], num_steps=self.num_commits, carries_calls=self.carries_calls
        )

    async def Decode(self, requests: AsyncIterator[pb.DecodeRequest], context: Context) -> None:
        first = await anext(aiter(requests), None)
        if first is None or not first.HasField("start"):
            raise ProtocolViolation("the first message must be start")
        start = first.start
        self.starts.append(start)
        await self._thawed.wait()
        if start.session_id in self._live_ids:
            raise AlreadyExists(f"session {start.session_id} is live")
        await self._count(start.session_id, +1)
        stopped = asyncio.Event()
        listener = asyncio.ensure_future(self._listen(requests, stopped))
        try:
            await self._answer(start, context, stopped)
        finally:
            listener.cancel()
            with suppress(asyncio.CancelledError, grpc.aio.BaseError):
                await listener
            # Shielded: a cancellation that comes in here, when the answer was already out, must not leave the stream counted for ever.
            leaving = asyncio.ensure_future(self._count(start.session_id, -1))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            await asyncio.shield(leaving)

    async def dead(self) -> None:
        """Return once DIE is over: the address is free."""
        assert self._dying is not None
        await self._dying

    def freeze(self) -> None:
        """From now on nobody gets an answer, until `thaw`."""
        self._frozen = True
        self._thawed.clear()

    def thaw(self) -> None:
        """The end of FREEZE or STUCK."""
        self._frozen = False
        self._thawed.set()

    async def wait_live(self, num_live: int) -> None:
        """Return once exactly this many streams are held; TimeoutError after IDLE_TIMEOUT_S."""
        await self.wait_until(lambda: self.num_live == num_live)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once it holds, looked at with every stream that comes or goes and every GetInfo; TimeoutError after IDLE_TIMEOUT_S."""
        async with asyncio.timeout(IDLE_TIMEOUT_S), self._changed:
            await self._changed.wait_for(condition)

    async def _hurt(self, num_tokens: int) -> None:
        """What `hurt` says, when its time has come; returns to a stream that may go on."""
        if self.hurt is not None and num_tokens >= self.hurt_after:
            how, self.hurt = self.hurt, None
            self.hurting.set()
            if how is Hurt.FREEZE:
                self.freeze()
            elif how is Hurt.STUCK:
                self._thawed.clear()
            elif how is Hurt.DRAIN:
                self.refuse = Unavailable("the verifier is shutting down")
            else:
                assert self.server is not None
                self._dying = asyncio.ensure_future(self.server.stop(grace_s=0.0))
        await self._thawed.wait()
        if self._dying is not None:
            await asyncio.Event().wait()  # until the server's end cancels us
        if self.hurting.is_set() and self.refuse is not None:
            raise self.refuse

    async def _count(self, session_id: str, change: int) -> None:
        async with self._changed:
            self.num_live += change
            (self._live_ids.add if change > 0 else self._live_ids.discard)(session_id)
            self._changed.notify_all()

    async def _listen(self, requests: AsyncIterator[pb.DecodeRequest], stopped: asyncio.Event) -> None:
        async for request in requests:
            if request.HasField("stop"):
                self.num_stopped += 1
                stopped.set()

    async def _answer(self, start: pb.DecodeStart, context: Context, stopped: asyncio.Event) -> None:
        await self._held(Hold.BEFORE_STARTED)
        if self.refuse is not None:
            raise self.refuse
        await context.write(pb.DecodeResponse(started=pb.DecodeStarted(fingerprint=self.identity.fingerprint, pacing="plain")))
        await self._held(Hold.AFTER_STARTED)
        begin = len(start.prefix)
        runs = self._runs(start)
        for number, run in enumerate(runs, 1):
            await self._hurt(begin - start.num_prompt_tokens)
            if stopped.is_set():
                break
            committed = self._committed(start, begin, run)
            begin += len(run)
            self.num_commits += 1
            if self.end_with_tokens and start.takes_end and number == len(runs):
                committed.end.CopyFrom(self._finished(start, begin, stopped))
                await self._write(context, pb.DecodeResponse(committed=committed))
                return
            await self._write(context, pb.DecodeResponse(committed=committed))
            if self.fail is not None:
                raise self.fail
            await self._held(Hold.AFTER_FIRST_COMMIT)
        await self._held(Hold.BEFORE_FINISHED)
        await context.write(pb.DecodeResponse(finished=self._finished(start, begin, stopped)))

    async def _write(self, context: Context, response: pb.DecodeResponse) -> None:
        """A write that takes longer than STALL_S sets `stalled`: the reader holds us back."""
        handle = asyncio.get_running_loop().call_later(STALL_S, self.stalled.set)
        try:
            await context.write(response)
        finally:
            handle.cancel()

    async def _held(self, at: Hold) -> None:
        if self.hold is at:
            self.reached.set()
            await self.release.wait()

    def _runs(self, start: pb.DecodeStart) -> list[list[int]]:
        script = list(self.script(start) if callable(self.script) else self.script)
        num_done = len(start.prefix) - start.num_prompt_tokens
        tokens = script[num_done:]
        if not self.overrun:
            tokens = tokens[: start.max_tokens - num_done]
            end = next((index for index, token in enumerate(tokens) if token in start.stop_token_ids), None)
            tokens = tokens if end is None else tokens[: end + 1]
        runs: list[list[int]] = []
        lengths = itertools.cycle(self.run_lens)
        while tokens:
            length = next(lengths)
            runs.append(tokens[:length])
            tokens = tokens[length:]
        return runs

    def _committed(self, start: pb.DecodeStart, begin: int, run: list[int]) -> pb.DecodeCommitted:
        accepted, bonus = sampling_pb2.TOKEN_ORIGIN_ACCEPTED, sampling_pb2.TOKEN_ORIGIN_BONUS
        logprobs = []
        if start.HasField("top_logprobs"):
            rows = max(self.logprob_rows, start.top_logprobs)
            logprobs = [
                sampling_pb2.TokenLogprob(logprob=-token / 64, top_token_ids=range(rows), top_logprobs=[-1.0] * rows) for token in run
            ]
        origins = [accepted] * (len(run) - 1) + [bonus]
        return pb.DecodeCommitted(begin=begin, token_ids=run, origins=origins, logprobs=logprobs, draining=self.draining)

    def _finished(self, start: pb.DecodeStart, end: int, stopped: asyncio.Event) -> pb.DecodeFinished:
        num_emitted = end - len(start.prefix)
        num_answer = end - start.num_prompt_tokens
        reason = generation_pb2.FINISH_REASON_STOP_TOKEN
        if stopped.is_set():
            reason = generation_pb2.FINISH_REASON_CANCELLED
        elif num_answer >= start.max_tokens:
            reason = generation_pb2.FINISH_REASON_LENGTH
        statistics = DraftStatistics(num_rounds=max(1, self.num_commits), num_emitted=num_emitted, pacing="plain")
        return pb.DecodeFinished(finish_reason=reason, statistics=statistics_to_proto(statistics))


@asynccontextmanager
async def serving(verifier: FakeVerifier, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Serve a fake on a real socket for the block's time; yields its address."""
    server = verifier.server = RpcServer([address])
    server.add(VERIFIER_SERVICE, add_VerifierServiceServicer_to_server, verifier)
    if verifier.carries_calls:
        server.add_trunks()
    await server.start()
    await server.set_serving()
    try:
        yield server.address
    finally:
        verifier.release.set()
        await server.stop()


@dataclass
class GatewayUnderTest:
    """A gateway with a client of values and a raw stub, both on channels of their own."""

    gateway: Gateway
    client: OutriderClient
    stub: Any

    async def idle(self) -> None:
        """Return once the gateway holds nothing; TimeoutError after IDLE_TIMEOUT_S."""
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            await self.gateway.servicer.wait_idle()
        assert self.gateway.servicer.live_counts() == identity_pb2.LiveCounts()


@asynccontextmanager
async def gateway_over(
    *verifiers: FakeVerifier, limits: GatewayLimits | None = None, refresh_s: float = REFRESH_S, **config: Any
) -> AsyncIterator[GatewayUnderTest]:
    """Serve fakes and a gateway over them for the block's time; at its end nothing may be live anywhere. config: further fields of
    GatewayConfig; `verifiers` in place of all of the fakes' addresses."""
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(verifier)) for verifier in verifiers]
        fields = {"verifiers": tuple(addresses), "verifier_timeout_s": 10.0, "verifier_refresh_s": refresh_s, **config}
        gateway = await start_gateway(GatewayConfig(("127.0.0.1:0",), model_dir=MODEL_DIR, limits=limits or GatewayLimits(), **fields))
        stack.push_async_callback(gateway.stop, 2.0)
        client = await stack.enter_async_context(await connect(gateway.address))
        channel = open_channel(gateway.address, ChannelLimits(receive_window_bytes=16 * 2**10))
        stack.push_async_callback(channel.close, None)
        under_test = GatewayUnderTest(gateway, client, GenerationServiceStub(channel))  # type: ignore[no-untyped-call]
        yield under_test
        await under_test.idle()
        for verifier in verifiers:
            await verifier.wait_live(0)
