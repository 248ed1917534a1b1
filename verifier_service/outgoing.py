"""What one turn of the engine thread has to say: messages for clients and frames for drafters, handed to the event loop in one call.

Knows nothing of either side. Built by the engine thread, taken apart on the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.types.frames import VerifierFrame
from verifier_service.answer import AnswerMessage, AnswerStream
from verifier_service.inbox import PairDown


@dataclass(slots=True)
class Outgoing:
    """answers: in order. frames: per (drafter, connection), in order, for those without a lane. lost: whose lane broke."""

    answers: list[tuple[AnswerStream, AnswerMessage]] = field(default_factory=list)
    frames: dict[tuple[str, int], list[VerifierFrame]] = field(default_factory=dict)
    lost: list[PairDown] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.answers or self.frames or self.lost)

    def answer(self, stream: AnswerStream, message: AnswerMessage) -> None:
        """Queue a message for a client."""
        self.answers.append((stream, message))

    def frame(self, drafter: str, connection: int, frame: VerifierFrame) -> None:
        """Queue a frame for a drafter's present stream."""
        self.frames.setdefault((drafter, connection), []).append(frame)
