"""What a session's own steps take: reconciling guesses with the truth apart from all else, each counted once, whatever the clock."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fakes import TruthTable
from fakes_simulation import spec_of
from outrider.session.events import DrafterFrameArrived, DrafterJoined, RoundPlanned, RoundVerified
from outrider.session.pacing.contract import CostCurve, PacingPlan
from outrider.session.pacing.plain import PlainPacing
from outrider.session.pacing.serial import SerialPacing
from outrider.session.verifier import VerifierSession
from outrider.types.frames import Tail, TailEnd
from outrider.types.statistics import DraftStatistics
from outrider.types.tree import Verdict, extend_hash
from verifier_service.target_steps import TargetSteps

PROMPT = [1, 2, 3]
READ_NS = 700  # every look at the stopwatch finds so much more: what is between two looks takes so long


def session_of(*, drafted: bool, timed: bool = True) -> VerifierSession:
    """Of a stopwatch that goes on with each look at it."""
    spec, pacing = spec_of(1, PROMPT, 40, TruthTable(8)), SerialPacing(4) if drafted else PlainPacing()
    if not timed:
        return VerifierSession(spec, pacing, 0)
    return VerifierSession(spec, pacing, 0, stopwatch=itertools.count(0, READ_NS).__next__)


def take_round(session: VerifierSession, verdict: Verdict) -> None:
    session.step(RoundPlanned(8, 8, 0))
    session.step(RoundVerified(verdict, 0, 0))


def tail(prefix: list[int], tokens: list[int], tree_id: int = 0) -> DrafterFrameArrived:
    parents = np.arange(-1, len(tokens) - 1, dtype=np.int32)
    frame = Tail(1, 1, tree_id, 0, len(prefix), extend_hash(0, prefix), np.array(tokens, np.int32), parents, TailEnd.MORE, "lab", 0, 0, 0)
    return DrafterFrameArrived("d", frame, 0)


def drafted_round(session: VerifierSession) -> DraftStatistics:
    """A drafter joins, one token is committed, two guesses come and the first is accepted."""
    session.step(DrafterJoined("d", 0))
    take_round(session, Verdict((), 4, bonus=True))
    session.step(tail([*PROMPT, 4], [5, 6]))
    take_round(session, Verdict((0,), 7, bonus=False))
    return session.statistics.totals("serial")


def test_without_drafters_there_is_nothing_to_reconcile() -> None:
    session = session_of(drafted=False)
    for token in range(10):
        take_round(session, Verdict((), 4 + token % 3, bonus=True))
    totals = session.statistics.totals("plain")
    assert totals.reconcile_us == 0
    assert totals.session_us == 20 * READ_NS // 1000, "ten rounds were planned and verified"


def test_a_tail_and_a_commit_are_reconciled_and_the_rest_is_the_session() -> None:
    totals = drafted_round(session_of(drafted=True))
    num_reconciled = 3  # two commits and a tail, each a time between two looks
    num_steps = 6  # each its own two looks, and as many more as were reconciled in it
    assert totals.reconcile_us == num_reconciled * READ_NS // 1000
    assert totals.session_us == (num_steps + 2 * num_reconciled - num_reconciled) * READ_NS // 1000


def test_guesses_count_as_they_come_whether_or_not_a_round_verifies_them() -> None:
    session = session_of(drafted=True)
    drafted_round(session)
    assert session.statistics.totals("serial").num_guessed == session.statistics.num_drafted == 2
    session.step(tail([*PROMPT, 4, 5, 7], [1, 2, 3], 1))
    session.step(tail([*PROMPT, 4, 5, 7], [1, 2, 3], 1))
    totals = session.statistics.totals("serial")
    assert (totals.num_guessed, totals.num_drafted) == (5, 2), "nobody verified the newest; what is sent twice counts once"


@pytest.mark.parametrize("num_sessions", [1, 3])
def test_what_a_plan_takes_is_shared_by_those_it_was_made_for(num_sessions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifier_service.target_steps.time", SimpleNamespace(perf_counter_ns=itertools.count(0, 900).__next__))
    sessions = [session_of(drafted=False) for _ in range(num_sessions)]
    for session in sessions:
        take_round(session, Verdict((), 4, bonus=True))
    late = session_of(drafted=False)
    hosted = [SimpleNamespace(session=one, policy="plain", is_left_out=lambda _, one=one: one is late) for one in (*sessions, late)]
    engine = SimpleNamespace(limits=SimpleNamespace(max_rows=64), identity=SimpleNamespace(model="any"))
    loan = SimpleNamespace(curves=lambda _num=1: (CostCurve(((1, 1.0),)), None), ahead=None, plain_ahead=False)
    planner = SimpleNamespace(plan=lambda *_, **__: PacingPlan((), None, "nobody"))
    steps = TargetSteps(*(cast(Any, one) for one in (engine, loan, hosted, planner, None)))
    for _ in range(2):
        steps.plan()
    assert [session.statistics.plan_ns for session in sessions] == [2 * 900 // num_sessions] * num_sessions
    assert late.statistics.plan_ns == 0, "nothing was planned for it"


@pytest.mark.parametrize("drafted", [True, False])
def test_time_is_summed_before_it_is_rounded(drafted: bool) -> None:
    """An event takes 0.7 us: rounded one by one, nothing would be left of it."""
    session = session_of(drafted=drafted)
    for _ in range(5):
        take_round(session, Verdict((), 4, bonus=True))
    assert session.statistics.totals("any").session_us == 10 * READ_NS // 1000 == 7


def test_who_counts_no_time_does_the_same() -> None:
    timed, untimed = drafted_round(session_of(drafted=True)), drafted_round(session_of(drafted=True, timed=False))
    assert (untimed.reconcile_us, untimed.session_us) == (0, 0)
    assert (timed.num_rounds, timed.num_accepted) == (untimed.num_rounds, untimed.num_accepted) == (2, 1)
