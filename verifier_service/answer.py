"""One Decode stream's way back: what the engine thread commits, until the stream's coroutine has written it.

Knows how much is undelivered, so that the scheduler can leave out a session whose reader is slow, and when the next message is due: commits
that come faster are held for it, and the event loop is not woken for each. `push` and reading happen on that loop; the engine thread
counts what it emits and leaves commits here (`hold`) while somebody comes for them. Must not know grpc or protobuf.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import cast

import numpy as np

from outrider.errors import OutriderError
from outrider.session.events import FinishReason
from outrider.session.opening import VerifierSpec
from outrider.types.statistics import DraftStatistics
from outrider.types.step import TokenLogprobs
from outrider.types.tree import TokenOrigin
from outrider.types.value import quickly_made
from verifier_service.clock import monotonic_us

MAX_UNDELIVERED_TOKENS = 256


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What an admitted stream asks for. spec.session is assigned by the scheduler. drafters: endpoints, None = all the service has.

    acceptance: name of the rule. top_logprobs: as in SequenceRows. pacing: name of the policy. takes_end: its end may come with its last
    tokens, in one message.
    """

    spec: VerifierSpec
    pacing: str
    acceptance: str
    top_logprobs: int | None
    drafters: frozenset[str] | None
    takes_end: bool = False


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """Everything the session may need is reserved."""

    fingerprint: str


@quickly_made
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
    """Messages of one session, in order; adjacent commits merge while they wait, which they do until interval_s after the last ones were
    written; the first and the last never wait. on_room: called when a slow reader has caught up.

    What is held here dies with the process: a gateway has not seen it, so another verifier decodes it again, the same tokens. It is
    bounded as all that is undelivered: a session with more than MAX_UNDELIVERED_TOKENS takes no further round.
    """

    def __init__(self, request: SessionRequest, on_room: Callable[[], None], interval_s: float = 0.0) -> None:
        self.request = request
        self.handle = 0  # set by the scheduler on admission
        self.asked_us = monotonic_us()
        self.has_begun = False  # set by the engine thread with the first step
        self.ended = asyncio.Event()
        self._on_room = on_room
        self._interval_s = interval_s
        self._waiting: list[AnswerMessage] = []
        self._num_emitted = 0
        self._num_delivered = 0
        self._next_write_s = 0.0  # on the event loop's clock; 0 = at once
        self._reader: asyncio.Future[None] | None = None  # what `next` waits for: a message, or in a pause its end
        self._is_fast = False  # whether a commit came before it could be written: then the next one is likely to, too
        self._lock = threading.Lock()  # of the three that follow, the only ones that both threads change
        self._held: list[TokensCommitted] = []
        self._num_on_way = 0  # commits that the loop is told of, until it has them
        self._comes = False  # whether the event loop comes for what is held by itself

    @property
    def is_slow(self) -> bool:
        """More is undelivered than MAX_UNDELIVERED_TOKENS; may be read from any thread."""
        return self._num_emitted - self._num_delivered > MAX_UNDELIVERED_TOKENS

    def count_emitted(self, num_tokens: int) -> None:
        """Engine thread: so many tokens are on their way."""
        self._num_emitted += num_tokens

    def hold(self, message: TokensCommitted) -> bool:
        """Engine thread: leave a commit here, for the event loop that will come for it when the next message is due. False: it will not,
        or may come before it has heard of an older one, and is to be told (`push`)."""
        with self._lock:
            is_held = self._comes and not self._num_on_way
            if is_held:
                self._held.append(message)
            else:
                self._num_on_way += 1
            return is_held

    def push(self, message: AnswerMessage) -> None:
        """Event loop: queue a message. A commit was offered to `hold`, and is older than those held, for none is while it is on its way."""
        if isinstance(message, TokensCommitted):
            with self._lock:
                self._num_on_way -= 1
        elif isinstance(message, SessionEnded):
            self._collect()
            self.ended.set()
        self._waiting.append(message)
        if not self._comes:  # in a pause only the end is worth waking for
            self._wake()

    def hurry(self) -> None:
        """Event loop: what is held is written now, for there is something to say with it."""
        self._next_write_s = 0.0
        if self._comes:
            self._wake()

    async def next(self) -> AnswerMessage:
        """Event loop: the next message; call `delivered` once it is written."""
        rested = self._is_fast and self._is_early()
        if rested:
            await self._pause()
        self._is_fast = self._is_fast and bool(self._waiting)
        while not self._waiting:
            await self._woken()
        if not isinstance(self._waiting[0], TokensCommitted):
            return self._waiting.pop(0)
        if not rested and self._is_early():
            await self._pause()
            self._is_fast = True
        self._is_fast = self._is_fast or not self._next_write_s  # the first commit of an answer is likely to be followed soon
        self._next_write_s = asyncio.get_running_loop().time() + self._interval_s
        return self._taken()

    def end_behind(self) -> SessionEnded | None:
        """Event loop: the end, if it is the next message and may travel with the commit that `next` gave last. It is taken, then."""
        following = self._waiting[0] if self._waiting and self.request.takes_end else None
        if not isinstance(following, SessionEnded) or following.error is not None:
            return None
        self._waiting.clear()
        return following

    def _is_early(self) -> bool:
        """Whether commits may not be written yet, and more can come."""
        return not self.ended.is_set() and asyncio.get_running_loop().time() < self._next_write_s

    async def _pause(self) -> None:
        """Until commits may be written again, or nothing more can come. One timer a message at most, and none where steps take longer."""
        timer = asyncio.get_running_loop().call_at(self._next_write_s, self._wake)
        with self._lock:
            self._comes = True
        try:
            await self._woken()
        finally:
            timer.cancel()
            self._collect()

    async def _woken(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        await self._reader

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():  # done: whoever read was cancelled
            reader.set_result(None)

    def _collect(self) -> None:
        """What was held waits to be written now; the engine thread is to tell of what follows."""
        with self._lock:
            held, self._held, self._comes = self._held, [], False
        self._waiting += held

    def _taken(self) -> TokensCommitted:
        """All commits that wait, as one."""
        num = len(self._waiting) - isinstance(self._waiting[-1], SessionEnded)  # nothing comes behind the end
        commits = cast("list[TokensCommitted]", self._waiting[:num])
        del self._waiting[:num]
        return commits[0] if num == 1 else _joined(commits)

    def delivered(self, num_tokens: int) -> None:
        """Event loop: so many tokens were written."""
        before = self._num_delivered
        self._num_delivered = before + num_tokens
        # Read after the write: what the engine thread saw before it, and may have left the session out for, is no more than this.
        if self._num_emitted - before > MAX_UNDELIVERED_TOKENS and not self.is_slow:
            self._on_room()


def _joined(commits: Sequence[TokensCommitted]) -> TokensCommitted:
    first, last = commits[0], commits[-1]
    tokens = tuple(chain.from_iterable([commit.tokens for commit in commits]))
    origins = tuple(chain.from_iterable([commit.origins for commit in commits]))
    assert first.begin + len(tokens) == last.begin + len(last.tokens), "commits are adjacent"
    return TokensCommitted(first.begin, tokens, origins, _joined_rows([commit.logprobs for commit in commits]))


def _joined_rows(parts: Sequence[TokenLogprobs | None]) -> TokenLogprobs | None:
    rows = [part for part in parts if part is not None]
    if not rows:
        return None
    assert len(rows) == len(parts), "a session has log-probabilities throughout or never"
    return TokenLogprobs(
        np.concatenate([part.chosen for part in rows]),
        np.concatenate([part.top_ids for part in rows]),
        np.concatenate([part.top for part in rows]),
    )
