"""What a speed run found: a row for each contestant in each cell, and identity with plain decoding.

Must not know how anything was measured or how it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider_bench.measurement import Answer, Summary, median_summary, summarise, times

GENERATE = "transformers generate"
ASSISTED = "transformers assisted"
PLAIN = "outrider plain"
ADAPTIVE = "outrider adaptive"
MAX_FLIPS_PER_1000 = 1.0  # near ties flip in `fast` numerics; more than this is a bug


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
    """A contestant in a cell: medians over repetitions. bound_share: speed over (mean emitted per round / verify forward alone). speeds:
    tokens/s by repetition."""

    cell: Cell
    contestant: str
    summary: Summary
    spread: float
    bound_share: float | None
    speeds: tuple[float, ...]

    def times(self, other: Row) -> float:
        """How many times as fast as another contestant of the cell."""
        return times(self.speeds, other.speeds)


@dataclass(slots=True)
class Recorder:
    """Answers by cell, contestant and repetition, in the order of the prompts."""

    answers: dict[tuple[Cell, str, int], list[Answer]] = field(default_factory=dict)

    def add(self, cell: Cell, contestant: str, repetition: int, answer: Answer) -> None:
        """One more answer."""
        self.answers.setdefault((cell, contestant, repetition), []).append(answer)

    def summary(self, cell: Cell, contestant: str) -> tuple[Summary, float, tuple[float, ...]]:
        """Medians over repetitions, the spread of the speed ((highest - lowest) / median), and the speed by repetition."""
        mine = {turn: given for (where, who, turn), given in self.answers.items() if (where, who) == (cell, contestant)}
        repetitions = [summarise(mine[turn]) for turn in sorted(mine)]
        median = median_summary(repetitions)
        speeds = tuple(repetition.tokens_per_s for repetition in repetitions)
        return median, (max(speeds) - min(speeds)) / median.tokens_per_s, speeds

    def draft_us_per_token(self, contestant: str) -> int:
        """What a drafted token cost the drafter, over all recorded answers of a contestant; 0 when nothing was drafted."""
        given = [answer for (_, who, _), answers in self.answers.items() if who == contestant for answer in answers]
        drafts = [answer.draft for answer in given if answer.draft is not None]
        num_drafted = sum(draft.num_drafted - draft.num_looked_up for draft in drafts)
        return round(1000.0 * sum(draft.draft_ms for draft in drafts) / num_drafted) if num_drafted else 0

    def verify_us_per_step(self, contestant: str) -> float:
        """What a target's step took, over all recorded answers of a contestant, those that read prompts included; 0 when it has none."""
        given = [answer for (_, who, _), answers in self.answers.items() if who == contestant for answer in answers]
        drafts = [answer.draft for answer in given if answer.draft is not None]
        num_rounds = sum(draft.num_rounds for draft in drafts)
        return 1000.0 * sum(draft.verify_ms for draft in drafts) / num_rounds if num_rounds else 0.0

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
