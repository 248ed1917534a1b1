"""Whether a verifier that has fallen silent still lives: it is asked once for all of its streams, and they hear of its loss together.

Knows how long each stream has waited for a message, and a way to ask the verifier for its number of steps. Must not know messages,
requests, or what becomes of a lost stream. A stream waits only while somebody reads it: one that a slow client holds back is not silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

from outrider.errors import Cancelled, OutriderError, Unavailable
from outrider.gateway.interruption import Interruption
from outrider.gateway.limits import LivenessLimits
from outrider.gateway.loss import LossCause, VerifierLost

_LOG = logging.getLogger(__name__)
# How often waiting streams are looked at, as a part of the silence that is allowed: a loss is found that much later at most.
LOOKS_PER_SILENCE = 5
# A verifier that took no steps is left out this long unless it takes one: it may have been started anew without our noticing.
STUCK_BAN_S = 60.0


class Listener(Interruption):
    """One stream's reader: `async with listener: ...` ends with VerifierLost when the verifier is lost while the reader waits.

    since_s: when the present wait began, on the event loop's clock; None while nobody waits for a message.
    """

    def __init__(self, liveness: Liveness) -> None:
        super().__init__()
        self._liveness = liveness
        self.since_s: float | None = None

    async def __aenter__(self) -> Listener:
        await super().__aenter__()
        self._liveness.add(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._liveness.discard(self)
        await super().__aexit__(kind, value, trace)


class Liveness:
    """Of one verifier. ask(timeout_s): its number of steps, None when it answers without telling them; raises Unavailable when nobody
    is there, Cancelled when the deadline passes.

    At most one probe is under way, and none while every stream hears something within the allowed silence.
    """

    def __init__(self, address: str, ask: Callable[[float], Awaitable[int | None]], limits: LivenessLimits) -> None:
        self._address = address
        self._ask = ask
        self._limits = limits
        self._listeners: set[Listener] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._heard_s = 0.0
        self._num_steps = 0
        self._moved_s = 0.0
        self._stuck_at: int | None = None
        self._banned_until_s = 0.0

    def is_stuck(self, num_steps: int) -> bool:
        """Whether it was lost of late for taking no steps, and has taken none since. num_steps: what it says now."""
        return num_steps == self._stuck_at and asyncio.get_running_loop().time() < self._banned_until_s

    def add(self, listener: Listener) -> None:
        """Watch over a stream from now on."""
        self._listeners.add(listener)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())

    def discard(self, listener: Listener) -> None:
        """A stream that nobody reads any more."""
        self._listeners.discard(listener)

    async def close(self) -> None:
        """End the watching."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    async def _watch(self) -> None:
        """As long as there are streams. What we ourselves slept through (a stopped process, a busy loop) is nobody's silence."""
        clock = asyncio.get_running_loop().time
        silence_s = self._limits.silence_s
        while self._listeners:
            due_s = clock() + silence_s / LOOKS_PER_SILENCE
            await asyncio.sleep(silence_s / LOOKS_PER_SILENCE)
            if clock() - due_s > silence_s:
                self._heard_s = clock()
            since_s = self._since_s()
            if since_s is not None and clock() - max(since_s, self._heard_s) >= silence_s:
                await self._probe(since_s)

    async def _probe(self, since_s: float) -> None:
        """Ask, and tell every waiting stream if it is lost. since_s: when the longest wait began."""
        clock = asyncio.get_running_loop().time
        begun_s = clock()
        try:
            num_steps = await self._ask(self._limits.probe_timeout_s)
        except Unavailable as error:
            self._lose(LossCause.GONE, f"verifier {self._address} fell silent and is gone: {error}")
        except Cancelled as error:
            if clock() - begun_s > self._limits.probe_timeout_s + self._limits.silence_s:
                self._heard_s = clock()  # we slept over its deadline: the answer may have been there
                return
            self._lose(LossCause.SILENT, f"verifier {self._address} fell silent and does not answer: {error}")
        except OutriderError as error:
            _LOG.warning("verifier %s answers a question for its steps with a fault: %s", self._address, error)
            self._answered(None, since_s)
        else:
            self._answered(num_steps, since_s)

    def _answered(self, num_steps: int | None, since_s: float) -> None:
        now_s = self._heard_s = asyncio.get_running_loop().time()
        if num_steps is None:
            return
        if num_steps != self._num_steps or not self._moved_s:
            self._num_steps, self._moved_s, self._stuck_at = num_steps, now_s, None
        elif now_s - max(self._moved_s, since_s) >= self._limits.stuck_s:
            self._stuck_at, self._banned_until_s = num_steps, now_s + STUCK_BAN_S
            self._lose(LossCause.STUCK, f"verifier {self._address} answers, but has taken no step for {self._limits.stuck_s:g} s")

    def _lose(self, cause: LossCause, sentence: str) -> None:
        for listener in tuple(self._listeners):
            if listener.since_s is not None:
                listener.interrupt(VerifierLost(cause, sentence))

    def _since_s(self) -> float | None:
        """When the longest wait began, None when nobody waits."""
        return min((listener.since_s for listener in self._listeners if listener.since_s is not None), default=None)
