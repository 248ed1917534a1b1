"""transformers' own generate, assisted generation and prompt lookup as a baseline, in a process of their own with their own threads.

The worker process keeps torch out of the driver and loads, warms and runs the models on one thread, as anyone measuring
transformers would. Settings cover its caches, attention implementations, assistant schedules and n-gram lengths; the bench keeps the best.
On a CUDA card a static cache may be compiled too: transformers then replays recorded graphs. Must not know whether there is a card.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from outrider_bench.measurement import Answer
from outrider_bench.worker import Worker


@dataclass(frozen=True, slots=True)
class Assistant:
    """Settings of assisted generation. schedule: "constant" or "heuristic"; confidence: stop drafting below it, 0 is off."""

    num_tokens: int
    schedule: str
    confidence: float


@dataclass(frozen=True, slots=True)
class Lookup:
    """Settings of prompt lookup: guesses continue an earlier occurrence of the last (at most ngram_len) tokens."""

    num_tokens: int
    ngram_len: int


@dataclass(frozen=True, slots=True)
class GenerateSettings:
    """attention: "sdpa" or "eager"; cache: "dynamic" or "static"; assistant or lookup: what drafts, neither for plain generate.

    compiled: transformers' own torch.compile of a step, which it applies to a static cache on a card and nowhere else. num_threads: None
    for as many as the worker was started with, never more.
    """

    attention: str = "sdpa"
    cache: str = "dynamic"
    compiled: bool = False
    assistant: Assistant | None = None
    lookup: Lookup | None = None
    num_threads: int | None = None

    @property
    def name(self) -> str:
        """Short and unique but for the threads, for tables."""
        assistant, lookup = self.assistant, self.lookup
        drafting = "" if assistant is None else f" k={assistant.num_tokens} {assistant.schedule} p>={assistant.confidence:g}"
        if lookup is not None:
            drafting = f" lookup k={lookup.num_tokens} n={lookup.ngram_len}"
        return f"{self.attention} {self.cache}{' compiled' if self.compiled else ''}{drafting}"


PLAIN_CANDIDATES = tuple(GenerateSettings(attention, cache) for attention in ("sdpa", "eager") for cache in ("dynamic", "static"))
CARD_PLAIN_CANDIDATES = (*PLAIN_CANDIDATES, *(GenerateSettings(attention, "static", compiled=True) for attention in ("sdpa", "eager")))
# Assisted generation and prompt lookup roll their cache back, which only the dynamic cache allows, and that one is never compiled;
# attention follows the best plain setting.
ASSISTANTS = (
    Assistant(20, "constant", 0.4),  # transformers' default
    Assistant(12, "constant", 0.0),
    Assistant(12, "constant", 0.4),
    Assistant(8, "constant", 0.0),
    Assistant(8, "constant", 0.4),
    Assistant(5, "constant", 0.0),
    Assistant(5, "heuristic", 0.0),
    Assistant(5, "heuristic", 0.4),
)
LOOKUPS = tuple(Lookup(num_tokens, ngram_len) for num_tokens in (3, 5, 10, 16) for ngram_len in (2, 3))


def generate_candidates(device: str) -> tuple[GenerateSettings, ...]:
    """Of generate without drafts, on cpu or cuda."""
    return CARD_PLAIN_CANDIDATES if device == "cuda" else PLAIN_CANDIDATES


class TransformersBaseline(Worker):
    """A worker process that answers with transformers, one prompt or one batch at a time, on cpu or cuda.

    Raises RuntimeError with the worker's sentence where there is no such device.
    """

    def __init__(self, target: str, draft: str | None, dtype: str, num_threads: int, device: str = "cpu") -> None:
        self.dtype = dtype
        arguments = (target, draft or "", dtype, str(num_threads), device)
        quiet = {"TRANSFORMERS_VERBOSITY": "error"}
        super().__init__("transformers", "outrider_bench.baseline_worker", arguments, num_threads, quiet)

    def answer(self, prompt: tuple[int, ...], max_tokens: int, temperature: float, seed: int, settings: GenerateSettings) -> Answer:
        """Generate at most max_tokens after the prompt. Raises RuntimeError with the worker's sentence."""
        return self.answer_together([prompt], max_tokens, temperature, seed, settings)[0]

    def answer_together(
        self, prompts: Sequence[tuple[int, ...]], max_tokens: int, temperature: float, seed: int, settings: GenerateSettings
    ) -> list[Answer]:
        """One batch of prompts of one length, whose answers all take the batch's time. Raises RuntimeError with the worker's sentence."""
        request = {
            "prompts": prompts,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
            "settings": asdict(settings),
        }
        return self.ask_together(request)
