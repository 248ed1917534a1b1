"""transformers' own generate, assisted generation and prompt lookup as a baseline, in a process of their own with their own threads.

The worker process keeps torch out of the driver and loads, warms and runs the models on one thread, as anyone measuring
transformers would. Settings cover its caches, attention implementations, assistant schedules and n-gram lengths; the bench keeps the best.
"""

from __future__ import annotations

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

    num_threads: None for as many as the worker was started with, never more.
    """

    attention: str = "sdpa"
    cache: str = "dynamic"
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
        return f"{self.attention} {self.cache}{drafting}"


PLAIN_CANDIDATES = tuple(GenerateSettings(attention, cache) for attention in ("sdpa", "eager") for cache in ("dynamic", "static"))
# Assisted generation rolls its cache back, which only the dynamic cache allows; attention follows the best plain setting.
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


class TransformersBaseline(Worker):
    """A worker process that answers one prompt at a time with transformers."""

    def __init__(self, target: str, draft: str | None, dtype: str, num_threads: int) -> None:
        arguments = (target, draft or "", dtype, str(num_threads))
        quiet = {"TRANSFORMERS_VERBOSITY": "error"}
        super().__init__("transformers", "outrider_bench.baseline_worker", arguments, num_threads, quiet)

    def answer(self, prompt: tuple[int, ...], max_tokens: int, temperature: float, seed: int, settings: GenerateSettings) -> Answer:
        """Generate at most max_tokens after the prompt. Raises RuntimeError with the worker's sentence."""
        request = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
            "settings": asdict(settings),
        }
        return self.ask(request)
