"""The simulator reproduces the figures of ALGORITHMS A.1 and section 0: PEARL, serial speculation and plain decoding.

Drafts are right independently with probability alpha; costs are whole microseconds, so that a block of gamma = c takes one target step
exactly. Draws are fixed by the seed: nothing here can flicker.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from mostly_slow import mostly_slow, mostly_slow_rows
from outrider.session.pacing.registry import make_pacing
from outrider_bench.simulation.closed_forms import pearl_tokens_per_target_time, plain_tokens_per_us, serial_tokens_per_us
from outrider_bench.simulation.curves import CURVE_SHAPES
from outrider_bench.simulation.event_loop import simulate
from outrider_bench.simulation.outcome import Outcome
from outrider_bench.simulation.world import Phase, World

TARGET_US = 12_000
NUM_TOKENS = 4_000
WITHIN = 0.03


def world_of(alpha: float, cost_ratio: int, curve: str = "flat", **changes: Any) -> World:
    shape = CURVE_SHAPES[curve]
    fields: dict[str, Any] = {"output_len": 2048, "seed": 3} | changes
    return World(shape.verify_curve(TARGET_US), shape.draft_curve(TARGET_US / cost_ratio), ((Phase(alpha),),), **fields)


@cache
def outcome_of(policy: str, draft_len: int | None, world: World, num_tokens: int = NUM_TOKENS) -> Outcome:
    return simulate(world, make_pacing(policy, draft_len), num_tokens)


def per_target_time(outcome: Outcome) -> float:
    return outcome.tokens_per_s * TARGET_US / 1e6


@pytest.mark.parametrize(
    ("cost_ratio", "alpha", "pearl", "best_serial"),
    mostly_slow_rows(
        [
            *((3, 0.6, 1.42, 1.20), (5, 0.8, 2.28, 1.87), (8, 0.6, 1.55, 1.58), (8, 0.9, 3.88, 3.07)),
            *((3, 0.9, 2.31, 1.76), (5, 0.6, 1.51, 1.40), (5, 0.7, 1.81, 1.58), (5, 0.9, 3.13, 2.37), (8, 0.8, 2.55, 2.27)),
        ],
        2,
    ),
)
def test_the_table_of_pearl_against_the_best_serial(cost_ratio: int, alpha: float, pearl: float, best_serial: float) -> None:
    """All nine rows as printed in ALGORITHMS A.1, at gamma = c for PEARL and the best gamma for serial."""
    world = world_of(alpha, cost_ratio)
    assert per_target_time(outcome_of("pearl", cost_ratio, world)) == pytest.approx(pearl, rel=WITHIN)
    best = max(range(1, 17), key=lambda length: serial_tokens_per_us(world, alpha, length))
    assert per_target_time(outcome_of("serial", best, world)) == pytest.approx(best_serial, rel=WITHIN)


@pytest.mark.parametrize(("alpha", "gamma"), mostly_slow_rows([(0.6, 8), (0.3, 2), (0.7, 5), (0.9, 8)], 2))
def test_pearl_follows_its_model_elsewhere(alpha: float, gamma: int) -> None:
    outcome = outcome_of("pearl", gamma, world_of(alpha, gamma))
    expected = pearl_tokens_per_target_time(alpha, gamma)
    assert per_target_time(outcome) == pytest.approx(expected, rel=WITHIN)
    assert outcome.mean_emitted_per_round == pytest.approx(expected, rel=WITHIN)
    assert outcome.overlap_share > 0.98


def test_pearl_loses_to_serial_where_the_drafter_is_fast_and_often_wrong() -> None:
    """A.1: at c = 8, alpha = .6 PEARL yields 1.55 and serial at its best gamma 1.58."""
    world = world_of(0.6, 8)
    assert outcome_of("pearl", 8, world).tokens_per_s < outcome_of("serial", 2, world).tokens_per_s


@pytest.mark.parametrize("gamma", [1, 4, 16])
@pytest.mark.parametrize("alpha", mostly_slow([0.0, 0.6, 0.9], 2))
def test_serial_follows_its_model_with_delay_and_overheads(alpha: float, gamma: int) -> None:
    world = world_of(alpha, 10, delay_us=6_000, message_us=130, step_overhead_us=300)
    outcome = outcome_of("serial", gamma, world, 4_000 if alpha > 0 else 500)
    assert outcome.tokens_per_s / 1e6 == pytest.approx(serial_tokens_per_us(world, alpha, gamma), rel=WITHIN)
    assert outcome.overlap_share < 0.02


@pytest.mark.parametrize("curve", ["flat", "knee", "measured"])
def test_sessions_in_step_with_each_other_follow_the_model_too(curve: str) -> None:
    """At acceptance 0 every session's round is the same, so all stay in step and share both batches."""
    world = world_of(0.0, 5, curve, num_sessions=8)
    outcome = outcome_of("serial", 4, world, 1_600)
    assert outcome.tokens_per_s / 1e6 == pytest.approx(serial_tokens_per_us(world, 0.0, 4), rel=WITHIN)
    assert outcome.rows_per_step == pytest.approx(8 * 5, rel=WITHIN)


@pytest.mark.parametrize(("curve", "num_sessions"), [("flat", 1), ("knee", 64), ("measured", 4)])
def test_plain_decoding_emits_a_token_a_session_and_step(curve: str, num_sessions: int) -> None:
    world = world_of(0.9, 5, curve, num_sessions=num_sessions, step_overhead_us=500, prompt_len=1)
    outcome = outcome_of("plain", None, world, 100 * num_sessions)
    assert outcome.tokens_per_s / 1e6 == pytest.approx(plain_tokens_per_us(world), rel=0.01)
    assert outcome.token_ms_p50 == outcome.token_ms_p99 == pytest.approx(num_sessions * 1e-3 / plain_tokens_per_us(world), rel=0.01)
    assert outcome.draft_busy == 0.0


def test_a_drafter_on_the_same_cores_slows_pearl_but_not_serial() -> None:
    """Taking turns shares nothing; overlapping pays the named factor on both sides."""
    alone = world_of(0.9, 5)
    shared = replace(alone, verify_slowdown=1.5, draft_slowdown=1.5)
    serial = [outcome_of("serial", 4, world).tokens_per_s for world in (alone, shared)]
    pearl = [outcome_of("pearl", 5, world).tokens_per_s for world in (alone, shared)]
    assert serial[1] == pytest.approx(serial[0], rel=0.01)
    assert pearl[1] == pytest.approx(pearl[0] / 1.5, rel=WITHIN)
