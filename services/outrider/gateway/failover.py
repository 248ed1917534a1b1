"""One sample's way to the next verifier when it has lost the one that decoded it, or leaves it because it drains.

Knows that committed tokens are the only truth: whoever gets prompt and tokens so far goes on with the same ones, if its fingerprint is
the same. Decides which losses may be mended, and how long and how often it is tried. Must not know text, or what the tokens become.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from outrider.errors import DoesNotFit, OutriderError, Overloaded, Unavailable
from outrider.gateway.decode_stream import DecodeStream, check_fingerprint, open_stream
from outrider.gateway.failover_counters import FailoverCounters
from outrider.gateway.handover import Handover
from outrider.gateway.limits import FailoverLimits
from outrider.gateway.loss import LossCause, loss_cause
from outrider.gateway.route import Elsewhere, Route, anywhere
from outrider.gateway.verifiers import Verifier, VerifierPool
from outrider.rpc.convert import acceptance_name
from outrider.rpc.convert.sampling import COUPLED
from outrider.rpc.status import DeadlinePassed
from outrider.v1 import verifier_pb2

_LOG = logging.getLogger(__name__)
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Openings:
    """What all streams of one request are opened with. deadline_s: of the request, on the event loop's clock; None: it has none.
    elsewhere: who had best go on with a sample, asked once each time it leaves a verifier."""

    pool: VerifierPool
    deadline_s: float | None
    metadata: Metadata
    elsewhere: Elsewhere = anywhere

    @property
    def remaining_s(self) -> float | None:
        """Until the deadline, never negative."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - asyncio.get_running_loop().time())


class Failover:
    """Of one sample. start, fingerprint: what its first stream began with, and at whom. num_failovers: times it went on elsewhere, after a
    loss or handed over.

    stays_exact: every verifier so far had that fingerprint.
    """

    def __init__(
        self,
        openings: Openings,
        start: verifier_pb2.DecodeStart,
        fingerprint: str,
        limits: FailoverLimits,
        counters: FailoverCounters,
    ) -> None:
        self._openings = openings
        self._start = start
        self._fingerprint = fingerprint
        self._limits = limits
        self._counters = counters
        self._handover = Handover(limits)
        self._num_losses = 0
        self._num_tokens_before = 0
        self._num_fruitless = 0
        self._num_openings = 0
        self._incarnation = start.incarnation
        self._avoided: set[Verifier] = set()
        self.num_failovers = 0
        self.stays_exact = True

    async def next_stream(self, lost: DecodeStream, error: OutriderError, tokens: Sequence[int]) -> DecodeStream:
        """Close a stream that ended with this error, and open the one that goes on after these tokens of the answer.

        Raises the error itself when no other verifier may mend it, Unavailable when none takes the sample over in time.
        """
        lost.close()
        self._openings.pool.report_failure(lost.verifier, error)
        cause = loss_cause(error)
        if cause is None:
            raise error
        begun_s = asyncio.get_running_loop().time()
        try:
            self._check(error, len(tokens))
            stream = await self._place(lost.verifier, tokens, await self._avoid(lost.verifier, error))
        except OutriderError:
            self._counters.gave_up(cause)
            raise
        self._num_losses += 1
        self._went_on(stream, cause, begun_s)
        return stream

    async def hand_over(self, left: DecodeStream, tokens: Sequence[int]) -> DecodeStream | None:
        """The stream that goes on after these tokens of the answer elsewhere; None while the present one is to be read on.

        For the end of a round at a verifier that drains. It decodes on meanwhile and is left only for one that has taken the sample, of the
        same fingerprint and not draining; so nothing is lost by trying, and nothing is raised when nobody takes it.
        """
        left.verifier.draining = True
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        num_left = self._start.max_tokens - (len(self._start.prefix) - self._start.num_prompt_tokens) - len(tokens)
        if not self._may_move or not self._handover.is_due(num_left, begun_s):
            return None
        stream = None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.handover_timeout_s):
                stream = await self._open_beside(left, tokens)
        if stream is None:
            self._handover.refused(clock())
            return None
        self._handover.done()
        self._went_on(stream, LossCause.DRAINING, begun_s)
        return stream

    async def _open_beside(self, left: DecodeStream, tokens: Sequence[int]) -> DecodeStream | None:
        """A stream at the first that takes the sample, while the one to be left still runs."""
        pool, fingerprint, avoid = self._openings.pool, left.started.fingerprint, {*self._avoided, left.verifier}
        if not pool.takers(fingerprint, avoid):
            return None
        route = await self._openings.elsewhere(left.verifier.address, len(tokens))
        start = self._next_start(tokens, route)
        for verifier in pool.takers(fingerprint, avoid, route.verifiers):
            try:
                return await self._open(verifier, fingerprint, start, route)
            except OutriderError as error:
                _LOG.info("verifier %s drains, but %s does not take an answer over: %s", left.verifier.address, verifier.address, error)
                pool.report_failure(verifier, error)
        return None

    def _went_on(self, stream: DecodeStream, cause: LossCause, begun_s: float) -> None:
        self.num_failovers += 1
        self.stays_exact = self.stays_exact and stream.started.fingerprint == self._fingerprint
        self._counters.went_on(cause, asyncio.get_running_loop().time() - begun_s)

    @property
    def _may_move(self) -> bool:
        """Other rules than the coupled one do not promise the same tokens elsewhere."""
        return acceptance_name(self._start.acceptance) == COUPLED

    def _check(self, error: OutriderError, num_tokens: int) -> None:
        """Raises the error when this sample may not move, or has moved too often."""
        self._num_fruitless = self._num_fruitless + 1 if num_tokens == self._num_tokens_before else 0
        self._num_tokens_before = num_tokens
        is_too_often = self._num_losses >= self._limits.max_failovers or self._num_fruitless > self._limits.max_fruitless_failovers
        if not self._may_move or is_too_often:
            raise error

    async def _avoid(self, verifier: Verifier, error: OutriderError) -> Collection[Verifier]:
        """A verifier that failed by a fault of its own may do well with others, but this sample is not given to it again."""
        if loss_cause(error) is LossCause.BROKEN:
            self._avoided.add(verifier)
            try:
                await self._openings.pool.successors(self._fingerprint, self._avoided)
            except Unavailable:
                raise error from None
        return self._avoided

    async def _place(self, lost: Verifier, tokens: Sequence[int], avoid: Collection[Verifier]) -> DecodeStream:
        route: Route | None = None
        remaining_s, place_timeout_s = self._openings.remaining_s, self._limits.place_timeout_s
        wait_s = place_timeout_s if remaining_s is None else min(remaining_s, place_timeout_s)
        problem: OutriderError = Unavailable("none was asked")
        self._num_openings = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                for delay_s in self._delays_s():
                    await asyncio.sleep(delay_s)
                    if route is None:
                        route = await self._openings.elsewhere(lost.address, len(tokens))
                    result = await self._ask_all(self._next_start(tokens, route), avoid, route)
                    if isinstance(result, DecodeStream):
                        return result
                    problem = result
        if remaining_s is not None and remaining_s <= place_timeout_s and self._num_openings < self._limits.max_openings:
            raise DeadlinePassed(f"the request's deadline passed while its answer waited for another verifier: {problem}")
        raise Unavailable(f"the verifier was lost in the midst of the answer, and no other took it over: {problem}")

    async def _ask_all(self, start: verifier_pb2.DecodeStart, avoid: Collection[Verifier], route: Route) -> DecodeStream | OutriderError:
        """A stream at the first verifier that takes the sample, or why the last one did not."""
        pool = self._openings.pool
        try:
            verifiers = await pool.successors(self._fingerprint, avoid, route.verifiers)
        except Unavailable as error:
            return error
        problem: OutriderError = Unavailable("no verifier answers")
        for verifier in verifiers:
            if self._num_openings >= self._limits.max_openings:
                break
            if verifier.fingerprint is None:
                continue  # it was lost since
            self._num_openings += 1
            try:
                return await self._open(verifier, verifier.fingerprint, start, route)
            except OutriderError as error:
                if loss_cause(error) is None and not isinstance(error, Overloaded | DoesNotFit):
                    raise
                pool.report_failure(verifier, error)
                problem = error
        return problem

    async def _open(self, verifier: Verifier, fingerprint: str, start: verifier_pb2.DecodeStart, route: Route) -> DecodeStream:
        """With an incarnation of its own, so that a verifier that still holds the one before gives it up, and with the drafters that this
        one is known to have, where nobody names any."""
        self._incarnation += 1
        start.incarnation = self._incarnation
        if not (route.is_placed or self._start.drafters or start.no_drafters or start.draft.off):
            del start.drafters[:]
            start.drafters.extend(route.drafters_at(verifier.address))
        stream = await open_stream(verifier, start, self._openings.remaining_s, self._openings.metadata)
        check_fingerprint((stream,), fingerprint)
        return stream

    def _next_start(self, tokens: Sequence[int], route: Route) -> verifier_pb2.DecodeStart:
        """The first start with the answer so far in its prefix, and drafters as the route has them: where the sample was decoded without
        because none paid there, one may pay here, and the other way round. Without a new place they stay as they were."""
        start = verifier_pb2.DecodeStart()
        start.CopyFrom(self._start)
        start.prefix.extend(tokens)
        if route.is_placed:
            start.no_drafters = route.drafts_off
            del start.drafters[:]
            start.drafters.extend(route.drafters)
        return start

    def _delays_s(self) -> Iterator[float]:
        """Before each round over the verifiers; ends when there were openings enough. Time ends it otherwise."""
        yield random.uniform(0.0, self._limits.first_delay_s)
        yield from itertools.takewhile(lambda _: self._num_openings < self._limits.max_openings, self._limits.backoffs_s())
