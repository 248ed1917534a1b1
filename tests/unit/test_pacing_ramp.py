"""Requests that come and go, 1 to 64 to 1, under one policy that goes from drafts to plain decoding and back: it follows, is at no load
much slower than plain decoding, and does not swing. A policy that knows no load and one whose margins are turned round break these claims.

The real policy and session machines on virtual time.

    pytest tests/unit/test_pacing_ramp.py
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import pytest

from mostly_slow import mostly_slow_rows
from outrider.errors import InvalidRequest
from outrider.session.pacing import adaptive
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import Pacing, PacingPlan, StepView
from outrider.session.pacing.registry import make_pacing
from outrider.session.pacing.round_model import Pace
from outrider_bench.simulation.clients import Clients
from outrider_bench.simulation.curves import CURVE_SHAPES
from outrider_bench.simulation.event_loop import simulate
from outrider_bench.simulation.world import Load, Phase, World

RAMP = (1, 4, 16, 64, 16, 4, 1)
LOAD_US = 2_000_000  # of each load: 16 answers of one session, a learner's time and more
TARGET_US, DRAFT_US, DELAY_US = 10_000, 500, 200
OUTPUT_LEN = 128
NO_END = 1 << 40
LEAST_OF_PLAIN = 0.95
MAX_CHANGES = 4  # of pace, in one answer
MAX_MEAN_CHANGES = 1.0  # an answer may live across a change of load
MAX_FLEET_CHANGES = 8  # of the pace of all together, in six changes of load


class Watched(AdaptivePacing):
    """Remembers its paces. by_session: of each, as they followed; of_all: whether any session in the step had a course with guesses."""

    def __init__(self) -> None:
        super().__init__()
        self.by_session: dict[int, list[Pace]] = defaultdict(list)
        self.of_all: list[bool] = []

    def plan(self, view: StepView) -> PacingPlan:
        plan = super().plan(view)
        paces = [self._sessions.of(session).course.pace for session in view.sessions]
        for session, pace in zip(view.sessions, paces, strict=True):
            before = self.by_session[session.session]
            if before[-1:] != [pace]:
                before.append(pace)
        drafts = any(pace is not Pace.PLAIN for pace in paces)
        if view.sessions and self.of_all[-1:] != [drafts]:
            self.of_all.append(drafts)
        return plan


@dataclass(frozen=True)
class Followed:
    """of_plain: tokens beside those of plain decoding, by load. changes: of pace, by answer. fleet_changes: to no guesses or back."""

    of_plain: tuple[float, ...]
    changes: tuple[int, ...]
    fleet_changes: int

    @property
    def mean_changes(self) -> float:
        return sum(self.changes) / len(self.changes)


def world_of(shape: str, acceptance: float) -> World:
    curves = CURVE_SHAPES[shape]
    loads = tuple(Load(num, (at + 1) * LOAD_US) for at, num in enumerate(RAMP))
    return World(
        curves.verify_curve(TARGET_US),
        curves.draft_curve(DRAFT_US),
        ((Phase(acceptance),),),
        delay_us=DELAY_US,
        output_len=OUTPUT_LEN,
        num_sessions=max(RAMP),
        loads=loads,
    )


def of_plain(world: World, policy: Pacing) -> tuple[float, ...]:
    ours, plain = simulate(world, policy, NO_END), simulate(world, make_pacing("plain"), NO_END)
    return tuple(one / other for one, other in zip(ours.tokens_by_load, plain.tokens_by_load, strict=True))


def followed(shape: str, acceptance: float) -> Followed:
    policy = Watched()
    ratios = of_plain(world_of(shape, acceptance), policy)
    return Followed(ratios, tuple(len(paces) - 1 for paces in policy.by_session.values()), len(policy.of_all) - 1)


def check(found: Followed) -> None:
    assert min(found.of_plain) >= LEAST_OF_PLAIN, found.of_plain
    assert max(found.changes) <= MAX_CHANGES
    assert found.mean_changes <= MAX_MEAN_CHANGES
    assert found.fleet_changes <= MAX_FLEET_CHANGES


@pytest.mark.parametrize(("shape", "acceptance"), mostly_slow_rows([("measured", 0.6), ("knee", 0.0), ("knee", 0.6)], 1))
def test_up_and_down_it_is_never_far_below_plain_decoding_and_does_not_swing(shape: str, acceptance: float) -> None:
    found = followed(shape, acceptance)
    check(found)
    if acceptance:
        assert min(found.of_plain[1], found.of_plain[-2]) > 1.2, "drafts are used while few ask, before the crowd and after it"
        assert found.of_plain[RAMP.index(64)] < 1.1, "and there is next to nothing to gain while it is there"


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "acceptance"), [("knee", 0.85), ("measured", 0.85), ("measured", 0.0)])
def test_so_it_does_with_better_drafts_and_with_useless_ones(shape: str, acceptance: float) -> None:
    check(followed(shape, acceptance))


def test_a_policy_that_knows_no_load_falls_below_plain_decoding_at_the_top() -> None:
    ratios = of_plain(world_of("knee", 0.6), make_pacing("serial", 8))
    assert ratios[RAMP.index(64)] < 0.6
    assert min(ratios[0], ratios[-1]) > 1.2


def test_a_policy_with_its_margins_turned_round_swings(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins with guesses where they promise less than nothing, and gives them up where they promise a little."""
    monkeypatch.setattr(adaptive, "START_GAIN", -0.3)
    monkeypatch.setattr(adaptive, "KEEP_GAIN", 0.3)
    found = followed("measured", 0.6)
    assert found.fleet_changes > 4 * MAX_FLEET_CHANGES
    assert max(found.changes) > 3 * MAX_CHANGES  # who goes without is looked at seldom, whatever the margins
    assert found.mean_changes > 2 * MAX_MEAN_CHANGES


# --- the schedule itself --------------------------------------------------------------------------------------------------


def test_clients_come_and_go_as_the_loads_say() -> None:
    world = replace(world_of("knee", 0.6), loads=(Load(2, 100), Load(5, 200), Load(1, 300)))
    clients = Clients(world, 1_000)
    assert not clients.are_due(999)
    assert clients.change(1_000) == (range(2), range(2, 0))
    assert clients.due_us == 1_100
    assert clients.change(1_100) == (range(2, 5), range(5, 2))
    assert clients.change(1_200) == (range(5, 1), range(1, 5))
    assert clients.asking == range(1)
    assert (clients.due_us, clients.are_gone(1_299), clients.are_gone(1_300)) == (1_300, False, True)
    for_ever = Clients(replace(world, loads=()), 1_000)
    assert for_ever.change(1_000)[0] == range(64)
    assert (for_ever.due_us, for_ever.are_gone(NO_END)) == (None, False)


def test_each_load_has_the_tokens_that_plain_decoding_of_so_many_clients_has() -> None:
    world = replace(world_of("knee", 0.6), loads=(Load(1, LOAD_US), Load(4, 2 * LOAD_US), Load(0, 3 * LOAD_US), Load(2, 4 * LOAD_US)))
    outcome = simulate(world, make_pacing("plain"), NO_END)
    assert outcome.elapsed_us == pytest.approx(4 * LOAD_US, abs=2 * TARGET_US)
    one, four, none, two = outcome.tokens_by_load
    assert four == pytest.approx(4 * one, rel=0.05)
    assert two == pytest.approx(2 * one, rel=0.05)
    assert none <= 4, "what was under way when they left"
    assert simulate(replace(world, loads=()), make_pacing("plain"), 100).tokens_by_load == ()


@pytest.mark.parametrize("loads", [(Load(65, 100),), (Load(-1, 100),), (Load(1, 0),), (Load(1, 100), Load(2, 100))])
def test_loads_that_cannot_be_are_refused(loads: tuple[Load, ...]) -> None:
    with pytest.raises(InvalidRequest, match=r"world\.loads"):
        replace(world_of("knee", 0.6), loads=loads).check()
