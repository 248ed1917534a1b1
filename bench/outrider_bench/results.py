"""What a speed run found: a row for each contestant in each cell, identity with plain decoding, and the ratios the goal is stated in.

Must not know how anything was measured or how it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from outrider_bench.measurement import Answer, Summary, median_summary, summarise

GENERATE = "transformers generate"
ASSISTED = "transformers assisted"
PLAIN = "outrider plain"
GOAL_TASKS = ("arithmetic", "copying")
GOAL_OTHERS = MappingProxyType({"generate": GENERATE, "plain": PLAIN})


@dataclass(frozen=True, slots=True)
class Cell:
    """Prompts of one task at one temperature, or replayed drafts of one acceptance."""

    task: str
    temperature: float

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.task}, T = {self.temperature:g}"


@dataclass(frozen=True, slots=True)
class Flip:
    """An answer that is not our plain one: where it first differs. Of ours possible in `fast` numerics only, at near ties."""

    cell: str
    contestant: str
    prompt: int
    position: int
    plain_token: int
    drafted_token: int


@dataclass(frozen=True, slots=True)
class Row:
    """A contestant in a cell: medians over repetitions. bound_share: speed over (mean emitted per round / verify forward alone)."""

    cell: Cell
    contestant: str
    summary: Summary
    spread: float
    bound_share: float | None


@dataclass(slots=True)
class Recorder:
    """Answers by cell, contestant and repetition, in the order of the prompts."""

    answers: dict[tuple[Cell, str, int], list[Answer]] = field(default_factory=dict)

    def add(self, cell: Cell, contestant: str, repetition: int, answer: Answer) -> None:
        """One more answer."""
        self.answers.setdefault((cell, contestant, repetition), []).append(answer)

    def summary(self, cell: Cell, contestant: str) -> tuple[Summary, float]:
        """Medians over repetitions, and the spread of the speed: (highest - lowest) / median."""
        repetitions = [summarise(given) for (where, who, _), given in self.answers.items() if (where, who) == (cell, contestant)]
        median = median_summary(repetitions)
        speeds = [repetition.tokens_per_s for repetition in repetitions]
        return median, (max(speeds) - min(speeds)) / median.tokens_per_s

    def draft_us_per_token(self) -> int:
        """What a drafted token cost the drafter, over everything recorded so far; 0 when nothing was drafted."""
        drafts = [answer.draft for given in self.answers.values() for answer in given if answer.draft is not None]
        num_drafted = sum(draft.num_drafted - draft.num_looked_up for draft in drafts)
        return round(1000.0 * sum(draft.draft_ms for draft in drafts) / num_drafted) if num_drafted else 0

    def flips(self, cell: Cell, contestant: str) -> list[Flip]:
        """Answers of a contestant that are not our plain ones (the first repetition's plain answers are the truth)."""
        truth = self.answers[cell, PLAIN, 0]
        found: dict[tuple[int, int], Flip] = {}
        for (where, who, _), given in self.answers.items():
            if (where, who) != (cell, contestant):
                continue
            for index, (plain, drafted) in enumerate(zip(truth, given, strict=True)):
                position = first_difference(plain.tokens, drafted.tokens)
                if position is not None:
                    tokens = [tokens[position] if position < len(tokens) else -1 for tokens in (plain.tokens, drafted.tokens)]
                    found[index, position] = Flip(cell.name, contestant, index, position, tokens[0], tokens[1])
        return list(found.values())


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first token that differs (or is missing on one side), None for equal answers."""
    if left == right:
        return None
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def ratios(rows: Iterable[Row], best: str, others: Mapping[str, str] = GOAL_OTHERS) -> dict[str, float]:
    """The goal's numbers: the best policy over other contestants (label -> name), the worse of the goal's tasks."""
    speeds = {(row.cell.task, row.cell.temperature, row.contestant): row.summary.tokens_per_s for row in rows}
    result: dict[str, float] = {}
    for key, temperature in (("t0", 0.0), ("t08", 0.8)):
        for label, other in others.items():
            values = [
                speeds[task, temperature, best] / speeds[task, temperature, other]
                for task in GOAL_TASKS
                if (task, temperature, best) in speeds and (task, temperature, other) in speeds
            ]
            if values:
                result[f"iso_{key}_vs_{label}"] = round(min(values), 3)
    return result


def best_policy(rows: Iterable[Row], policies: Sequence[str]) -> str:
    """The policy whose worst ratio to plain decoding over the goal's tasks is highest; over all tasks where none of them was run."""
    rows = list(rows)
    plain = {row.cell: row.summary.tokens_per_s for row in rows if row.contestant == PLAIN}
    goal = {cell for cell in plain if cell.task in GOAL_TASKS} or set(plain)

    def worst(policy: str) -> float:
        return min(row.summary.tokens_per_s / plain[row.cell] for row in rows if row.contestant == policy and row.cell in goal)

    return max(policies, key=worst)
