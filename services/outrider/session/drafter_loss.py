"""Why a session lost a drafter that it had, or gave it up: the label of what is counted.

A value. Knows no links. A drafter that refused a session from the beginning was never the session's to lose.
"""

from __future__ import annotations

from enum import StrEnum


class DrafterLossCause(StrEnum):
    """GONE: its stream ended. CLOSED: it ended the session itself. LATE: it missed its deadlines again and again, and is not waited for
    until it does better. PROTOCOL: it sent what cannot be, or had to be opened anew too often. ACCEPTANCE: it was hardly ever right."""

    GONE = "gone"
    CLOSED = "closed"
    LATE = "late"
    PROTOCOL = "protocol"
    ACCEPTANCE = "acceptance"
