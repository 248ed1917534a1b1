"""A port that somebody else has is named before Ray is asked for a coordinator there.

pytest tests/unit/test_free_port.py
"""

from __future__ import annotations

import socket

import pytest

from outrider.coordinator.free_port import await_free
from outrider.launch.process import StartFailed


def test_a_port_that_is_taken_is_named_and_one_that_is_free_is_left_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartFailed, match=rf"cannot listen at {address}: .*; end what listens there, or give another --fleet-port"):
            await_free(address, max_attempts=1)
    for _ in range(2):
        await_free(address, max_attempts=1)
