"""Machines that are all this one: each has a loopback address of its own. Must not know who listens there."""

from __future__ import annotations

import socket

NETWORK = "127.0.1"


def free_address(host: str) -> str:
    """A port that is free now; nobody else here takes ports of these addresses."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def addresses(num: int) -> tuple[str, ...]:
    """Of so many machines."""
    return tuple(f"{NETWORK}.{number + 1}" for number in range(num))
