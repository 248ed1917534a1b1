"""Numbers of the command line and their ranges, refused while it is read: before a model is loaded, and before a message refuses them.

Knows argparse. Must not know which option a number belongs to: argparse names it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

MAX_UINT32 = 2**32 - 1  # what most of the client API's numbers can be; a service's own limits are narrower, and its own to say
MAX_UINT64 = 2**64 - 1  # a request's seed
MAX_INT64 = 2**63 - 1  # seeds of the bench, which numpy takes


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


count = whole_number(0, MAX_UINT32)
seed = whole_number(0, MAX_UINT64)
