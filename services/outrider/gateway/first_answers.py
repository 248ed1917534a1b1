"""The questions of a gateway's start: everybody who is known is asked who it is, all at once, until one has said so.

Knows addresses and how each is asked. Must not know verifiers, nor what of their answers is taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from outrider.errors import Cancelled, OutriderError, Overloaded, Unavailable

_LOG = logging.getLogger(__name__)
# What the others are given once one is admitted: gateways with the same list of addresses are to begin with the same fingerprint, and those
# that serve answer within milliseconds. One that is down must not hold a start up; it is asked again while the gateway serves.
SETTLE_S = 1.0
# One that answers, but that it drains or is full, may be back soon.
ASK_AGAIN_S = 0.5
_PASSING = (Unavailable, Overloaded, Cancelled)
# One question of at most so many seconds; what went wrong is returned.
Question = Callable[[float], Awaitable[OutriderError | None]]


class FirstAnswers:
    """Construct inside a running event loop: timeout_s begins then. others_may_come: `ask` may be called again while `one` waits, so there
    is no end before the time is over. problems: by address, what it said last instead of who it is."""

    def __init__(self, timeout_s: float, *, others_may_come: bool) -> None:
        self.problems: dict[str, OutriderError] = {}
        self._timeout_s = timeout_s
        self._others_may_come = others_may_come
        self._end_s = asyncio.get_running_loop().time() + timeout_s
        self._asked_for_s: dict[str, float] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._admitted = False
        self._changed = asyncio.Event()

    def ask(self, address: str, question: Question) -> None:
        """Ask there from now on, until it is admitted or says what another question cannot change."""
        left_s = self._asked_for_s[address] = max(0.0, round(self._end_s - asyncio.get_running_loop().time(), 3))
        self._asking.add(asyncio.create_task(self._ask(address, question, left_s)))

    async def one(self) -> None:
        """Return once one is admitted, or nobody is left who may still be, or the time is over."""
        try:
            async with asyncio.timeout_at(self._end_s):
                while not self._admitted and (self._others_may_come or any(not task.done() for task in self._asking)):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _LOG.debug("nobody was admitted within %g s", self._timeout_s)

    async def settle(self) -> None:
        """Let the others answer, SETTLE_S at most."""
        if self._asking:
            await asyncio.wait(self._asking, timeout=SETTLE_S)

    async def close(self) -> None:
        """Ask no more. Raises what a question should not have."""
        for task in self._asking:
            task.cancel()
        ends = await asyncio.gather(*self._asking, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def sentences(self) -> list[str]:
        """Of each that was asked, why it was not admitted."""
        asked = self._asked_for_s.items()
        return [str(self.problems.get(address, f"{address} did not answer within {timeout_s:g} s")) for address, timeout_s in asked]

    async def _ask(self, address: str, question: Question, timeout_s: float) -> None:
        try:
            while (problem := await question(timeout_s)) is not None:
                if str(problem) != str(self.problems.get(address)):
                    _LOG.warning("verifier %s: %s", address, problem)
                self.problems[address] = problem
                if not isinstance(problem, _PASSING):
                    return
                await asyncio.sleep(ASK_AGAIN_S)
            self.problems.pop(address, None)
            self._admitted = True
        finally:
            self._changed.set()
