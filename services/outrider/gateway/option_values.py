"""Values of the gateway's options: each is refused by argparse, which names the option, before anything is waited for.

Knows ranges. Must not know which option has which.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

# A day: longer than anybody waits, and short enough for every clock and event loop.
MAX_SECONDS = 86_400.0
# What a message or gRPC can say; beyond that nobody means what he asks for.
MAX_WHOLE = 2**31 - 1


def seconds(text: str) -> float:
    """Not negative, not endless."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"must be a number of seconds in [0, {MAX_SECONDS:g}], got {text}")
    return value


def whole(least: int, most: int = MAX_WHOLE) -> Callable[[str], int]:
    """Whole numbers of a range."""
    wanted = f"in [{least}, {most}]"

    def value_of(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number {wanted}, got {text!r}") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {value}")
        return value

    return value_of
