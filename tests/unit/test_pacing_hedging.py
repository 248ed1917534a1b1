"""When side branches are worth a drafter's time: far away, beside a target that does not suffer, and while they hit."""

from __future__ import annotations

import pytest

from fakes_pacing import session_view
from outrider.session.pacing.contract import MAX_HEDGE_NODES
from outrider.session.pacing.hedging import MIN_HEDGE_TESTS, hedge_budget, is_near
from outrider.session.pacing.registry import make_pacing
from outrider.session.statistics import SessionStatistics


@pytest.mark.parametrize(
    ("link_us", "contention", "num_tests", "hit_share", "expected"),
    [
        (5_000.0, 1.0, 0, 0.0, MAX_HEDGE_NODES),
        (100.0, 1.0, 0, 0.0, 0),  # near: a mismatch costs little
        (5_000.0, 1.6, 0, 0.0, 0),  # shared cores: drafting is paid for by the target
        (5_000.0, 1.0, MIN_HEDGE_TESTS, 0.05, 0),  # they hardly ever hit
        (5_000.0, 1.0, MIN_HEDGE_TESTS - 1, 0.05, MAX_HEDGE_NODES),  # too early to say
        (5_000.0, 1.0, 1_000, 0.4, MAX_HEDGE_NODES),
    ],
)
def test_a_budget_where_a_mismatch_is_dear(link_us: float, contention: float, num_tests: int, hit_share: float, expected: int) -> None:
    session = session_view(1, num_hedge_tests=num_tests, hedge_hit_share=hit_share)
    assert hedge_budget(session, link_us, 10_000.0, contention) == expected


def test_close_by_branches_are_for_the_step_itself_and_never_where_cores_are_shared() -> None:
    session = session_view(1)
    assert hedge_budget(session, 100.0, 10_000.0, 1.0, pays_near=True) == MAX_HEDGE_NODES
    assert hedge_budget(session, 100.0, 10_000.0, 1.6, pays_near=True) == 0
    assert is_near(100.0, 10_000.0)
    assert not is_near(5_000.0, 10_000.0)


def test_nothing_is_allowed_before_anything_is_measured() -> None:
    assert hedge_budget(session_view(1), 0.0, 0.0, 1.0) == 0
    assert make_pacing("adaptive").hedge_nodes(session_view(1)) == 0


def test_the_share_of_hits_begins_at_a_prior_and_follows_what_happens() -> None:
    statistics = SessionStatistics()
    assert statistics.hedge_hit_share == 0.5
    statistics.count_hedges(40, 0)
    assert statistics.hedge_hit_share < 0.06
    statistics.count_hedges(40, 40)
    assert statistics.hedge_hit_share == pytest.approx(0.5)
