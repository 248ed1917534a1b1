"""How often and how soon `outrider up` starts a lost service again.

pytest tests/unit/test_cli_restarts.py
"""

from __future__ import annotations

import pytest

from outrider.cli.restarts import RestartLimits, Restarts

LIMITS = RestartLimits(max_restarts=4, steady_s=60.0, first_pause_s=1.0, max_pause_s=2.5)


def test_the_first_is_at_once_and_pauses_double_up_to_the_bound_and_the_last() -> None:
    restarts = Restarts(LIMITS, lambda: 0.0)
    assert [restarts.next_pause_s("verifier") for _ in range(5)] == [0.0, 1.0, 2.0, 2.5, None]


def test_each_service_has_a_count_of_its_own() -> None:
    restarts = Restarts(LIMITS, lambda: 0.0)
    assert [restarts.next_pause_s(name) for name in ("verifier", "drafter", "verifier")] == [0.0, 0.0, 1.0]
    assert (restarts.count("verifier"), restarts.count("drafter"), restarts.count("gateway")) == (2, 1, 0)


@pytest.mark.parametrize(("lasted_s", "pause_s"), [(59.0, 1.0), (60.0, 0.0)])
def test_a_life_that_lasted_begins_the_count_anew(lasted_s: float, pause_s: float) -> None:
    now_s = [1000.0]
    restarts = Restarts(LIMITS, lambda: now_s[0])
    now_s[0] += 5.0
    assert restarts.next_pause_s("gateway") == 0.0
    restarts.started("gateway")
    now_s[0] += lasted_s
    assert restarts.next_pause_s("gateway") == pause_s
