"""A verifier with a resident drafter (pair_service), without the service around it: no gateway, no stream, no event loop.

Must not know how requests come in, nor policies: those that want both to compute at once get turns too.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass

from drafter_service.drafting_thread import LoadedDrafter
from outrider.engine.contract import Engine
from outrider.errors import OutriderError
from outrider.types.statistics import DraftStatistics
from pair_service.next_door import DrafterNextDoor
from verifier_service.answer import AnswerMessage, AnswerStream, SessionEnded, SessionRequest, TokensCommitted
from verifier_service.inbox import OpenAsked, StopAsked
from verifier_service.outgoing import Outgoing
from verifier_service.scheduler import Scheduler

STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Told:
    """One answer. Times on this process's clock since it was asked for."""

    tokens: tuple[int, ...]
    first_token_ms: float
    total_ms: float
    statistics: DraftStatistics


class PairInTurns:
    """A target and a drafter that answer one request at a time. Both loaders run in the thread that will own what they load.

    max_rows and the like are the engine's own; draft_len: as the verifier's. Use as a context manager.
    """

    def __init__(self, load_draft: Callable[[], LoadedDrafter], load: Callable[[], Engine], draft_len: int | None = None) -> None:
        """Load and measure; raises what loading raises."""
        self._messages: queue.Queue[AnswerMessage | None] = queue.Queue()
        self._scheduler = Scheduler(
            load,
            self._send,
            _nothing,
            self._die,
            max_sessions=1,
            draft_len=draft_len,
            load_resident=lambda: DrafterNextDoor(load_draft()),
        )
        self._scheduler.start()
        self.engine = self._scheduler.engine_ready.result()

    def answer(self, request: SessionRequest) -> Told:
        """Decode one request to its end. Raises the error it ended with, RuntimeError when the scheduler could not go on."""
        begun_s = time.perf_counter()
        tokens: list[int] = []
        first_s = 0.0
        self._scheduler.inbox.put(OpenAsked(AnswerStream(request, _nothing)))
        while not isinstance(message := self._messages.get(), SessionEnded):
            if message is None:
                raise RuntimeError("the scheduler cannot go on; its error is in the log")
            if isinstance(message, TokensCommitted):
                first_s = first_s or time.perf_counter() - begun_s
                tokens += message.tokens
        total_s = time.perf_counter() - begun_s
        if message.error is not None:
            raise message.error
        return Told(tuple(tokens), 1000.0 * first_s, 1000.0 * total_s, message.statistics)

    def close(self) -> None:
        """End the thread."""
        self._scheduler.inbox.put(StopAsked())
        if not self._scheduler.join(STOP_TIMEOUT_S):
            raise OutriderError(f"the thread of verifier and drafter did not end within {STOP_TIMEOUT_S:g} s")

    def __enter__(self) -> PairInTurns:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- in the scheduler's thread ----------------------------------------------------------------------------------------

    def _send(self, outgoing: Outgoing) -> None:
        for stream, message in outgoing.answers:
            if isinstance(message, TokensCommitted):
                stream.delivered(len(message.tokens))
            self._messages.put(message)

    def _die(self) -> None:
        self._messages.put(None)


def _nothing() -> None:
    """There is nobody to wake: who fills a queue here also empties it."""
