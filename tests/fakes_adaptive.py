"""`adaptive` with one session that is handed to it round after round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fakes_pacing import NOW_US, READY
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import CostCurve, SessionView, StepView
from outrider.session.pacing.round_model import Pace

TARGET_US = 24_000.0
FLAT = CostCurve(((1, TARGET_US),))


class Driver:
    """Hands a policy one session's views, round after round of one target step."""

    def __init__(self) -> None:
        self.policy = AdaptivePacing()
        self.contention = 1.0  # of a step beside a drafter at work, to one alone
        self.session = replace(READY, draft_us_per_token=3_000.0, draft_alone_us=3_000.0, acceptance=0.7, num_tested=0, remaining=10_000)
        self.now_us = NOW_US

    def round(self, **changes: Any) -> SessionView:
        """The session commits two tokens and is planned again with these estimates. Drafts are undisturbed but where it runs ahead."""
        if self.policy._sessions.of(self.session).course.pace is not Pace.AHEAD:
            changes = {"draft_alone_us": changes.get("draft_us_per_token", self.session.draft_us_per_token), **changes}
        self.now_us += int(TARGET_US)
        tested = int(self.session.num_tested) + 2
        own = {"committed_len": self.session.committed_len + 2, "num_tested": tested, "waiting_since_us": self.now_us}
        self.session = replace(self.session, **{**own, "draft_deadline_us": self.now_us + 50_000, **changes})
        self.policy.plan(self.view(self.session))
        return self.session

    def view(self, session: SessionView) -> StepView:
        """It alone, now, with what steps take."""
        cost, beside = (CostCurve(((1, one * TARGET_US), (32, 1.3 * one * TARGET_US))) for one in (1.0, self.contention))
        return StepView((session,), cost, 64, self.now_us, beside)

    def wait_len(self) -> int:
        """Guesses without which the policy does not begin a round."""
        for depth in range(20):
            view = replace(self.session, num_nodes=depth, depth=depth)
            if self.policy.plan(self.view(view)).take:
                return depth
        raise AssertionError("it waits for more than any course asks for")


def taught(acceptance: float) -> Driver:
    """A policy after a long session with a drafter that agrees so often."""
    driver = Driver()
    for _ in range(60):
        driver.round(acceptance=acceptance, draft_us_per_token=3_000.0)
    return driver


def successor(driver: Driver, **changes: Any) -> SessionView:
    """The next session, as it is first seen."""
    return replace(driver.session, session=driver.session.session + 1, num_tested=0, committed_len=10, **changes)
