"""The verifiers behind a gateway: who they are, which of them answer, and which one takes the next request.

Knows their GetInfo. All of them must serve the same weights and vocabulary, since the gateway has one tokenizer and one model name; one
that does not is left out with a sentence in the log. Requests go to verifiers of one fingerprint only, whose picks are the same bits;
others are a reserve that takes over as a whole when none of that fingerprint answers (docs/architecture.md section 1). All are asked
every REFRESH_S seconds who they are; when none is left, at once by the next request. Beside the configured ones there may be others, which
come and go with what a coordinator tells of the fleet. Must not know requests.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import grpc

from outrider.errors import IncompatiblePair, OutriderError, Unavailable
from outrider.gateway.first_answers import FirstAnswers
from outrider.gateway.limits import LivenessLimits
from outrider.gateway.liveness import Liveness
from outrider.gateway.topology import Topology
from outrider.rpc.channel import ChannelLimits, open_channel, wait_ready
from outrider.rpc.convert import identity_from_proto
from outrider.rpc.status import came_from_service, error_from_rpc
from outrider.rpc.trunk_channel import TrunkChannel
from outrider.types.identity import ModelIdentity
from outrider.v1 import verifier_pb2 as pb
from outrider.v1.verifier_pb2_grpc import VerifierServiceStub

_LOG = logging.getLogger(__name__)
REFRESH_S = 5.0
INFO_TIMEOUT_S = 2.0
MAX_VERIFIERS = 1024
# Topologies in a row that do not name a verifier before it is forgotten: a coordinator that was restarted knows the fleet only by and by.
MAX_MISSED_TOPOLOGIES = 10
# One answer's rounds are tens of bytes each: this much may be under way to us before a slow reader holds the verifier back.
DECODE_WINDOW_BYTES = 16 * 2**10


class Verifier:
    """One endpoint. identity: None until it has answered, and again after it failed. num_live: samples we decode there. num_failures: times
    it was left out. draining: as it or a coordinator last told. num_missed: topologies in a row without it. num_asking: questions under
    way. problem: why it is left out, as the log has it; empty while it is not. liveness: what tells its streams when it is lost.
    channel: to one in this process; None connects to the address."""

    def __init__(self, address: str, limits: LivenessLimits | None = None, channel: grpc.aio.Channel | None = None) -> None:
        self.address = address
        self.identity: ModelIdentity | None = None
        self.num_live = 0
        self.num_failures = 0
        self.draining = False
        self.num_missed = 0
        self.num_asking = 0
        self.problem = ""
        self.channel = channel or open_channel(address, ChannelLimits(receive_window_bytes=DECODE_WINDOW_BYTES))
        self._stub = VerifierServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self._trunks = None if channel is not None else TrunkChannel(self.channel)
        self._carried_stub = VerifierServiceStub(self._trunks or self.channel)  # type: ignore[no-untyped-call]
        self.stub = self._stub  # for its streams
        self.liveness = Liveness(address, self._num_steps, limits or LivenessLimits())

    @property
    def fingerprint(self) -> str | None:
        """Of its numerics; None while it does not answer."""
        return self.identity.fingerprint if self.identity else None

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Its channel stays open for the block's time."""
        self.num_asking += 1
        try:
            yield
        finally:
            self.num_asking -= 1

    async def get_info(self, timeout_s: float = INFO_TIMEOUT_S) -> pb.VerifierServiceGetInfoResponse:
        """Ask who it is; raises what its status says."""
        try:
            response: pb.VerifierServiceGetInfoResponse = await self._stub.GetInfo(pb.VerifierServiceGetInfoRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure) from failure
        self.stub = self._carried_stub if response.carries_calls else self._stub  # calls under way go on as they began
        return response

    async def close(self) -> None:
        """Close the channel; its calls end."""
        await self.liveness.close()
        if self._trunks is not None:
            await self._trunks.close()
        await self.channel.close(None)

    async def _num_steps(self, timeout_s: float) -> int | None:
        """None from one that drains: it refuses to tell, but lives."""
        try:
            response = await self._stub.GetInfo(pb.VerifierServiceGetInfoRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            if came_from_service(failure):
                return None
            raise error_from_rpc(failure) from failure
        return int(response.num_steps)


class VerifierPool:
    """Verifiers in the order of their addresses; construct inside a running event loop. addresses: those that stay, whoever comes and goes;
    where there are none, `follow` a topology before `connect`, or meanwhile. channels: by address, to those of this process."""

    def __init__(
        self, addresses: Sequence[str], limits: LivenessLimits | None = None, channels: Mapping[str, grpc.aio.Channel] | None = None
    ) -> None:
        self._configured = frozenset(addresses)
        self._limits = limits
        self._verifiers = tuple(Verifier(address, limits, (channels or {}).get(address)) for address in addresses)
        self._asking: asyncio.Future[list[OutriderError | None]] | None = None
        self._asking_back: dict[Verifier, asyncio.Task[OutriderError | None]] = {}
        self._turn = itertools.count()
        self._watcher: asyncio.Task[None] | None = None
        self._identity: ModelIdentity | None = None
        self._first: FirstAnswers | None = None  # while `connect` waits

    @property
    def num_live(self) -> int:
        """Samples being decoded at all verifiers."""
        return sum(verifier.num_live for verifier in self._verifiers)

    @property
    def identity(self) -> ModelIdentity:
        """The target served, with the fingerprint that requests go to now; only after `connect`."""
        assert self._identity is not None, "connect first"
        return self._identity

    @property
    def contexts(self) -> tuple[int, ...]:
        """Of those of `identity`'s fingerprint that answer and do not drain: each may hold more or less than the one that answered first,
        or than it held itself before it was restarted."""
        fingerprint = self.identity.fingerprint
        return tuple(
            one.identity.max_context for one in self._verifiers if one.identity and one.fingerprint == fingerprint and not one.draining
        )

    @property
    def knows_nobody(self) -> bool:
        """Whether there is no verifier that could be asked."""
        return not self._verifiers

    async def connect(self, timeout_s: float, told: Callable[[], Awaitable[object]] | None = None) -> None:
        """Wait until at least one verifier answers, and a moment (SETTLE_S) for the others; who has not answered then is met by `watch`.
        told: returns once somebody who calls `follow` has told of the fleet, or could not; whoever is followed meanwhile is asked too.
        Raises Unavailable naming all of them, or IncompatiblePair when they differ."""
        first = self._first = FirstAnswers(timeout_s, others_may_come=told is not None)
        try:
            self._ask_first(self._verifiers)
            await first.one()
            if self._identity is not None:
                if told is not None:
                    await told()
                await first.settle()
        finally:
            self._first = None
            await first.close()
        self._begin(first)

    def watch(self, on_readiness: Callable[[bool], Awaitable[None]], refresh_s: float = REFRESH_S) -> None:
        """Ask all of them every refresh_s from now on, and report after each time whether any answers."""
        self._watcher = asyncio.create_task(self._watch(on_readiness, refresh_s))

    async def follow(self, topology: Topology) -> None:
        """Take in the verifiers of a topology, as many as there is room for; forget those that do not answer and that MAX_MISSED_TOPOLOGIES
        did not name, but nobody while `connect` asks."""
        told = {replica.endpoint: replica for replica in topology.verifiers}
        for verifier in self._verifiers:
            replica = told.get(verifier.address)
            verifier.num_missed = 0 if replica else verifier.num_missed + 1
            verifier.draining = replica is not None and replica.draining
        if self._first is None:
            await self._forget([verifier for verifier in self._verifiers if self._is_gone(verifier)])
        await self._meet([endpoint for endpoint, replica in told.items() if not replica.draining])

    def num_failures(self, address: str) -> int:
        """How often this verifier was left out; 0 for one that is not known."""
        return next((verifier.num_failures for verifier in self._verifiers if verifier.address == address), 0)

    async def candidates(self, preferred: Sequence[str] = ()) -> list[Verifier]:
        """Those of `identity`'s fingerprint that answer: preferred addresses in their order, then the others, fewest live samples first,
        taking turns among equals, draining ones last. When only verifiers of another fingerprint answer, `identity` becomes theirs first.
        Raises Unavailable when none answers."""
        await self._meet(preferred)
        await self._ask_if_none()
        self._settle()
        answering = _some([verifier for verifier in self._verifiers if verifier.fingerprint == self.identity.fingerprint])
        return _preferred_first(self._by_load(answering), preferred)

    async def successors(self, fingerprint: str, avoid: Collection[Verifier], preferred: Sequence[str] = ()) -> list[Verifier]:
        """Who may go on with an answer that verifiers of this fingerprint began, in the order of `candidates`: those of it that answer
        and are not to be avoided, or, when there is none, those of another. Raises Unavailable when there are none at all."""
        await self._meet(preferred)
        await self._ask_if_none()
        answering = _some([verifier for verifier in self._verifiers if verifier.identity and verifier not in avoid])
        alike = [verifier for verifier in answering if verifier.fingerprint == fingerprint]
        return _preferred_first(self._by_load(alike or answering), preferred)

    def takers(self, fingerprint: str, avoid: Collection[Verifier], preferred: Sequence[str] = ()) -> list[Verifier]:
        """Who could take an answer over from one that still decodes it, in the order of `candidates`: as far as is known now, none but
        verifiers of the fingerprint, and none that drains."""
        may_serve = [one for one in self._verifiers if one.fingerprint == fingerprint and not one.draining and one not in avoid]
        return _preferred_first(self._by_load(may_serve), preferred)

    def of_fingerprint(self, fingerprint: str) -> list[Verifier]:
        """Those of it that answer and do not drain, fewest live samples first; nobody is asked."""
        may_serve = [verifier for verifier in self._verifiers if verifier.fingerprint == fingerprint and not verifier.draining]
        return sorted(may_serve, key=lambda verifier: verifier.num_live)

    def report_failure(self, verifier: Verifier, error: OutriderError) -> None:
        """A call to it failed as if it were gone: leave it out until it answers again."""
        if isinstance(error, Unavailable) and verifier.identity is not None:
            _LOG.warning("verifier %s is left out: %s", verifier.address, error)
            verifier.identity, verifier.problem = None, str(error)
            verifier.num_failures += 1

    async def close(self) -> None:
        """Close every channel."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        asking = [one for one in (self._asking, *self._asking_back.values()) if one is not None]
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.gather(*(verifier.close() for verifier in self._verifiers))

    def _begin(self, first: FirstAnswers) -> None:
        """With what was answered."""
        for address, problem in first.problems.items():
            if isinstance(problem, IncompatiblePair) and address in self._configured:
                raise problem
        if self._identity is None:
            raise Unavailable("no verifier answers: " + "; ".join(first.sentences()))
        # Not whoever answered first: gateways with the same list of addresses should begin with the same fingerprint.
        self._identity = next(verifier.identity for verifier in self._verifiers if verifier.identity)
        for verifier in self._verifiers:
            self._note_reserve(verifier)
            if verifier.identity is None and verifier.address not in first.problems:
                _LOG.warning("verifier %s has not answered yet: it is left out until it does", verifier.address)

    def _ask_first(self, verifiers: Sequence[Verifier]) -> None:
        assert self._first is not None, "only while `connect` waits"
        for verifier in verifiers:
            self._first.ask(verifier.address, functools.partial(self._question, verifier))

    async def _ask_if_none(self) -> None:
        """While none answers, ask all of them who they are; however many want to know, they are asked once at a time."""
        if any(verifier.identity for verifier in self._verifiers):
            return
        if self._asking is None or self._asking.done():
            self._asking = asyncio.gather(*(self._introduce(verifier, INFO_TIMEOUT_S) for verifier in self._verifiers))
        await asyncio.shield(self._asking)

    def _by_load(self, verifiers: Collection[Verifier]) -> list[Verifier]:
        """Fewest live samples first, taking turns among equals, draining ones last."""
        if len(verifiers) < 2:
            return list(verifiers)
        turn = next(self._turn) % len(self._verifiers)
        rotated = [one for one in self._verifiers[turn:] + self._verifiers[:turn] if one in verifiers]
        return sorted(rotated, key=lambda verifier: (verifier.draining, verifier.num_live))

    def _is_gone(self, verifier: Verifier) -> bool:
        """Whether nobody has its channel in hand: a candidate answers, and what is asked or decoded is counted."""
        is_named = verifier.address in self._configured or verifier.num_missed < MAX_MISSED_TOPOLOGIES
        return not (is_named or verifier.identity or verifier.num_live or verifier.num_asking)

    async def _forget(self, gone: Sequence[Verifier]) -> None:
        if not gone:
            return
        _LOG.info("verifiers %s have left the fleet", ", ".join(verifier.address for verifier in gone))
        self._verifiers = tuple(verifier for verifier in self._verifiers if verifier not in gone)
        await asyncio.gather(*(verifier.close() for verifier in gone))

    async def _meet(self, addresses: Sequence[str]) -> None:
        """Ask verifiers that are new here who they are: once the target is known, or beside the others that `connect` asks. Those that were
        left out and are named again may have been started anew: they are asked too, but not waited for."""
        if not addresses:
            return
        known = {verifier.address: verifier for verifier in self._verifiers}
        self._ask_back([known[address] for address in addresses if address in known])
        unknown = [address for address in dict.fromkeys(addresses) if address not in known]
        room = MAX_VERIFIERS - len(self._verifiers)
        if len(unknown) > room:
            _LOG.warning("%d verifiers are left out: a gateway knows at most %d", len(unknown) - room, MAX_VERIFIERS)
        new = tuple(Verifier(address, self._limits) for address in unknown[:room])
        self._verifiers += new
        if self._first is not None:
            self._ask_first(new)
        elif self._identity is not None:
            await asyncio.gather(*(self._introduce(verifier, INFO_TIMEOUT_S) for verifier in new))

    def _ask_back(self, named: Sequence[Verifier]) -> None:
        """One question at a time for each of them that does not answer."""
        if self._identity is None or self._first is not None:
            return
        for verifier in named:
            if verifier.identity is None and verifier not in self._asking_back:
                self._asking_back[verifier] = asking = asyncio.create_task(self._introduce(verifier, INFO_TIMEOUT_S))
                asking.add_done_callback(lambda _, asked=verifier: self._asking_back.pop(asked))  # type: ignore[misc]

    def _settle(self) -> None:
        """Keep to one fingerprint while any verifier of it answers, else move over to that of the first one that does."""
        answering = [verifier.identity for verifier in self._verifiers if verifier.identity]
        if answering and all(identity.fingerprint != self.identity.fingerprint for identity in answering):
            _LOG.warning("no verifier of fingerprint %s answers: moving over to %s", self.identity.fingerprint, answering[0].fingerprint)
            self._identity = answering[0]

    def _note_reserve(self, verifier: Verifier) -> None:
        if verifier.identity and verifier.fingerprint != self.identity.fingerprint:
            _LOG.warning(
                "verifier %s is a reserve: its numerics have fingerprint %s, requests go to %s; its picks could differ at near ties",
                verifier.address,
                verifier.fingerprint,
                self.identity.fingerprint,
            )

    async def _watch(self, on_readiness: Callable[[bool], Awaitable[None]], refresh_s: float) -> None:
        try:
            while True:
                await asyncio.sleep(refresh_s)
                await self._ask_all_again()
                await on_readiness(any(verifier.identity for verifier in self._verifiers))
        except Exception:  # noqa: BLE001 -- the task's edge: until `close` nobody else would hear of it
            _LOG.exception("the verifiers are watched over no more")

    async def _ask_all_again(self) -> None:
        """All are counted as asked before any task begins: one that was forgotten in between would be asked over a closed channel."""
        with ExitStack() as asked:
            for verifier in self._verifiers:
                asked.enter_context(verifier.asked())
            await asyncio.gather(*(self._ask_again(verifier) for verifier in self._verifiers))

    async def _ask_again(self, verifier: Verifier) -> None:
        """One that is gone is left out; one that is merely slow to answer (its machine is busy) is not."""
        if verifier.identity is None:
            await self._introduce(verifier, INFO_TIMEOUT_S)
            return
        try:
            with verifier.asked():
                self._admit(verifier, await _identity(verifier))
        except IncompatiblePair as error:
            _LOG.warning("verifier %s is left out: %s", verifier.address, error)
            verifier.identity = None
        except OutriderError as error:
            self.report_failure(verifier, error)

    async def _introduce(self, verifier: Verifier, timeout_s: float) -> OutriderError | None:
        """Learn a verifier's identity; what went wrong is logged, when it is news, and returned, never raised."""
        error = await self._question(verifier, timeout_s)
        if error is None and verifier.problem:
            _LOG.info("verifier %s answers again", verifier.address)
        elif error is not None and str(error) != verifier.problem:
            _LOG.warning("verifier %s: %s", verifier.address, error)
        verifier.problem = "" if error is None else str(error)
        return error

    async def _question(self, verifier: Verifier, timeout_s: float) -> OutriderError | None:
        """As `_introduce`, for who logs by itself."""
        try:
            with verifier.asked():
                await wait_ready(verifier.channel, verifier.address, timeout_s)
                self._admit(verifier, await _identity(verifier))
        except OutriderError as error:
            return error
        return None

    def _admit(self, verifier: Verifier, identity: ModelIdentity) -> None:
        first = self._identity or identity
        for what, theirs, ours in (
            ("weights", identity.weights_hash, first.weights_hash),
            ("vocabulary", identity.vocab_hash, first.vocab_hash),
        ):
            if theirs != ours:
                raise IncompatiblePair(
                    f"{what} differ: verifier {verifier.address} serves {identity.model!r} ({theirs[:12]}), "
                    f"this gateway serves {first.model!r} ({ours[:12]})"
                )
        is_news = self._identity is not None and verifier.fingerprint != identity.fingerprint
        self._identity = first
        verifier.identity = identity
        verifier.draining = False  # one that drains does not say who it is
        if is_news:
            self._note_reserve(verifier)


def _some(verifiers: list[Verifier]) -> list[Verifier]:
    """These; raises Unavailable when there is none."""
    if not verifiers:
        raise Unavailable("no verifier answers; retry later")
    return verifiers


def _preferred_first(verifiers: Sequence[Verifier], preferred: Sequence[str]) -> list[Verifier]:
    """Those at preferred addresses in their order, then the others in theirs."""
    if not preferred:
        return list(verifiers)
    rank = {address: place for place, address in enumerate(preferred)}
    return sorted(verifiers, key=lambda verifier: rank.get(verifier.address, len(rank)))


async def _identity(verifier: Verifier) -> ModelIdentity:
    """Who answers there now; raises Unavailable for one that answers but was lost because it takes no steps."""
    info = await verifier.get_info()
    if verifier.liveness.is_stuck(info.num_steps):
        raise Unavailable(f"{verifier.address} answers, but has taken no step since it was lost for taking none")
    return identity_from_proto(info.identity, "verifier.identity")
