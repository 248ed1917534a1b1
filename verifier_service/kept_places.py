"""Places for answers under way: who lost its verifier in the midst of an answer, and found no room here, comes again shortly.

New requests, of which a full fleet always has more, would have what becomes free before it does, until its time to find another verifier
is over and the answer is lost; they have lost nothing yet and may be asked again. Lives on the engine thread. Must not know sessions.
"""

from __future__ import annotations

from outrider.session.opening import VerifierSpec

MAX_KEPT = 64
KEPT_US = 2_000_000  # longer than a gateway pauses between two rounds over the verifiers (FailoverLimits.max_backoff_s, half as much again)


def goes_on(spec: VerifierSpec) -> bool:
    """Whether an answer that was begun elsewhere is to go on here."""
    return spec.incarnation > 1 and len(spec.prefix) > spec.num_prompt


class KeptPlaces:
    """At most MAX_KEPT, each for KEPT_US from when it was last asked for."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, bool]] = {}  # by request, the oldest first: until when, and whether it was blocks that lacked

    def keep(self, request_id: str, now_us: int, *, lacks_blocks: bool) -> None:
        """This one was refused for want of room."""
        self._kept.pop(request_id, None)
        if len(self._kept) < MAX_KEPT:
            self._kept[request_id] = now_us + KEPT_US, lacks_blocks

    def found(self, request_id: str) -> None:
        """It has a place."""
        self._kept.pop(request_id, None)

    def num(self, now_us: int) -> int:
        """Of those that are still kept."""
        while self._kept and self._kept[first := next(iter(self._kept))][0] <= now_us:
            del self._kept[first]
        return len(self._kept)

    @property
    def needs_blocks(self) -> bool:
        """Whether one of them would find a place, but no room for its text. Of those that `num` found still kept."""
        return any(lacks_blocks for _, lacks_blocks in self._kept.values())
