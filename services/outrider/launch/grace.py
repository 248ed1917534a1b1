"""How long a service that was told to end may take before it is killed: as long as its own grace, and a little more.

Knows what the services call the option of their grace, which people hand on to them by `--gateway-arg` and its like. Must not know
processes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from outrider.launch.numbers import MAX_SECONDS

DRAIN_DEADLINE_S = 15.0  # above the services' own grace of 10 s
CLOSING_S = 5.0  # what a service may take beyond its grace: sockets close, and what is left is cancelled
_FLAGS = ("--drain-grace-s", "--grace-s")
_MIN_FLAG_LEN = len("--g")  # argparse takes beginnings of a name


def drain_deadline_s(arguments: Sequence[str], least_s: float = DRAIN_DEADLINE_S) -> float:
    """For a service of this command line, of one part or several; the longest grace counts."""
    return max([least_s, *(grace_s + CLOSING_S for grace_s in _graces_s(arguments))])


def _graces_s(arguments: Sequence[str]) -> Iterator[float]:
    for argument, following in itertools.pairwise((*arguments, "")):
        name, has_value, value = argument.partition("=")
        if len(name) >= _MIN_FLAG_LEN and any(flag.startswith(name) for flag in _FLAGS):
            yield _seconds(value if has_value else following)


def _seconds(text: str) -> float:
    """Nothing for what is no time: the service refuses it by name."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return 0.0 if math.isnan(value) else min(max(value, 0.0), MAX_SECONDS)
