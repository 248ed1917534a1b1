"""Drafts under load: the fuller the verifier, the fewer guesses; never much below plain decoding; and no swinging back and forth.

The real policy and session machines on virtual time, 1 to 64 sessions at one verifier. The same claims are held against a policy that does
not look at load, which must break them.

    pytest tests/unit/test_pacing_load.py
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import pytest

from mostly_slow import mostly_slow
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import PacingPlan, StepView
from outrider.session.pacing.registry import make_pacing
from outrider.session.pacing.round_model import Pace
from outrider_bench.simulation.curves import CURVE_SHAPES
from outrider_bench.simulation.event_loop import simulate
from outrider_bench.simulation.world import Phase, World

SESSIONS = (1, 4, 16, 64)
TARGET_US, DRAFT_US, DELAY_US = 10_000, 500, 200
OUTPUT_LEN = 128
TOKENS_A_SESSION, LEAST_TOKENS = 160, 1_000  # few sessions learn from little
LEAST_OF_PLAIN = 0.95
MAX_PACE_CHANGES = 6  # in one answer of 128 tokens
MAX_MEAN_PACE_CHANGES = 3.0
RISE = 1.15  # of the budget from one load to the next, which estimates alone may cause
LEAST_SHARE = 0.01  # of the budget of few sessions


class Watched(AdaptivePacing):
    """Counts what it plans. num_guesses: of num_parts, parts of decoding sessions in steps. paces: of each session, as they followed."""

    def __init__(self) -> None:
        super().__init__()
        self.num_parts = self.num_guesses = 0
        self.paces: dict[int, list[Pace]] = defaultdict(list)

    def plan(self, view: StepView) -> PacingPlan:
        plan = super().plan(view)
        decoding = {session.session for session in view.sessions if session.num_uncached == 1}
        parts = [part for part in plan.take if part.session in decoding]
        self.num_parts += len(parts)
        self.num_guesses += sum(part.max_nodes for part in parts)
        for session in view.sessions if plan.take else ():
            pace, before = self._sessions.of(session).course.pace, self.paces[session.session]
            if before[-1:] != [pace]:
                before.append(pace)
        return plan


@dataclass(frozen=True)
class Loaded:
    """budget: guesses a session and step. of_plain: throughput beside plain decoding. changes: of pace, by answer."""

    budget: float
    of_plain: float
    changes: tuple[int, ...]


def world_of(shape: str, acceptance: float, num_sessions: int) -> World:
    curves = CURVE_SHAPES[shape]
    phases = ((Phase(acceptance),),)
    verify, draft = curves.verify_curve(TARGET_US), curves.draft_curve(DRAFT_US)
    return World(verify, draft, phases, delay_us=DELAY_US, output_len=OUTPUT_LEN, num_sessions=num_sessions)


def loaded(shape: str, acceptance: float, num_sessions: int) -> Loaded:
    world, num_tokens, policy = world_of(shape, acceptance, num_sessions), max(LEAST_TOKENS, TOKENS_A_SESSION * num_sessions), Watched()
    outcome, plain = simulate(world, policy, num_tokens), simulate(world, make_pacing("plain"), num_tokens)
    changes = tuple(len(paces) - 1 for paces in policy.paces.values())
    return Loaded(policy.num_guesses / policy.num_parts, outcome.tokens_per_s / plain.tokens_per_s, changes)


@pytest.mark.parametrize("acceptance", mostly_slow([0.6, 0.85], 1))
def test_an_accelerators_budget_falls_as_it_saturates_and_costs_nothing(acceptance: float) -> None:
    """Rows are free up to 32 of them, and cost in proportion beyond."""
    check([loaded("knee", acceptance, num) for num in SESSIONS], LEAST_OF_PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", [0.6, 0.85])
def test_two_cores_budget_falls_as_they_saturate(acceptance: float) -> None:
    check([loaded("measured", acceptance, num) for num in (2, 4, 8, 16, 32, 64)], LEAST_OF_PLAIN)


def test_steps_that_leave_guesses_out_earn_the_course_no_trust() -> None:
    """Every row costs something, so that guesses hardly pay with 16 sessions. Steps without them are quick, and were once taken for a
    course that keeps more than it promises: sessions waited for guesses in every round, and left them out of it (0.95 of plain)."""
    assert loaded("measured", 0.6, 16).of_plain > 0.98


def check(by_load: list[Loaded], least: float) -> None:
    budgets = [one.budget for one in by_load]
    least_seen = LEAST_SHARE * budgets[0]  # below it a probe more or less is all there is to see
    assert all(after <= RISE * max(before, least_seen) for before, after in pairwise(budgets)), budgets
    assert budgets[-1] < 0.05 * budgets[0], "next to nothing once it is full"
    assert by_load[0].of_plain > 1.15, "and drafts are used while it is not"
    assert min(one.of_plain for one in by_load) >= least
    for one in by_load:
        assert max(one.changes) <= MAX_PACE_CHANGES
        assert sum(one.changes) <= MAX_MEAN_PACE_CHANGES * len(one.changes)


def test_a_policy_that_does_not_look_at_load_falls_below_plain_decoding() -> None:
    world, num_tokens = world_of("knee", 0.6, 64), TOKENS_A_SESSION * 64
    blind, plain = (simulate(world, make_pacing(*policy), num_tokens) for policy in (("serial", 8), ("plain", None)))
    assert blind.tokens_per_s < 0.6 * plain.tokens_per_s
