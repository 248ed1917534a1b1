"""Side nodes of a step: what they are worth, what their rows may cost, whose come first, and that a doubtful case does not flap."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from fakes_pacing import NOW_US, session_view
from outrider.session.pacing.contract import MAX_SIDE_NODES, CostCurve, PacingPlan, SessionPlan, SessionView, StepView
from outrider.session.pacing.side_nodes import MIN_SIDE_GAIN, SWITCH_GAIN, SideNodes, side_gains

STEP_US = 10_000.0
FLAT = CostCurve(((1, STEP_US),))
CHAIN = SessionPlan(1, 1, 4)


def hedged(session: int = 1, depths: tuple[int, ...] = (0, 1, 1, 2), **changes: Any) -> SessionView:
    """A chain of four guesses with side nodes at these depths."""
    return session_view(session, 4, **{"acceptance": 0.6, "hedge_hit_share": 0.5, "side_depths": depths} | changes)


def sloped(row_us: float) -> CostCurve:
    return CostCurve(((1, STEP_US), (64, STEP_US + 63 * row_us)))


def counts(sides: SideNodes, view: StepView, cost: CostCurve, tokens_per_us: float = 2.0 / STEP_US) -> dict[int, int]:
    """Side nodes by session, of a step that takes everybody with four guesses."""
    plan = PacingPlan(tuple(SessionPlan(one.session, 1, 4) for one in view.sessions), None, "verify")
    return {part.session: part.side_nodes for part in sides.beside(plan, view, cost, tokens_per_us).take}


def step(*sessions: SessionView, max_rows: int = 64) -> StepView:
    return StepView(sessions, FLAT, max_rows, NOW_US)


def played_gain(acceptance: float, hit_share: float, depths_on_branch: int, seed: int = 1) -> float:
    """Tokens that a branch of so many nodes beside the first guess adds to rounds of a chain, played."""
    luck = Random(seed)
    num_rounds, gained = 40_000, 0
    for _ in range(num_rounds):
        if luck.random() < acceptance or luck.random() >= hit_share:
            continue
        gained += 1 + next((at for at in range(depths_on_branch - 1) if luck.random() >= acceptance), depths_on_branch - 1)
    return gained / num_rounds


@pytest.mark.parametrize("acceptance", [0.3, 0.6])
def test_a_node_is_worth_what_a_round_gains_by_it(acceptance: float) -> None:
    gains = side_gains(hedged(depths=(0, 1, 2), acceptance=acceptance), CHAIN)
    assert sum(gains) == pytest.approx(played_gain(acceptance, 0.5, 3), rel=0.03)
    assert gains == sorted(gains, reverse=True)


@pytest.mark.parametrize(
    ("changes", "part", "expected"),
    [
        ({}, CHAIN, 4),
        ({}, SessionPlan(1, 1, 1), 3),  # beside the first guess, and one along a branch
        ({}, SessionPlan(1, 1, 0), 0),  # nothing of the chain, nothing beside it
        ({}, replace(CHAIN, from_lookup=True), 0),
        ({"side_depths": ()}, CHAIN, 0),
        ({"num_uncached": 7}, CHAIN, 0),
        ({"max_draft_len": 2}, CHAIN, 3),
        ({"remaining": 2}, CHAIN, 1),  # the last position is the target's own
        ({"side_depths": (0,) * 20}, CHAIN, MAX_SIDE_NODES),
        ({"acceptance": 1.0}, CHAIN, 0),
        ({"hedge_hit_share": 0.02}, CHAIN, 0),
    ],
)
def test_only_nodes_that_a_round_could_verify_and_reach_count(changes: dict[str, Any], part: SessionPlan, expected: int) -> None:
    assert len(side_gains(hedged(**changes), part)) == expected


def test_rows_that_cost_nothing_are_taken_and_dear_ones_are_not() -> None:
    assert counts(SideNodes(), step(hedged()), FLAT) == {1: 4}
    assert counts(SideNodes(), step(hedged()), sloped(5_000.0)) == {1: 0}


def test_as_many_as_are_worth_their_rows() -> None:
    """At acceptance 0.6, half of the mismatches hit: 0.20, 0.12, 0.12 and 0.07 tokens, at two tokens a step."""
    by_price = {share: counts(SideNodes(), step(hedged()), sloped(share * STEP_US))[1] for share in (0.02, 0.04, 0.08, 0.12)}
    assert by_price == {0.02: 4, 0.04: 3, 0.08: 1, 0.12: 0}


def test_the_price_is_that_of_the_whole_steps_next_rows() -> None:
    """Five rows of one session lie on the flat part, ten of two do not."""
    knee = CostCurve(((1, STEP_US), (9, STEP_US), (64, 10.0 * STEP_US)))
    assert counts(SideNodes(), step(hedged()), knee) == {1: 4}
    assert counts(SideNodes(), step(hedged(), hedged(2)), knee) == {1: 0, 2: 0}


def test_the_best_of_all_sessions_come_first_and_never_more_than_the_step_has_rows() -> None:
    likely, unlikely = hedged(1, acceptance=0.5), hedged(2, acceptance=0.9)
    assert counts(SideNodes(), step(unlikely, likely, max_rows=12), FLAT) == {1: 2, 2: 0}
    assert counts(SideNodes(), step(unlikely, likely, max_rows=10), FLAT) == {1: 0, 2: 0}


def test_a_plan_with_side_nodes_says_so_and_one_without_is_left_as_it_is() -> None:
    plan = PacingPlan((CHAIN,), None, "verify")
    assert SideNodes().beside(plan, step(hedged()), FLAT, 1e-4).reason == "tree"
    assert SideNodes().beside(plan, step(hedged(side_depths=())), FLAT, 1e-4) is plan
    waiting = PacingPlan((), NOW_US + 10, "draft")
    assert SideNodes().beside(waiting, step(hedged()), FLAT, 1e-4) is waiting


def test_worth_about_their_price_they_do_not_begin_and_end_all_the_time() -> None:
    """The one node is worth its row at an acceptance of 0.6; the estimate goes up and down around that by a seventh of the worth."""
    sides, luck = SideNodes(), Random(3)
    price = sloped(0.5 * 0.2 * STEP_US)
    decisions = []
    for _ in range(400):
        acceptance = 0.6 + 0.4 * luck.uniform(-0.14, 0.12)
        decisions.append(counts(sides, step(hedged(depths=(0,), acceptance=acceptance)), price)[1])
    assert sum(before != after for before, after in itertools.pairwise(decisions)) <= 1


@pytest.mark.parametrize("begins", [True, False])
def test_a_clear_case_is_seen_at_once(begins: bool) -> None:
    sides, node = SideNodes(), step(hedged(depths=(0,)))
    price = 0.5 * 0.2 * STEP_US
    for _ in range(3):
        assert counts(sides, node, sloped(0.5 * price if not begins else 2.0 * price))[1] == (not begins)
    assert counts(sides, node, sloped(price / (1.0 + 1.2 * SWITCH_GAIN) if begins else price * (1.0 + 1.2 * SWITCH_GAIN)))[1] == begins


def test_a_node_that_hardly_ever_helps_is_left_out_where_rows_are_free() -> None:
    rare = hedged(depths=(0, 0, 3), acceptance=0.2)
    assert MIN_SIDE_GAIN > 0.2**3 * 0.8 * 0.5
    assert counts(SideNodes(), step(rare), FLAT) == {1: 2}
