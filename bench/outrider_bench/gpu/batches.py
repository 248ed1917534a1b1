"""transformers' generate as a contestant of a run on a card: a burst is one batch of prompts, decoded together from the first token on.

The way in which that library is quickest is found on prompts that no cell uses, for each size of a burst apart: attention, cache, and on a
card whether steps are compiled and recorded. It has no drafts here: a random target never says again what it said, so prompt lookup finds
nothing, and the drafter is a stand-in whose guesses are replayed by our own services. Must not know cells, policies or the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outrider_bench.baseline import GenerateSettings
from outrider_bench.gpu.bursts import Burst
from outrider_bench.measurement import Answer, Prompt

CHOOSING_TOKENS = 32  # of each answer by which settings are compared, at most
CHOOSING_ROUNDS = 2  # of which the first one compiles and warms, and does not count
SEED = 0  # of the batch: it draws other noise than ours, so that only speeds compare at T > 0

AnswerTogether = Callable[[Sequence[tuple[int, ...]], int, float, int, GenerateSettings], list[Answer]]


@dataclass(frozen=True)
class Batches:
    """answer: a worker's answer_together. settings: by the number of prompts of a batch."""

    answer: AnswerTogether
    settings: Mapping[int, GenerateSettings]

    @property
    def described(self) -> str:
        """What was chosen, for reports."""
        return "; ".join(f"{num} at a time: {chosen.name}" for num, chosen in self.settings.items())

    def burst(self, prompts: Sequence[Prompt], max_tokens: int, temperature: float) -> Burst:
        """All prompts, which have one length, as one batch. Raises RuntimeError with the worker's sentence."""
        return _burst(self.answer, prompts, max_tokens, temperature, self.settings[len(prompts)])


def choose(
    answer: AnswerTogether, candidates: Sequence[GenerateSettings], prompts: Sequence[Prompt], sizes: Sequence[int], max_tokens: int
) -> Batches:
    """The quickest settings of each size of a burst. prompts: as many as the largest one takes. Raises RuntimeError with the worker's
    sentence."""

    def speed(settings: GenerateSettings, num: int) -> float:
        length = min(CHOOSING_TOKENS, max_tokens)
        return [_burst(answer, prompts[:num], length, 0.0, settings) for _ in range(CHOOSING_ROUNDS)][-1].tokens_per_s

    return Batches(answer, {num: max(candidates, key=lambda settings: speed(settings, num)) for num in sizes})


def _burst(answer: AnswerTogether, prompts: Sequence[Prompt], max_tokens: int, temperature: float, settings: GenerateSettings) -> Burst:
    return Burst(tuple(answer([prompt.token_ids for prompt in prompts], max_tokens, temperature, SEED, settings)))
