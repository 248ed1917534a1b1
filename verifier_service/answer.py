"""One Decode stream's way back: what the engine thread commits, until the stream's coroutine has written it.

Knows how much is undelivered, so that the scheduler can leave out a session whose reader is slow. `push` and reading happen on the event
loop; the engine thread only counts what it emits. Must not know grpc or protobuf.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from outrider.errors import OutriderError
from outrider.session.events import FinishReason
from outrider.session.opening import VerifierSpec
from outrider.types.statistics import DraftStatistics
from outrider.types.step import TokenLogprobs
from outrider.types.tree import TokenOrigin
from verifier_service.clock import monotonic_us

MAX_UNDELIVERED_TOKENS = 256
# Commits that follow one another faster travel together: a message costs three processes about half a millisecond, as much as a fast step.
MIN_WRITE_INTERVAL_S = 0.004


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What an admitted stream asks for. spec.session is assigned by the scheduler. drafters: endpoints, None = all the service has.

    acceptance: name of the rule. top_logprobs: as in SequenceRows. pacing: name of the policy.
    """

    spec: VerifierSpec
    pacing: str
    acceptance: str
    top_logprobs: int | None
    drafters: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """Everything the session may need is reserved."""

    fingerprint: str


@dataclass(frozen=True, slots=True)
class TokensCommitted:
    """begin: absolute position of the first token; logprobs: one row per token when asked for."""

    begin: int
    tokens: tuple[int, ...]
    origins: tuple[TokenOrigin, ...]
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """Nothing of the session is held any more. error: set when the stream must end with a status instead of an answer."""

    reason: FinishReason
    statistics: DraftStatistics
    error: OutriderError | None = None


AnswerMessage = SessionStarted | TokensCommitted | SessionEnded


class AnswerStream:
    """Messages of one session, in order; adjacent commits merge while they wait, which they do for MIN_WRITE_INTERVAL_S after the last
    ones; the first and the last never wait. on_room: called when a slow reader has caught up."""

    def __init__(self, request: SessionRequest, on_room: Callable[[], None]) -> None:
        self.request = request
        self.handle = 0  # set by the scheduler on admission
        self.asked_us = monotonic_us()
        self.has_begun = False  # set by the engine thread with the first step
        self.ended = asyncio.Event()
        self._on_room = on_room
        self._waiting: list[AnswerMessage] = []
        self._arrived = asyncio.Event()
        self._num_emitted = 0
        self._num_delivered = 0
        self._next_write_s = 0.0  # on the event loop's clock

    @property
    def is_slow(self) -> bool:
        """More is undelivered than MAX_UNDELIVERED_TOKENS; may be read from any thread."""
        return self._num_emitted - self._num_delivered > MAX_UNDELIVERED_TOKENS

    def count_emitted(self, num_tokens: int) -> None:
        """Engine thread: so many tokens are on their way."""
        self._num_emitted += num_tokens

    def push(self, message: AnswerMessage) -> None:
        """Event loop: queue a message."""
        last = self._waiting[-1] if self._waiting else None
        if isinstance(message, TokensCommitted) and isinstance(last, TokensCommitted):
            self._waiting[-1] = _joined(last, message)
        else:
            self._waiting.append(message)
        if isinstance(message, SessionEnded):
            self.ended.set()
        self._arrived.set()

    async def next(self) -> AnswerMessage:
        """Event loop: the next message; call `delivered` once it is written."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        if isinstance(self._waiting[0], TokensCommitted):
            await self._gather()
        return self._waiting.pop(0)

    async def _gather(self) -> None:
        """Until commits may be written again, or nothing more can come."""
        clock = asyncio.get_running_loop().time
        if clock() < self._next_write_s and not self.ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._next_write_s):
                    await self.ended.wait()
        self._next_write_s = clock() + MIN_WRITE_INTERVAL_S

    def delivered(self, num_tokens: int) -> None:
        """Event loop: so many tokens were written."""
        before = self._num_delivered
        self._num_delivered = before + num_tokens
        # Read after the write: what the engine thread saw before it, and may have left the session out for, is no more than this.
        if self._num_emitted - before > MAX_UNDELIVERED_TOKENS and not self.is_slow:
            self._on_room()


def _joined(first: TokensCommitted, second: TokensCommitted) -> TokensCommitted:
    assert first.begin + len(first.tokens) == second.begin
    logprobs = None
    if first.logprobs is not None and second.logprobs is not None:
        logprobs = TokenLogprobs(
            np.concatenate((first.logprobs.chosen, second.logprobs.chosen)),
            np.concatenate((first.logprobs.top_ids, second.logprobs.top_ids)),
            np.concatenate((first.logprobs.top, second.logprobs.top)),
        )
    return TokensCommitted(first.begin, first.tokens + second.tokens, first.origins + second.origins, logprobs)
