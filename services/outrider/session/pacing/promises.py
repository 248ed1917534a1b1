"""What a plan's courses promise of the step that it makes, noted with each session: so that what came can be held against it.

A round may take longer than its course says for reasons that are no fault of the course: it holds more guesses because that pays, or
waits because that was chosen. And it takes less, which is no merit, where drafts end early: in company by far, where everybody's round is
that of the longest draft. Knows plans, views and what is remembered of sessions. Must not know what is made of a promise that was broken.
"""

from __future__ import annotations

from collections.abc import Callable

from outrider.session.pacing.contract import CostCurve, PacingPlan, StepView
from outrider.session.pacing.remembered import RememberedSession
from outrider.session.pacing.round_model import Pace

Known = Callable[[int], RememberedSession]  # by session


def excess_us(plan: PacingPlan, cost: CostCurve, known: Known) -> float:
    """By how much a step that holds more guesses than its courses ask for is longer than they promise; it keeps the promise."""
    num_rows = num_promised = 0
    for part in plan.take:
        num_rows, num_promised = num_rows + part.num_rows, num_promised + 1 + known(part.session).course.hit_len
    return cost.verify_us(num_rows) - cost.verify_us(num_promised) if num_rows > num_promised else 0.0


def note_step(plan: PacingPlan, view: StepView, cost: CostCurve, known: Known, overhead_us: float) -> float:
    """What its courses promise of the plan's step is noted; returns its `excess_us`. overhead_us: of a round, beside its step."""
    beyond_us = excess_us(plan, cost, known)
    note_promises(plan, view, cost, known, overhead_us, beyond_us)
    return beyond_us


def note_waits(plan: PacingPlan, view: StepView, known: Known) -> None:
    """How long a wait was first chosen to be, for what it brings: such a round is longer than the course says, and no worse. In turns
    a plan says when it gives up, which is no choice."""
    for session in view.sessions:
        own = known(session.session)
        if plan.wake_us is not None and not own.chosen_wait_us and own.course.pace is Pace.AHEAD:
            own.chosen_wait_us = float(max(0, plan.wake_us - session.waiting_since_us))


def note_turn(own: RememberedSession, num_guesses: int, turn_us: tuple[float, float] | None) -> None:
    """What such rounds took is what is promised of one that verifies a whole draft. turn_us: as in RoundRates; None = not known."""
    begin_us, guess_us = turn_us or (0.0, 0.0)
    own.turn_len, own.expected_us, own.falls_short = num_guesses, begin_us + guess_us * num_guesses, False


def note_promises(plan: PacingPlan, view: StepView, cost: CostCurve, known: Known, overhead_us: float, beyond_us: float = 0.0) -> None:
    """What the courses promise of this step: in turns a wait and the rows that it has, else by whether drafters follow (all wait for the
    last); and parts that leave guesses out. overhead_us: of a round, beside its step. beyond_us: its `excess_us`."""
    sessions = {session.session: session for session in view.sessions}
    rows_us = cost.verify_us(sum([part.num_rows for part in plan.take]))
    if view.guess_us and any(part.max_nodes for part in plan.take):
        overhead_us += (len(plan.take) - 1) * view.guess_us
    kinds = [sessions[part.session].following and sessions[part.session].depth > 0 for part in plan.take]
    has_hits, has_misses = True in kinds, False in kinds
    for part in plan.take:
        own = known(part.session)
        promised_us = own.course.miss_us if has_misses else 0.0
        if has_hits:
            fewer_us = max(0.0, cost.verify_us(len(plan.take) * (1 + own.course.hit_len)) - rows_us)  # rows that it does without
            promised_us = max(promised_us, own.course.hit_us - fewer_us)
        waits_us = own.course.wait_us or own.chosen_wait_us
        chosen_us = waits_us + rows_us - beyond_us + overhead_us
        if own.course.wait_us:
            promised_us = chosen_us
        own.expected_us = max(promised_us, chosen_us) if promised_us else 0.0
        own.falls_short = part.max_nodes < min(max(sessions[part.session].num_nodes, 1), own.course.miss_len)
