"""What a bench run asks for and what one answer cost: prompts, answers and the numbers derived from them.

Times in milliseconds on the asking process's clock, from sending the request to its last token. Must not know who answered.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised prompt of a task."""

    task: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DraftNumbers:
    """What speculation did for one answer (the client API's DraftStatistics, times in ms)."""

    num_rounds: int
    num_drafted: int
    num_accepted: int
    verify_ms: float
    draft_ms: float
    overlapped_draft_ms: float
    draft_wait_ms: float
    num_drafter_losses: int = 0
    num_looked_up: int = 0
    reconcile_ms: float = 0.0
    session_ms: float = 0.0
    plan_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answered prompt. tokens: with the end token, if one ended it. cpu_ms: of every process that worked for it, 0 if not metered."""

    tokens: tuple[int, ...]
    first_token_ms: float
    total_ms: float
    draft: DraftNumbers | None = None
    cpu_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Summary:
    """A cell's repetition or a cell as a whole; rates are 0 where nothing was drafted. reconcile_share: aligning tails and re-rooting trees
    on the verifier's side, of the time from the first token to the last; session_share: all else of its sessions' own steps, of that
    time; plan_share: its policy's plans."""

    tokens_per_s: float
    first_token_ms: float
    acceptance_rate: float
    mean_emitted_per_round: float
    overlap_share: float
    verify_share: float
    drafted_per_round: float
    num_tokens: int
    cpu_ms_per_token: float = 0.0
    reconcile_share: float = 0.0
    session_share: float = 0.0
    plan_share: float = 0.0


def summarise(answers: Sequence[Answer]) -> Summary:
    """All tokens over all time (so that long answers weigh more), medians for the time to the first token."""
    assert answers, "a cell needs at least one answer"
    num_tokens = sum(len(answer.tokens) for answer in answers)
    total_ms = sum(answer.total_ms for answer in answers)
    drafts = [answer.draft for answer in answers if answer.draft is not None]
    num_rounds = sum(draft.num_rounds for draft in drafts)
    num_drafted = sum(draft.num_drafted for draft in drafts)
    draft_ms = sum(draft.draft_ms for draft in drafts)
    rounds_ms = sum(answer.total_ms - answer.first_token_ms for answer in answers)  # the first ends the reading of the prompt
    return Summary(
        tokens_per_s=1000.0 * num_tokens / total_ms,
        first_token_ms=statistics.median(answer.first_token_ms for answer in answers),
        acceptance_rate=_ratio(sum(draft.num_accepted for draft in drafts), num_drafted),
        mean_emitted_per_round=_ratio(num_tokens, num_rounds) if drafts else 1.0,
        overlap_share=_ratio(sum(draft.overlapped_draft_ms for draft in drafts), draft_ms),
        verify_share=_ratio(sum(draft.verify_ms for draft in drafts), total_ms),
        drafted_per_round=_ratio(num_drafted, num_rounds),
        num_tokens=num_tokens,
        cpu_ms_per_token=_ratio(sum(answer.cpu_ms for answer in answers), num_tokens),
        reconcile_share=_ratio(sum(draft.reconcile_ms for draft in drafts), rounds_ms),
        session_share=_ratio(sum(draft.session_ms for draft in drafts), rounds_ms),
        plan_share=_ratio(sum(draft.plan_ms for draft in drafts), rounds_ms),
    )


def median_summary(repetitions: Sequence[Summary]) -> Summary:
    """The median of each number over repetitions of one cell."""

    def median(name: str) -> float:
        return float(statistics.median(getattr(repetition, name) for repetition in repetitions))

    return Summary(
        tokens_per_s=median("tokens_per_s"),
        first_token_ms=median("first_token_ms"),
        acceptance_rate=median("acceptance_rate"),
        mean_emitted_per_round=median("mean_emitted_per_round"),
        overlap_share=median("overlap_share"),
        verify_share=median("verify_share"),
        drafted_per_round=median("drafted_per_round"),
        num_tokens=int(median("num_tokens")),
        cpu_ms_per_token=median("cpu_ms_per_token"),
        reconcile_share=median("reconcile_share"),
        session_share=median("session_share"),
        plan_share=median("plan_share"),
    )


def times(ones: Sequence[float], others: Sequence[float]) -> float:
    """How many times as fast one contestant is: the median over repetitions, each held against the other's of the same repetition. A
    machine whose speed drifts between repetitions drifts for both; medians of either alone may be of different minutes."""
    return float(statistics.median(one / other for one, other in zip(ones, others, strict=True)))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
