"""Processes that want more cores than there are: each that is busy gets an equal share, and no more than one core.

Knows pieces of work (microseconds if alone) and virtual time. With B pieces on C cores each runs at min(1, C / B) of its speed; and where
two or more are busy, each kind is further slowed by its own factor, which is what neighbours cost beside the share: caches and memory, or
threads of one core. That is the kernel's fair scheduler without its time slices, and moves between cores cost nothing. Must not know
what the work is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

_ROUNDING_US = 1e-6


class Kind(Enum):
    """Whose work it is. CLERK: gateway and client. MESSAGE: a message between verifier and drafter, both ends of it."""

    VERIFIER = "verifier"
    DRAFTER = "drafter"
    CLERK = "clerk"
    MESSAGE = "message"


@dataclass(frozen=True, slots=True)
class Piece:
    """Work under way. number: which of its kind."""

    kind: Kind
    number: int


class ProcessorSharing:
    """slowdowns: by kind, at least 1; kinds that are not named have none. alike: by kind, in place of that while other work of the same
    kind is under way."""

    def __init__(self, num_cores: int, slowdowns: Mapping[Kind, float], alike: Mapping[Kind, float] | None = None) -> None:
        assert num_cores >= 1
        self._num_cores = num_cores
        self._slowdowns, self._alike = dict(slowdowns), dict(alike or {})
        factors = (*self._slowdowns.values(), *self._alike.values())
        assert all(factor >= 1.0 for factor in factors), "sharing cores never makes anything faster"
        self._left_us: dict[Piece, float] = {}
        self._now_us = 0

    def is_busy(self, piece: Piece) -> bool:
        """Whether it is under way."""
        return piece in self._left_us

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._left_us

    def start(self, piece: Piece, work_us: float, now_us: int) -> None:
        """Begin work that would take work_us alone."""
        assert piece not in self._left_us, "one thing at a time"
        self._advance(now_us)
        self._left_us[piece] = work_us

    def due_us(self) -> int | None:
        """When the next piece is done if nothing begins before; None when nothing is under way."""
        if not self._left_us:
            return None
        soonest_us = min(left_us / self._speed(piece) for piece, left_us in self._left_us.items())
        return self._now_us + max(0, math.ceil(soonest_us - _ROUNDING_US))

    def take_done(self, now_us: int) -> list[Piece]:
        """Those that have ended by now, in the order in which they were started."""
        self._advance(now_us)
        done = [piece for piece, left_us in self._left_us.items() if left_us <= _ROUNDING_US]
        for piece in done:
            del self._left_us[piece]
        return done

    def _advance(self, now_us: int) -> None:
        passed_us = now_us - self._now_us
        if passed_us > 0:
            self._left_us = {piece: left_us - passed_us * self._speed(piece) for piece, left_us in self._left_us.items()}
        self._now_us = now_us

    def _speed(self, piece: Piece) -> float:
        """Of a core of its own."""
        num_busy = len(self._left_us)
        share = min(1.0, self._num_cores / num_busy)
        if num_busy == 1:
            return share
        slowdown = self._slowdowns.get(piece.kind, 1.0)
        if sum(other.kind is piece.kind for other in self._left_us) > 1:
            slowdown = self._alike.get(piece.kind, slowdown)
        return share / slowdown
