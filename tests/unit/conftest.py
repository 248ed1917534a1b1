"""What tests of engines ask for by name."""

from __future__ import annotations

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
