"""Choosing each contestant's settings, on prompts that are not reported: every candidate is asked in turn, and the fastest few once more.

Both sides are tuned: a baseline at its defaults is not a baseline. One answer to each prompt tells half of the candidates from the others,
and among the rest picks whoever a restless machine favoured: so those are asked several times. Must not know how a contestant answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from outrider_bench.contestants import Contestant
from outrider_bench.measurement import Answer, Prompt, summarise

Chosen = TypeVar("Chosen", bound=Contestant)
WARM_UP_ROUNDS, FIRST_ROUNDS = 1, 1
FINALISTS, FINAL_ROUNDS = 3, 3


def fastest(
    candidates: Sequence[Chosen],
    prompts: Sequence[Prompt],
    temperatures: Sequence[float],
    max_tokens: int,
    on_answer: Callable[[], None],
) -> Chosen:
    """The candidate with the most tokens per second over all prompts and temperatures, warmed up before; of more than FINALISTS, those that
    the first round found fastest are asked again."""
    if len(candidates) == 1:
        return candidates[0]

    def rank(chosen: Sequence[Chosen], num_rounds: int) -> list[Chosen]:
        """The fastest first."""
        answers: list[list[Answer]] = [[] for _ in chosen]
        for _ in range(num_rounds):
            for number, prompt in enumerate(prompts):
                for temperature in temperatures:
                    for given, candidate in zip(answers, chosen, strict=True):
                        given.append(candidate.answer(prompt, max_tokens, temperature, seed=number))
                        on_answer()
        speeds = [summarise(given).tokens_per_s for given in answers]
        return [chosen[at] for at in sorted(range(len(chosen)), key=speeds.__getitem__, reverse=True)]

    rank(candidates, WARM_UP_ROUNDS)
    finalists = rank(candidates, FIRST_ROUNDS)[:FINALISTS] if len(candidates) > FINALISTS else candidates
    return rank(finalists, FINAL_ROUNDS)[0]


def num_tuning_answers(num_candidates: int, num_prompts: int, num_temperatures: int) -> int:
    """How often on_answer will be called, for progress bars."""
    if num_candidates == 1:
        return 0
    first = WARM_UP_ROUNDS + (FIRST_ROUNDS if num_candidates > FINALISTS else 0)
    return num_prompts * num_temperatures * (first * num_candidates + FINAL_ROUNDS * min(FINALISTS, num_candidates))
