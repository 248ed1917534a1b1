"""The engine thread over a table, and what stands in for the event loop: batches collected, and a wait until something is true of them.

Must not know grpc: what a test wants to happen it puts into the inbox.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future

from fakes import TruthTable
from fakes_simulation import spec_of
from outrider.engine.contract import Engine
from outrider.telemetry.local_metrics import LocalMetrics
from verifier_service.answer import AnswerStream, SessionEnded, SessionRequest, SessionStarted, TokensCommitted
from verifier_service.inbox import Nudge, OpenAsked, StopAsked
from verifier_service.outgoing import Outgoing
from verifier_service.prefill_price import PrefillPrice
from verifier_service.resident import ResidentDrafter
from verifier_service.scheduler import Scheduler

TABLE = TruthTable(vocab_size=40, seed=3)
PROMPT = [5, 6, 7]
WAIT_S = 60.0  # a bound on what would hang, no measure of speed


class Loop:
    """Stands in for the event loop: collects batches, and lets the test wait until something is true of them."""

    def __init__(
        self,
        engine: Engine,
        load_resident: Callable[[], ResidentDrafter] | None = None,
        *,
        max_sessions: int = 8,
        draft_len: int = 4,
        max_queue_us: float = 0.0,
        prefill_price: PrefillPrice | None = None,
        metrics: LocalMetrics | None = None,
    ) -> None:
        self.changed = threading.Condition()
        self.messages: dict[AnswerStream, list[object]] = {}  # by the answer, not its id(): that of one that is gone is given to another
        self.frames: list[object] = []
        self.dead: Future[None] = Future()
        self.scheduler = Scheduler(
            lambda: engine,
            self.take,
            lambda: None,
            lambda: self.dead.set_result(None),
            max_sessions=max_sessions,
            draft_len=draft_len,
            max_queue_us=max_queue_us,
            prefill_price=prefill_price,
            load_resident=load_resident,
            metrics=metrics,
        )
        self.scheduler.start()
        atexit.register(self.stop)  # where a test fails: a thread that outlived the interpreter would find its doorbell's files closed
        self.scheduler.engine_ready.result(WAIT_S)

    def take(self, outgoing: Outgoing) -> None:
        with self.changed:
            for answer, message in outgoing.answers:
                self.messages.setdefault(answer, []).append(message)
            for frames in outgoing.frames.values():
                self.frames += frames
            self.changed.notify_all()

    def of(self, answer: AnswerStream, kind: type) -> list[object]:
        return [message for message in self.messages.get(answer, []) if isinstance(message, kind)]

    def tokens(self, answer: AnswerStream) -> list[int]:
        return [token for message in self.of(answer, TokensCommitted) for token in message.tokens]  # type: ignore[attr-defined]

    def wait(self, answer: AnswerStream, kind: type) -> object:
        with self.changed:
            assert self.changed.wait_for(lambda: self.of(answer, kind), WAIT_S)
            return self.of(answer, kind)[-1]

    def more(self, answer: AnswerStream, num_tokens: int) -> int:
        """How many tokens came, once there are more than num_tokens or the answer has ended."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.tokens(answer)) > num_tokens or self.of(answer, SessionEnded), WAIT_S)
            return len(self.tokens(answer))

    def open(self, max_tokens: int = 30, pacing: str = "plain", table: TruthTable = TABLE, **changes: object) -> AnswerStream:
        spec = spec_of(0, PROMPT, max_tokens, table, **changes)
        answer = AnswerStream(SessionRequest(spec, pacing, "coupled", None, None), lambda: self.scheduler.inbox.put(Nudge()))
        self.scheduler.inbox.put(OpenAsked(answer))
        return answer

    def freed(self) -> None:
        """Once what ended before is worked off: whoever is admitted now comes behind that."""
        self.wait(self.open(max_tokens=1), SessionStarted)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        self.scheduler.inbox.put(StopAsked())
        assert self.scheduler.join(WAIT_S)


def ended(loop: Loop, answer: AnswerStream) -> SessionEnded:
    message = loop.wait(answer, SessionEnded)
    assert isinstance(message, SessionEnded)
    return message
