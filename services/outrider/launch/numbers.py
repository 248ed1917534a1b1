"""Numbers of command lines and their ranges, refused while they are read: before a model is loaded, or anybody is waited for.

Knows argparse. Must not know which option a number belongs to: argparse names it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

MAX_INT32 = 2**31 - 1  # what a message or gRPC can say of sizes
MAX_UINT32 = 2**32 - 1  # what most of the client API's numbers can be; a service's own limits are narrower, and its own to say
MAX_UINT64 = 2**64 - 1  # a request's seed
MAX_INT64 = 2**63 - 1  # seeds of the bench, which numpy takes
MAX_THREADS = 1024  # of a service
MAX_SECONDS = 86_400.0  # a day: longer than anybody waits, and short enough for every clock and event loop


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argparse type: a whole number in [least, most], or of at least `least`."""
    wanted = f"a whole number of at least {least}" if most is None else f"a whole number in [{least}, {most}]"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {text}")
        return value

    return parse


def seconds(text: str) -> float:
    """An argparse type: in [0, MAX_SECONDS]."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"must be a number of seconds in [0, {MAX_SECONDS:g}], got {text}")
    return value


count = whole_number(0, MAX_UINT32)
seed = whole_number(0, MAX_UINT64)
