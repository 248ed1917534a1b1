"""The verifiers behind a gateway: who they are, which of them answer, and which one takes the next request.

Knows their GetInfo. All of them must serve the same weights and vocabulary, since the gateway has one tokenizer and one model name; one
that does not is left out with a sentence in the log. Requests go to verifiers of one fingerprint only, whose picks are the same bits;
others are a reserve that takes over as a whole when none of that fingerprint answers (docs/architecture.md section 1). All are asked
every REFRESH_S seconds who they are; when none is left, at once by the next request. Must not know requests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence

import grpc

from outrider.errors import IncompatiblePair, OutriderError, Unavailable
from outrider.rpc.channel import ChannelLimits, open_channel, wait_ready
from outrider.rpc.convert import identity_from_proto
from outrider.rpc.status import error_from_rpc
from outrider.types.identity import ModelIdentity
from outrider.v1 import verifier_pb2 as pb
from outrider.v1.verifier_pb2_grpc import VerifierServiceStub

_LOG = logging.getLogger(__name__)
REFRESH_S = 5.0
INFO_TIMEOUT_S = 2.0
# One answer's rounds are tens of bytes each: this much may be under way to us before a slow reader holds the verifier back.
DECODE_WINDOW_BYTES = 16 * 2**10


class Verifier:
    """One endpoint. identity: None until it has answered, and again after it failed. num_live: samples we decode there."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.identity: ModelIdentity | None = None
        self.num_live = 0
        self.channel = open_channel(address, ChannelLimits(receive_window_bytes=DECODE_WINDOW_BYTES))
        self.stub = VerifierServiceStub(self.channel)  # type: ignore[no-untyped-call]

    @property
    def fingerprint(self) -> str | None:
        """Of its numerics; None while it does not answer."""
        return self.identity.fingerprint if self.identity else None

    async def get_info(self, timeout_s: float = INFO_TIMEOUT_S) -> pb.VerifierServiceGetInfoResponse:
        """Ask who it is; raises what its status says."""
        try:
            response: pb.VerifierServiceGetInfoResponse = await self.stub.GetInfo(pb.VerifierServiceGetInfoRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure) from failure
        return response


class VerifierPool:
    """Verifiers in the order of their addresses; construct inside a running event loop."""

    def __init__(self, addresses: Sequence[str]) -> None:
        assert addresses, "a gateway needs a verifier"
        self._verifiers = tuple(Verifier(address) for address in addresses)
        self._turn = itertools.count()
        self._watcher: asyncio.Task[None] | None = None
        self._identity: ModelIdentity | None = None

    @property
    def num_live(self) -> int:
        """Samples being decoded at all verifiers."""
        return sum(verifier.num_live for verifier in self._verifiers)

    @property
    def identity(self) -> ModelIdentity:
        """The target served, with the fingerprint that requests go to now; only after `connect`."""
        assert self._identity is not None, "connect first"
        return self._identity

    async def connect(self, timeout_s: float) -> None:
        """Wait until at least one verifier answers; raises Unavailable naming all of them, or IncompatiblePair when they differ."""
        errors = await asyncio.gather(*(self._introduce(verifier, timeout_s) for verifier in self._verifiers))
        for error in errors:
            if isinstance(error, IncompatiblePair):
                raise error
        if self._identity is None:
            raise Unavailable("no verifier answers: " + "; ".join(str(error) for error in errors if error is not None))
        # Not whoever answered first: gateways with the same list of addresses should begin with the same fingerprint.
        self._identity = next(verifier.identity for verifier in self._verifiers if verifier.identity)
        for verifier in self._verifiers:
            self._note_reserve(verifier)

    def watch(self, on_readiness: Callable[[bool], Awaitable[None]], refresh_s: float = REFRESH_S) -> None:
        """Ask all of them every refresh_s from now on, and report after each time whether any answers."""
        self._watcher = asyncio.create_task(self._watch(on_readiness, refresh_s))

    async def candidates(self) -> list[Verifier]:
        """Those of `identity`'s fingerprint that answer, fewest live samples first, taking turns among equals; raises Unavailable when
        none answers. When only others do, `identity` becomes theirs first."""
        if not any(verifier.identity for verifier in self._verifiers):
            await asyncio.gather(*(self._introduce(verifier, INFO_TIMEOUT_S) for verifier in self._verifiers))
        turn = next(self._turn) % len(self._verifiers)
        rotated = self._verifiers[turn:] + self._verifiers[:turn]
        self._settle()
        answering = [verifier for verifier in rotated if verifier.fingerprint == self.identity.fingerprint]
        if not answering:
            raise Unavailable("no verifier answers; retry later")
        return sorted(answering, key=lambda verifier: verifier.num_live)

    def report_failure(self, verifier: Verifier, error: OutriderError) -> None:
        """A call to it failed as if it were gone: leave it out until it answers again."""
        if isinstance(error, Unavailable):
            _LOG.warning("verifier %s is left out: %s", verifier.address, error)
            verifier.identity = None

    async def close(self) -> None:
        """Close every channel."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await asyncio.gather(*(verifier.channel.close(None) for verifier in self._verifiers))

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
        while True:
            await asyncio.sleep(refresh_s)
            await asyncio.gather(*(self._ask_again(verifier) for verifier in self._verifiers))
            await on_readiness(any(verifier.identity for verifier in self._verifiers))

    async def _ask_again(self, verifier: Verifier) -> None:
        """One that is gone is left out; one that is merely slow to answer (its machine is busy) is not."""
        if verifier.identity is None:
            await self._introduce(verifier, INFO_TIMEOUT_S)
            return
        try:
            self._admit(verifier, identity_from_proto((await verifier.get_info()).identity, "verifier.identity"))
        except IncompatiblePair as error:
            _LOG.warning("verifier %s is left out: %s", verifier.address, error)
            verifier.identity = None
        except OutriderError as error:
            self.report_failure(verifier, error)

    async def _introduce(self, verifier: Verifier, timeout_s: float) -> OutriderError | None:
        """Learn a verifier's identity; what went wrong is logged and returned, never raised."""
        try:
            await wait_ready(verifier.channel, verifier.address, timeout_s)
            identity = identity_from_proto((await verifier.get_info()).identity, "verifier.identity")
            self._admit(verifier, identity)
        except OutriderError as error:
            _LOG.warning("verifier %s: %s", verifier.address, error)
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
        if is_news:
            self._note_reserve(verifier)
