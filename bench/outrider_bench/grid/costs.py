"""What a grid's prediction is made of: costs that were measured apart from its cells, the shape of a cell, and what drafts are worth.

Must not know how they were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.session.pacing.contract import CostCurve


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds of an otherwise idle machine.

    verify: a step by rows. draft: a token that follows another, for so many sessions at once. draft_start_us: of the first token after
    news, beside that. read_us: a prompt's token at the drafter. step_overhead_us: of a round of plain decoding beside its step;
    session_us: for each further session in the step; guess_us: for each with guesses or a drafter at work. message_us: one way between
    verifier and drafter, both ends included; it takes a core. link_wait_us: what a message of a session waits besides, without a core,
    until threads and event loops that have other things to do hand it on. request_cpu_us, request_wait_us: of a whole request beside its
    rounds, what keeps gateway and client busy and what is waited without a core. delta_us: processor time of gateway and client for one
    message to the client. verify_slowdown, draft_slowdown: how much longer either takes while another process has the other core;
    verify_crowding: a step while that one computes a step too, for two targets read their weights through one memory.
    """

    verify: CostCurve
    draft: CostCurve
    draft_start_us: float
    read_us: float
    step_overhead_us: int
    session_us: int
    guess_us: int
    message_us: float
    link_wait_us: float
    request_cpu_us: float
    request_wait_us: float
    delta_us: float
    verify_slowdown: float
    draft_slowdown: float
    max_rows: int
    verify_crowding: float = 1.0

    def rows(self) -> list[tuple[str, str]]:
        """For tables."""
        return [
            ("a step of the target by rows, ms", _milliseconds(self.verify)),
            ("a drafted token by sessions, ms", _milliseconds(self.draft)),
            ("the first of them, beside that, us", f"{self.draft_start_us:.0f}"),
            ("a prompt's token at the drafter, us", f"{self.read_us:.1f}"),
            ("a round beside its step, us", str(self.step_overhead_us)),
            ("a further session in it, us", str(self.session_us)),
            ("guesses in a round, beside that, us", str(self.guess_us)),
            ("a message between verifier and drafter, us", f"{self.message_us:.0f}"),
            ("what it waits besides, us", f"{self.link_wait_us:.0f}"),
            ("a request beside its rounds, us of a core", f"{self.request_cpu_us:.0f}"),
            ("a request beside its rounds, us without one", f"{self.request_wait_us:.0f}"),
            ("gateway and client for a delta, us of a core", f"{self.delta_us:.0f}"),
            ("a step while another process computes", f"x {self.verify_slowdown:.2f}"),
            ("a step while another verifier computes one", f"x {self.verify_crowding:.2f}"),
            ("a drafted token while another process computes", f"x {self.draft_slowdown:.2f}"),
        ]


@dataclass(frozen=True, slots=True)
class Pair:
    """A cell: so many of each."""

    drafters: int
    verifiers: int

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.drafters} x {self.verifiers}"


@dataclass(frozen=True, slots=True)
class Trace:
    """One request as the draft model sees it. right, unsure: of each token of its answer, whether the guess after the truth before it is
    right, and whether the drafter would rather pause than make it. stray_lens: how many guesses it makes behind a wrong one there before
    it pauses; as good as no end where it did not."""

    prompt_len: int
    right: tuple[bool, ...]
    unsure: tuple[bool, ...]
    stray_lens: tuple[int, ...]


def acceptance(traces: Sequence[Trace]) -> float:
    """Share of all positions at which the guess is right."""
    return sum(sum(trace.right) for trace in traces) / max(1, sum(len(trace.right) for trace in traces))


def _milliseconds(curve: CostCurve) -> str:
    return ", ".join(f"{rows}: {us / 1000:.2f}" for rows, us in curve.points)
