"""What unit tests ask for by name."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator

import pytest
import torch

from fakes_followed import FollowingEngines


@pytest.fixture
def one_thread() -> None:
    """torch computes with one: an engine that was loaded before may have asked for more."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> FollowingEngines:
    """Whose models are loaded once a module."""
    return FollowingEngines(tmp_path_factory.mktemp)


@pytest.fixture
def own_process() -> Iterator[None]:
    """What a process of its own would keep to itself."""
    interval_s, handler, log_handlers = sys.getswitchinterval(), signal.getsignal(signal.SIGINT), logging.root.handlers[:]
    yield
    sys.setswitchinterval(interval_s)
    signal.signal(signal.SIGINT, handler)
    logging.root.handlers[:] = log_handlers
