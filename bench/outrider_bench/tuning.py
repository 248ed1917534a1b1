"""Choosing each contestant's settings, on prompts that are not reported: the fastest of a few candidates, each asked in turn.

Both sides are tuned: a baseline at its defaults is not a baseline. Must not know how a contestant answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from outrider_bench.contestants import Contestant
from outrider_bench.measurement import Answer, Prompt, summarise

Chosen = TypeVar("Chosen", bound=Contestant)
TUNING_ROUNDS = 2


def fastest(
    candidates: Sequence[Chosen],
    prompts: Sequence[Prompt],
    temperatures: Sequence[float],
    max_tokens: int,
    on_answer: Callable[[], None],
) -> Chosen:
    """The candidate with the most tokens per second over all prompts and temperatures; the first round only warms up."""
    if len(candidates) == 1:
        return candidates[0]
    answers: list[list[Answer]] = [[] for _ in candidates]
    for tuning_round in range(TUNING_ROUNDS):
        for number, prompt in enumerate(prompts):
            for temperature in temperatures:
                for index, candidate in enumerate(candidates):
                    answer = candidate.answer(prompt, max_tokens, temperature, seed=number)
                    if tuning_round > 0:
                        answers[index].append(answer)
                    on_answer()
    speeds = [summarise(given).tokens_per_s for given in answers]
    return candidates[speeds.index(max(speeds))]


def num_tuning_answers(num_candidates: int, num_prompts: int, num_temperatures: int) -> int:
    """How often on_answer will be called, for progress bars."""
    return TUNING_ROUNDS * num_prompts * num_temperatures * num_candidates if num_candidates > 1 else 0
