"""Does a contestant sample what our plain decoding samples? At T > 0 tokens cannot be compared one by one, distributions can.

Many short answers to one prompt with different seeds; the second token, the first that a draft may have guessed, is compared with that of
our plain decoding by total variation, and by a permutation test how likely such a distance is by luck. Must not know how anyone answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from outrider_bench.contestants import Contestant
from outrider_bench.measurement import Prompt
from outrider_bench.results import PLAIN

TEMPERATURE = 0.8
ANSWER_LEN = 4  # room for a draft
JUDGED_POSITION = 1
NUM_PERMUTATIONS = 2000
LEAST_LUCK = 0.001
ENDED = -1


@dataclass(frozen=True, slots=True)
class Sampled:
    """distance: total variation between the samples, 0 to 1. luck: probability of at least that between samples of one distribution."""

    contestant: str
    distance: float
    luck: float

    @property
    def is_the_targets(self) -> bool:
        """Whether the distance can be luck; few samples show only large differences."""
        return self.luck >= LEAST_LUCK

    @property
    def text(self) -> str:
        """One line for reports."""
        verdict = "not told from" if self.is_the_targets else "NOT those of"
        return (
            f"{self.contestant}, T = {TEMPERATURE:g}: its samples are {verdict} plain decoding "
            f"(distance {self.distance:.2f}, by luck with probability {self.luck:.2g})"
        )


def check_sampling(contestants: Sequence[Contestant], prompt: Prompt, num_samples: int, on_answer: Callable[[], None]) -> list[Sampled]:
    """Every contestant but plain decoding itself, which must be among them."""
    tokens: dict[str, list[int]] = {each.name: [] for each in contestants}
    for seed in range(num_samples):
        for contestant in contestants:
            answer = contestant.answer(prompt, ANSWER_LEN, TEMPERATURE, seed).tokens
            tokens[contestant.name].append(answer[JUDGED_POSITION] if len(answer) > JUDGED_POSITION else ENDED)
            on_answer()
    truth = tokens.pop(PLAIN)
    return [Sampled(name, *compare(truth, found)) for name, found in tokens.items()]


def compare(left: Sequence[int], right: Sequence[int]) -> tuple[float, float]:
    """Total variation of two samples of one size, and how likely at least that is when both are of one distribution."""
    assert len(left) == len(right), "samples of one size"
    _, codes = np.unique(np.array([*left, *right]), return_inverse=True)
    half, num_codes = len(left), int(codes.max()) + 1

    def distance(order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> float:
        counts = [np.bincount(part, minlength=num_codes) for part in (order[:half], order[half:])]
        return float(np.abs(counts[0] - counts[1]).sum()) / (2 * half)

    seen = distance(codes)
    generator = np.random.default_rng(0)
    at_least = sum(distance(generator.permutation(codes)) >= seen for _ in range(NUM_PERMUTATIONS))
    return seen, (1 + at_least) / (1 + NUM_PERMUTATIONS)
