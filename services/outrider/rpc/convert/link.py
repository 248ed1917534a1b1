"""Frames that belong to a stream rather than to a session, and what a frame that could not be decoded leaves behind.

Hello / Welcome open a `Draft` stream, Ping / Pong measure it. Knows values only; must not know sessions or clocks' meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import ProtocolViolation
from outrider.types.frames import DrafterFrame, VerifierFrame
from outrider.types.identity import ModelIdentity


@dataclass(frozen=True, slots=True)
class Hello:
    """Verifier, first frame of a stream: who it is, and its name for logs."""

    verifier: ModelIdentity
    verifier_id: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """Drafter: the pair matches. clock_ns: its monotonic clock when this was written. max_sessions: most on this stream.

    lane_token: what opens the stream's lane (rpc/lane.py); empty when there is none.
    """

    drafter: ModelIdentity
    clock_ns: int
    max_sessions: int
    lane_token: bytes = b""


@dataclass(frozen=True, slots=True)
class Ping:
    """Verifier: sent_ns on its monotonic clock, to be echoed."""

    sent_ns: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Drafter: the echo, and its own monotonic clock."""

    sent_ns: int
    clock_ns: int


@dataclass(frozen=True, slots=True)
class BadFrame:
    """A frame that could not be decoded: it costs the session it names (None: it named none), never the stream."""

    session: int | None
    incarnation: int
    error: ProtocolViolation


FromVerifier = VerifierFrame | Hello | Ping | BadFrame
FromDrafter = DrafterFrame | Welcome | Pong | BadFrame
ToDrafter = VerifierFrame | Hello | Ping
ToVerifier = DrafterFrame | Welcome | Pong
