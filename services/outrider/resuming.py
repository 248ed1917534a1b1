"""An answer that outlives its gateway: what has come of it, the request for the rest, and a stream that asks for that by itself.

Knows the client and its values. A lost gateway or link costs no token, because the rest follows from seed and tokens alone; so the next
one is asked for it, and the reader sees one answer. Must not know verifiers or failover behind a gateway. ResumeLimits bound every wait.

    async for event in generate_resuming(("10.0.0.1:7070", "10.0.0.2:7070"), GenerationRequest(prompt="2 + 2 =")):
        ...
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import cast

from outrider.client import checked_timeout, connect_at_once
from outrider.errors import InvalidRequest, OutriderError, Overloaded, Unavailable
from outrider.rpc.status import DeadlinePassed
from outrider.types.generation import AnswerEvent, Delta, Done, Finished, GenerationRequest, Started

COUPLED = "coupled"
MAX_RESUMES = 32
PATIENCE_S = 30.0
CONNECT_TIMEOUT_S = 5.0
MIN_BACKOFF_S = 0.05
MAX_BACKOFF_S = 1.0


@dataclass(frozen=True, slots=True)
class ResumeLimits:
    """max_resumes: of one answer. patience_s: from a loss on, for a gateway to go on; how long a gateway may be silent before it is lost is
    its channel's to say, by pings, in half a minute. connect_timeout_s: for one that does not
    answer. min_backoff_s, max_backoff_s: between two askings, doubled while nothing comes, times a number between 0.5 and 1.5."""

    max_resumes: int = MAX_RESUMES
    patience_s: float = PATIENCE_S
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    min_backoff_s: float = MIN_BACKOFF_S
    max_backoff_s: float = MAX_BACKOFF_S


class AnswerSoFar:
    """What has come of one request, of however many streams. `add` every message; `again` asks for what is missing."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._started: Started | None = None
        self._finished: set[int] = set()
        self._token_ids = list(request.resume_token_ids)
        self._num_new = 0
        self._fingerprint = ""  # of whoever answers now
        self._told = ""  # the one that the reader was told last
        self._fingerprints = set(request.resume_fingerprints)
        self._is_known = bool(request.resume_fingerprints) or not request.resume_token_ids

    @property
    def may_resume(self) -> bool:
        """Whether another stream can bring the rest. Of several samples, or with tokens that depend on the drafts, it can only begin anew,
        which is no rest once there are tokens."""
        is_one_sequence = self._request.num_samples == 1 and self._request.acceptance == COUPLED
        return is_one_sequence or not self._num_new

    @property
    def has_begun(self) -> bool:
        """Whether a gateway has answered at all."""
        return self._started is not None

    def add(self, event: AnswerEvent) -> bool:
        """Whether the message is news: a resumed stream begins with a Started again, and may end a sample once more."""
        if isinstance(event, Started):
            self._fingerprint = event.fingerprint
            is_first, self._started = self._started is None, self._started or event
            self._told = event.fingerprint if is_first else self._told
            return is_first
        if isinstance(event, Finished):
            is_first = event.index not in self._finished
            self._finished.add(event.index)
            return is_first
        if isinstance(event, Delta) and event.token_ids:
            self._fingerprint = event.fingerprint or self._fingerprint
            self._fingerprints.add(self._fingerprint)
            self._token_ids += event.token_ids
            self._num_new += len(event.token_ids)
        return True

    def told(self, event: AnswerEvent) -> AnswerEvent:
        """News as they are for who reads one answer: tokens of another fingerprint name it, for a second Started is no news."""
        if not isinstance(event, Delta) or not event.token_ids or self._fingerprint == self._told:
            return event
        self._told = self._fingerprint
        return replace(event, fingerprint=self._fingerprint)

    def again(self) -> GenerationRequest:
        """The request for the rest: of the same id and seed as far as they are known. Raises InvalidRequest unless `may_resume`."""
        if not self.may_resume:
            problem = "the rest of several samples, or under rejection acceptance, cannot be asked for; ask anew"
            raise InvalidRequest("resume_token_ids", problem)
        request = self._request
        if self._started is not None:
            request = replace(request, request_id=self._started.request_id, seed=self._started.seed)
        if self._num_new:
            fingerprints = tuple(sorted(self._fingerprints)) if self._is_known else ()
            request = replace(request, resume_token_ids=tuple(self._token_ids), resume_fingerprints=fingerprints)
        return replace(request, takes_over=True)


async def generate_resuming(
    addresses: Sequence[str], request: GenerationRequest, timeout_s: float | None = None, limits: ResumeLimits | None = None
) -> AsyncGenerator[AnswerEvent, None]:
    """Stream an answer as OutriderClient.generate does, from these gateways in turn: one Started (the first), Deltas without a gap or a
    token twice, one Finished a sample, Done. `Finished.exact` says whether it is one sequence all the same; its times are of the last
    gateway.

    timeout_s: the whole answer's deadline; None, or infinite: none. Raises what generate raises; Unavailable and Overloaded once an answer
    has begun only when no gateway went on within the limits, or when it cannot be resumed (AnswerSoFar.may_resume). A gateway that is full
    before the answer begins is passed on as it is.
    """
    if not addresses:
        raise InvalidRequest("addresses", "names no gateway")
    timeout_s = checked_timeout(timeout_s)
    limits = limits or ResumeLimits()
    clock = asyncio.get_running_loop().time
    deadline_s = None if timeout_s is None else clock() + timeout_s
    answer, asked, backoff_s = AnswerSoFar(request), request, limits.min_backoff_s
    lost_s: float | None = None
    for num_resumes, address in enumerate(itertools.cycle(addresses)):
        try:
            async with aclosing(_stream(address, asked, deadline_s, limits)) as events:
                async for event in events:
                    lost_s, backoff_s = None, limits.min_backoff_s
                    if answer.add(event):
                        yield answer.told(event)
                    if isinstance(event, Done):
                        return
            raise Unavailable(f"gateway {address} ended the stream before the answer was complete")
        except (Unavailable, Overloaded) as error:
            lost_s = clock() if lost_s is None else lost_s
            pause_s = _pause_s(error, backoff_s)
            is_refused = isinstance(error, Overloaded) and not answer.has_begun
            is_too_late = clock() + pause_s > lost_s + limits.patience_s
            if is_refused or is_too_late or num_resumes >= limits.max_resumes or not answer.may_resume:
                raise
        asked = answer.again()
        # Never beyond the answer's own deadline, however late a full gateway says to come: the next asking says that it has passed.
        await asyncio.sleep(pause_s if deadline_s is None else max(0.0, min(pause_s, deadline_s - clock())))
        backoff_s = min(2.0 * backoff_s, limits.max_backoff_s)


async def _stream(
    address: str, request: GenerationRequest, deadline_s: float | None, limits: ResumeLimits
) -> AsyncGenerator[AnswerEvent, None]:
    """From one gateway, over a channel of its own: one that has failed would be tried again at its own pace."""
    clock = asyncio.get_running_loop().time
    connect_s = limits.connect_timeout_s if deadline_s is None else min(limits.connect_timeout_s, deadline_s - clock())
    if connect_s <= 0.0:
        raise DeadlinePassed("the request's deadline passed while its answer waited for another gateway")
    async with await connect_at_once(address, connect_s) as client:
        remaining_s = None if deadline_s is None else max(0.0, deadline_s - clock())
        events = cast(AsyncGenerator[AnswerEvent, None], client.generate(request, remaining_s))
        async with aclosing(events):
            async for event in events:
                yield event


def _pause_s(error: OutriderError, backoff_s: float) -> float:
    """Who is full may say when to come again."""
    told_s = error.retry_after_s if isinstance(error, Overloaded) and error.retry_after_s is not None else 0.0
    return max(told_s, backoff_s * random.uniform(0.5, 1.5))
