"""Why a plan is what it is, as one value: what a trace or a log of plans shows of a policy's decision.

Built only when somebody asks for it (`Pacing.explain`), so that planning pays nothing for it. Knows numbers and words. Must not know
policies, views or who reads it. Times in microseconds; None where a policy does not know a number, since 0 would be a claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Way(StrEnum):
    """How a session decodes: without guesses; drafts in turns with the target; a drafter that runs ahead; guesses from the text itself."""

    PLAIN = "plain"
    IN_TURNS = "in turns"
    AHEAD = "ahead"
    LOOKUP = "lookup"


class Why(StrEnum):
    """Why a session goes this way.

    ONLY: its policy, its request or the want of a drafter leaves no other. UNMEASURED: nothing that a choice could rest on was measured
    yet. UNHEARD: answers were over before a drafter was heard of. INHERITED: as the sessions before it, until it is looked at itself. MOST:
    it promised most when it was chosen. KEPT: another promises more by now, by less than the margin or since the last look. SHARED:
    another way to draft promises this session more, but all share a drafter and draft one way. PROBE: it goes without, and tries a few
    guesses now.
    """

    ONLY = "only"
    UNMEASURED = "unmeasured"
    UNHEARD = "unheard"
    INHERITED = "inherited"
    MOST = "most"
    KEPT = "kept"
    SHARED = "shared"
    PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Promise:
    """What a course is expected to bring one session. draft_len: guesses of a round whose drafter had guessed on; anew_len: of one whose
    drafter starts over. tokens_per_us: after what was achieved so far has corrected it, None = not known."""

    way: Way
    draft_len: int
    anew_len: int
    tokens_per_us: float | None


@dataclass(frozen=True, slots=True)
class Choice:
    """One session's course. rejected: the alternatives that it was weighed against, the best first. kept: hysteresis kept an older choice,
    though one of them promises more."""

    chosen: Promise
    rejected: tuple[Promise, ...]
    why: Why
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Estimates:
    """What the promises rest on. acceptance: per guess, in [0, 1], as the policy hopes for it. continue_prob: that the drafter goes on
    after a guess. round_trip_us: to the drafter and back. draft_us: of a guess. The last two None while nothing was measured."""

    acceptance: float
    continue_prob: float
    round_trip_us: float | None
    draft_us: float | None


@dataclass(frozen=True, slots=True)
class SessionExplanation:
    """One session's part. num_nodes: guesses that the step verifies of it, from_lookup: from the text itself; side_nodes: of side branches
    beside them. All 0 while it waits. waited_us: since it became ready. wait_us: how much longer at most, 0 = it is taken now."""

    session: int
    committed_len: int
    choice: Choice
    estimates: Estimates
    num_nodes: int
    side_nodes: int
    from_lookup: bool
    waited_us: int
    wait_us: int


@dataclass(frozen=True, slots=True)
class PlanExplanation:
    """One plan of one policy. policy: its registered name. at_us: when, on the policy's clock. reason: the plan's own word.

    num_rows: of the step; of a wait, those that a step would have now. verify_us: what a step of so many takes, as the policy expects it.
    wait_us: until it is asked again at the latest, 0 = a step begins, None = it waits for an event. repeats: so many more steps may go by
    this plan unasked. sessions: in the order of the view.
    """

    policy: str
    at_us: int
    reason: str
    num_rows: int
    verify_us: float
    wait_us: int | None
    repeats: int
    sessions: tuple[SessionExplanation, ...]
