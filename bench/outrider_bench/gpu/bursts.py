"""Requests that are asked all at once, and what came of them. Prompts are random ids: a random target has nothing to say to text.

Must not know cells or policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from outrider_bench.contestants import Stack
from outrider_bench.measurement import Answer, Prompt, Summary, summarise

TASK = "random ids"
FIRST_ID = 5  # below are the tokenizer's special tokens


@dataclass(frozen=True, slots=True)
class Burst:
    """Answers in the order of their prompts."""

    answers: tuple[Answer, ...]

    @property
    def num_tokens(self) -> int:
        """Of all answers."""
        return sum(len(answer.tokens) for answer in self.answers)

    @property
    def tokens_per_s(self) -> float:
        """Of all answers together, over the time of the slowest."""
        return 1000.0 * self.num_tokens / max(answer.total_ms for answer in self.answers)

    @property
    def token_ms(self) -> float:
        """What a client waits for a token, the prompt's reading included: the mean over answers."""
        return sum(answer.total_ms / len(answer.tokens) for answer in self.answers) / len(self.answers)

    @property
    def summary(self) -> Summary:
        """Rates of drafts and rounds."""
        return summarise(self.answers)


def random_prompts(num: int, length: int, num_ids: int, seed: int) -> list[Prompt]:
    """Different ones, the same for the same numbers."""
    ids = np.random.default_rng(seed).integers(FIRST_ID, num_ids, (num, length))
    return [Prompt(TASK, tuple(row)) for row in ids.tolist()]


def texts_of(prompts: Sequence[Prompt], found: Burst) -> list[tuple[int, ...]]:
    """Prompt and answer of each request, as a replaying drafter knows them."""
    return [(*prompt.token_ids, *answer.tokens) for prompt, answer in zip(prompts, found.answers, strict=True)]


def burst(contestant: Stack, prompts: Sequence[Prompt], max_tokens: int, temperature: float, pool: Executor) -> Burst:
    """Ask all prompts at once, each with its own seed, and wait for the last. pool: with a thread for each."""

    def ask(seed: int) -> Answer:
        return contestant.answer(prompts[seed], max_tokens, temperature, seed)

    return Burst(tuple(pool.map(ask, range(len(prompts)))))
