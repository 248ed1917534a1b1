"""How many threads an engine takes where nobody says.

pytest tests/unit/test_engine_torch_settings.py
"""

from __future__ import annotations

import pytest
import torch

from outrider.engine import torch_settings
from outrider.engine.config import EngineConfig


@pytest.mark.parametrize(
    ("config", "environment", "quota", "taken"),
    [
        (EngineConfig("m"), {}, 2.5, [2]),
        (EngineConfig("m"), {}, 0.5, [1]),
        (EngineConfig("m"), {}, 8.0, []),
        (EngineConfig("m"), {}, None, []),
        (EngineConfig("m"), {"OMP_NUM_THREADS": "8"}, 2.5, []),
        (EngineConfig("m", num_threads=4), {}, 2.5, [4]),
        (EngineConfig("m", device="cuda"), {}, 2.5, []),
    ],
)
def test_a_containers_quota_bounds_what_torch_would_choose(
    config: EngineConfig, environment: dict[str, str], quota: float | None, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More would use the quota up in a part of each period, and stand still for the rest of it."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    numbers: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    monkeypatch.setattr(torch_settings, "threadpool_limits", lambda *_, **__: None)
    monkeypatch.setattr(torch_settings, "cpu_quota", lambda: quota)
    torch_settings.use_threads(config)
    assert numbers == taken
