"""Asks the same requests plainly and with drafts, several at a time, and compares token by token.

Knows the client API. Must not know torch: the oracle is handed in by whoever has one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from outrider.cli.connection import CollectedSample, Connection
from outrider_bench.contestants import DraftWishes
from outrider_bench.identity_cases import Case
from outrider_bench.results import first_difference

CONCURRENCY = 6
PLAIN_WISHES = DraftWishes("off")


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers of all cases under one kind of drafts, by case, and how long they took together."""

    wishes: DraftWishes
    answers: tuple[tuple[int, ...], ...]
    num_drafted: int
    num_accepted: int
    total_s: float

    @property
    def num_tokens(self) -> int:
        """Of all answers."""
        return sum(map(len, self.answers))

    def every(self, first: int, step: int) -> Batch:
        """The answers of cases first, first + step, ...; the counts and times stay those of the whole batch."""
        return replace(self, answers=self.answers[first::step])

    @property
    def num_rejected(self) -> int:
        """Guessed nodes that were verified and not accepted."""
        return self.num_drafted - self.num_accepted


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not the plain one: its case, and where it first differs."""

    case: Case
    position: int
    plain_token: int
    drafted_token: int

    def describe(self) -> str:
        """Enough to ask the request again."""
        return (
            f"case {self.case.index} ({self.case.prompt.task}, seed {self.case.seed}, {self.case.sampling}): token {self.position} is "
            f"{self.drafted_token}, plain decoding has {self.plain_token}"
        )


def ask_all(
    gateway: Connection,
    cases: Sequence[Case],
    wishes: DraftWishes,
    concurrency: int = CONCURRENCY,
    on_answer: Callable[[], None] = lambda: None,
) -> Batch:
    """Every case once, `concurrency` of them live at any time."""

    def ask(case: Case) -> CollectedSample:
        sample = gateway.ask(case.request(wishes)).first
        on_answer()
        return sample

    begun_s = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        samples = list(pool.map(ask, cases))
    total_s = time.perf_counter() - begun_s
    statistics = [sample.finished.statistics for sample in samples]
    return Batch(
        wishes,
        tuple(tuple(sample.token_ids) for sample in samples),
        sum(numbers.num_drafted for numbers in statistics),
        sum(numbers.num_accepted for numbers in statistics),
        total_s,
    )


def differences(cases: Sequence[Case], plain: Batch, drafted: Batch) -> list[Difference]:
    """Cases whose drafted answer is not the plain one."""
    found = []
    for case, truth, answer in zip(cases, plain.answers, drafted.answers, strict=True):
        position = first_difference(truth, answer)
        if position is not None:
            tokens = [tokens[position] if position < len(tokens) else -1 for tokens in (truth, answer)]
            found.append(Difference(case, position, tokens[0], tokens[1]))
    return found
