"""A request's place: asked for before it is decoded, reported on when it has ended.

Knows what a placement may look at of a request. Must not know streams. Exactly one Place and one Finish a request, one more of each when
a sample leaves its verifier, and none of either without a coordinator.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np

from outrider.errors import Overloaded, Unavailable
from outrider.gateway.coordinators import Coordinators, Placed
from outrider.gateway.resolved import ResolvedRequest
from outrider.gateway.route import ANYWHERE, Route
from outrider.gateway.topology import Topology
from outrider.gateway.verifiers import VerifierPool
from outrider.rpc.status import RemoteFailure
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label
from outrider.types.fleet import MAX_PREFIX_DIGESTS, PlacementWish
from outrider.v1 import generation_pb2 as pb

DIGEST_LEN = 16
WORD_BYTES = 8
# Beginnings of 32, 64, 128, ... tokens: a next turn shares at least half of what can be shared with the one before it.
FIRST_DIGEST_TOKENS = 32
# Of one request; who moves more often goes where the gateway says.
MAX_FURTHER_PLACES = 64
_NEEDS_NO_DRAFTER = ("plain", "lookup")


class PlacedRequest:
    """request: with its route. place_rest: asks where one sample goes on that leaves this address after so many tokens; route_of: what
    follows from the answer, or from none.
    `count` every message on its way to the client. further: places of samples that left their verifier, held until
    the request ends."""

    def __init__(
        self,
        request: ResolvedRequest,
        place_rest: Callable[[str, int], Awaitable[Placed | None]] | None = None,
        route_of: Callable[[Placed | None], Route] = lambda placed: ANYWHERE,
    ) -> None:
        self.request = request
        self.further: list[Placed] = []
        self._place_rest = place_rest
        self._route_of = route_of
        self._num_further = 0
        self.num_tokens = 0
        self.first_s = 0.0  # time.monotonic() of the first tokens
        self._num_first = 0
        self._last_s = 0.0

    def count(self, message: pb.GenerateResponse) -> None:
        """Tokens and times; anything but tokens is passed over."""
        num_tokens = len(message.delta.token_ids)
        if not num_tokens:
            return
        self._last_s = time.monotonic()
        if not self.num_tokens:
            self.first_s, self._num_first = self._last_s, num_tokens
        self.num_tokens += num_tokens

    async def elsewhere(self, left: str, num_tokens: int) -> Route:
        """Where one sample had best go on that leaves the verifier at this address after so many tokens; anywhere when nobody says so in
        time, or all are full: an answer that has begun is not refused, whoever finds room for it takes it."""
        if self._place_rest is None or self._num_further >= MAX_FURTHER_PLACES:
            return self._route_of(None)
        self._num_further += 1
        try:
            placed = await self._place_rest(left, num_tokens)
        except Overloaded:
            return self._route_of(None)
        if placed is not None:
            self.further.append(placed)
        return self._route_of(placed)

    @property
    def token_us(self) -> float:
        """Microseconds a token of a sample, after the first that came; 0 when no more came. Samples are decoded side by side."""
        num_more = self.num_tokens - self._num_first
        if not num_more:
            return 0.0
        return (self._last_s - self.first_s) * 1e6 * self.request.checked.num_samples / num_more


class Placing:
    """coordinators: None where there are none. Topologies are handed in by whoever asks for them. metrics: placements are counted into."""

    def __init__(self, coordinators: Coordinators | None, pool: VerifierPool, metrics: LocalMetrics | None = None) -> None:
        self._metrics = metrics or LocalMetrics()
        self._coordinators = coordinators
        self._pool = pool
        self._word = secrets.token_hex(WORD_BYTES)
        self._serials = itertools.count()
        self._self_drafting: frozenset[str] = frozenset()
        self._paired: dict[str, tuple[str, ...]] = {}

    def observe(self, topology: Topology) -> None:
        """The fleet has been told anew."""
        self._self_drafting = topology.self_drafting()
        self._paired = topology.paired_drafters()

    @asynccontextmanager
    async def placed(self, request: ResolvedRequest, metadata: tuple[tuple[str, str], ...]) -> AsyncIterator[PlacedRequest]:
        """Hold a place for the block's time. Raises Overloaded when the fleet is full; without an answer any verifier will do."""
        coordinators = self._coordinators
        if coordinators is None:
            yield PlacedRequest(request)
            return
        wish = wish_of(request, self._pool.identity.fingerprint)
        # Other gateways may have the same id, and so may a request of ours that this one takes over: giving its place up must not be ours.
        wish = replace(wish, request_id=f"{self._word}/{next(self._serials)}/{wish.request_id}")
        placed = await self._ask(coordinators, wish, metadata)
        numbers = itertools.count(1)

        async def place_rest(left: str, num_tokens: int) -> Placed | None:
            return await self._ask(coordinators, rest_of(wish, next(numbers), left, num_tokens), metadata)

        def route_of(answered: Placed | None) -> Route:
            return self._unplaced(request) if answered is None else self._route_of(request, answered)

        routed = PlacedRequest(replace(request, route=route_of(placed)), place_rest, route_of)
        try:
            async with self._held(placed, routed):
                yield routed
        finally:
            for further in routed.further:
                coordinators.finish(further, 0, 0.0, "")

    @asynccontextmanager
    async def _held(self, placed: Placed | None, routed: PlacedRequest) -> AsyncIterator[None]:
        """Report in the end how it went at the first place."""
        if placed is None:
            yield
            return
        num_before = self._pool.num_failures(placed.answer.verifier)
        failure = ""
        try:
            yield
        except (Unavailable, RemoteFailure) as error:
            failure = str(error)
            raise
        finally:
            if self._pool.num_failures(placed.answer.verifier) > num_before:
                failure = failure or "it failed in the midst of the request, which went on elsewhere"
            assert self._coordinators is not None
            token_us = 0.0 if routed.further else routed.token_us  # else it is that of several verifiers
            self._coordinators.finish(placed, routed.num_tokens, token_us, failure)

    async def _ask(self, coordinators: Coordinators, wish: PlacementWish, metadata: tuple[tuple[str, str], ...]) -> Placed | None:
        try:
            placed = await coordinators.place(wish, metadata)
        except Overloaded:
            self._count("full")
            raise
        self._count("no_answer" if placed is None else "placed")
        return placed

    def _count(self, outcome: str) -> None:
        self._metrics.add(names.NUM_PLACEMENTS, {Label.SERVICE: "gateway", Label.OUTCOME: outcome})

    def _route_of(self, request: ResolvedRequest, placed: Placed) -> Route:
        answer = placed.answer
        drafts_off = wants_drafts(request) and answer.drafts_off and answer.verifier not in self._self_drafting
        return Route((answer.verifier, *answer.alternatives), tuple(answer.drafters), drafts_off)

    def _unplaced(self, request: ResolvedRequest) -> Route:
        """Any verifier, drafted for as the fleet was last told: replicas of a fleet have no drafters configured, so without a name none
        would draft while no coordinator answers."""
        return Route(paired=self._paired) if wants_drafts(request) else ANYWHERE


def wish_of(request: ResolvedRequest, fingerprint: str) -> PlacementWish:
    """What a placement may look at."""
    checked = request.checked
    prefix = request.prompt_ids + checked.resume_ids
    digests = prefix_digests(prefix, checked.cache_salt)
    return PlacementWish(
        request_id=request.request_id,
        tenant=checked.cache_salt,
        prefix_len=len(prefix),
        max_tokens=max(1, request.max_tokens - len(checked.resume_ids)),  # whose tokens have all come asks for its end alone
        num_samples=checked.num_samples,
        fingerprint=fingerprint,
        wants_drafts=wants_drafts(request),
        prefix_digests=digests,
        prefix_digest_lens=digest_lens(len(digests)),
    )


def rest_of(wish: PlacementWish, number: int, left: str, num_tokens: int) -> PlacementWish:
    """The wish of one sample that leaves the verifier at this address after so many tokens. number: of the request's further places, so
    that giving up one that did not come in time leaves the others alone."""
    return replace(
        wish,
        request_id=f"{wish.request_id}/{number}",
        prefix_len=wish.prefix_len + num_tokens,
        max_tokens=max(1, wish.max_tokens - num_tokens),
        num_samples=1,
        exclude=frozenset({left}),
    )


def wants_drafts(request: ResolvedRequest) -> bool:
    """Whether a drafter could be of use: the client has neither turned drafts off nor chosen a pacing without any."""
    draft = request.checked.draft
    return not draft.off and draft.pacing not in _NEEDS_NO_DRAFTER


def digest_lens(num: int) -> tuple[int, ...]:
    """Tokens of the beginnings of the first so many digests of `prefix_digests`."""
    return tuple(FIRST_DIGEST_TOKENS << at for at in range(num))


def prefix_digests(prefix: Sequence[int], salt: str) -> tuple[bytes, ...]:
    """Of the beginnings of FIRST_DIGEST_TOKENS tokens, twice as many, and so on, and salted: tenants share no KV, so no digests."""
    tokens = np.asarray(prefix, np.int32).tobytes()
    digest = hashlib.blake2b(digest_size=DIGEST_LEN, salt=hashlib.blake2b(salt.encode(), digest_size=16).digest())
    found: list[bytes] = []
    begin, end = 0, FIRST_DIGEST_TOKENS
    while end <= len(prefix) and len(found) < MAX_PREFIX_DIGESTS:
        digest.update(tokens[4 * begin : 4 * end])
        found.append(digest.copy().digest())
        begin, end = end, 2 * end
    return tuple(found)
