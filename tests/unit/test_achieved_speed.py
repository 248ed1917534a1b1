"""What guesses really brought, as far as it is known.

Run: pytest tests/unit/test_achieved_speed.py
"""

from __future__ import annotations

import pytest

from outrider.session.pacing.achieved_speed import HANDED_ON, LEAST_TOKENS, AchievedSpeed


def counted(num_times: int, num_tokens: int, num_rounds: float, known: AchievedSpeed | None = None) -> AchievedSpeed:
    speed = AchievedSpeed() if known is None else known
    for _ in range(num_times):
        speed.count(num_tokens, num_rounds)
    return speed


def test_tokens_in_the_time_of_a_plain_round() -> None:
    assert counted(20, 6, 2.0).speed == pytest.approx(3.0)


def test_too_little_says_nothing() -> None:
    few = int(LEAST_TOKENS) - 1
    assert counted(1, few, 1.0).speed == 0.0
    assert counted(1, few + 2, 1.0).speed > 0.0


def test_what_is_newer_counts_more() -> None:
    speed = counted(100, 4, 1.0)
    assert 1.0 < counted(100, 1, 1.0, speed).speed < 2.0


def test_a_session_takes_what_its_kind_knows_for_little() -> None:
    kind = counted(1_000, 4, 1.0)
    own = AchievedSpeed(kind)
    assert own.speed == pytest.approx(kind.speed)
    counted(1, int(HANDED_ON), HANDED_ON * 4.0, own)
    assert own.speed < 0.5, "its own text suits the drafter less"
    assert kind.speed == pytest.approx(4.0), "that is the session's affair"


def test_nothing_known_is_handed_on_as_nothing() -> None:
    assert AchievedSpeed(AchievedSpeed()).speed == 0.0
