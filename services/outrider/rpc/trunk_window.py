"""How much of a carried call may be under way to a caller that does not read: a window for each, as a stream of its own would have.

Both ends count alike. Must not know what messages mean.
"""

from __future__ import annotations

from outrider.rpc.pipe import MAX_UNREAD

UNIT_BYTES = 256
WINDOW = MAX_UNREAD  # units: small messages, as many as a pipe holds, or 16 KiB of large ones and the one that goes beyond
TELL_EVERY = WINDOW // 2  # units that were read before the sender hears of them
TELL_AFTER_S = 0.25  # or fewer, if it heard nothing for so long: a reader that is slow is not one that reads nothing


def credit(payload: bytes) -> int:
    """Of the window, in units: at least 1, so that what a window holds is bounded in messages too."""
    return 1 + len(payload) // UNIT_BYTES
