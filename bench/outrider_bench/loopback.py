"""Machines that are all this one: each has a loopback address of its own. Must not know who listens there."""

from __future__ import annotations

import socket
from collections import deque

NETWORK = "127.0.1"
MOST_TRIES = 100

_given: deque[str] = deque(maxlen=1024)  # newest last: who was told one may not listen there yet


def free_address(host: str) -> str:
    """A port that is free now, and none of those that were given out last; nobody else here takes ports of these addresses. Raises OSError
    where there is none."""
    for _ in range(MOST_TRIES):
        with socket.socket() as probe:
            probe.bind((host, 0))
            address = f"{host}:{probe.getsockname()[1]}"
        if address not in _given:
            _given.append(address)
            return address
    raise OSError(f"{host} has no port left that was not given out already")


def addresses(num: int) -> tuple[str, ...]:
    """Of so many machines."""
    return tuple(f"{NETWORK}.{number + 1}" for number in range(num))
