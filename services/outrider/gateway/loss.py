"""How an answer can come to leave its verifier before its end, and which of a stream's errors mean that it was.

Knows error classes. Must not know streams or who takes an answer over.
"""

from __future__ import annotations

from enum import StrEnum

from outrider.errors import OutriderError, Unavailable
from outrider.rpc.status import RemoteFailure


class LossCause(StrEnum):
    """What made the gateway leave a verifier; also the value of the counters' label.

    GONE: it died, its drain was over or its connection broke. SILENT: it answered nobody within a probe's deadline. STUCK: it answers,
    but takes no steps. BROKEN: it sent what cannot be, or failed with a fault of its own. DRAINING: it decoded on, but asked to be left.
    """

    GONE = "gone"
    SILENT = "silent"
    STUCK = "stuck"
    BROKEN = "broken"
    DRAINING = "draining"


class VerifierLost(Unavailable):
    """A verifier that ended nothing itself, but was found not to go on; the sentence names it."""

    def __init__(self, cause: LossCause, sentence: str) -> None:
        super().__init__(sentence)
        self.cause = cause


def loss_cause(error: OutriderError) -> LossCause | None:
    """Why the verifier was lost; None for errors that would be the same at any other verifier."""
    if isinstance(error, VerifierLost):
        return error.cause
    if isinstance(error, Unavailable):
        return LossCause.GONE
    # A bare OutriderError is a fault that no class names: INTERNAL, as RemoteFailure is.
    return LossCause.BROKEN if isinstance(error, RemoteFailure) or type(error) is OutriderError else None
