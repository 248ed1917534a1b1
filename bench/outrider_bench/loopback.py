"""Addresses of machines that are all this one: each has a loopback address of its own. Must not know who listens there."""

from __future__ import annotations

import socket


def free_address(host: str) -> str:
    """A port that is free now; nobody else here takes ports of these addresses."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"
