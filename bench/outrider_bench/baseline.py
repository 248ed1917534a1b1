"""transformers' own generate and assisted generation as a baseline, in a process of their own with their own threads.

The worker process keeps torch out of the driver and loads, warms and runs the models on one thread, as anyone measuring
transformers would. Settings cover its caches, attention implementations and assistant schedules; the bench keeps the best.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from outrider.launch.threads import thread_environment
from outrider_bench.measurement import Answer


@dataclass(frozen=True, slots=True)
class Assistant:
    """Settings of assisted generation. schedule: "constant" or "heuristic"; confidence: stop drafting below it, 0 is off."""

    num_tokens: int
    schedule: str
    confidence: float


@dataclass(frozen=True, slots=True)
class GenerateSettings:
    """attention: "sdpa" or "eager"; cache: "dynamic" or "static"; assistant: None for plain generate."""

    attention: str = "sdpa"
    cache: str = "dynamic"
    assistant: Assistant | None = None

    @property
    def name(self) -> str:
        """Short and unique, for tables."""
        assistant = self.assistant
        drafting = "" if assistant is None else f" k={assistant.num_tokens} {assistant.schedule} p>={assistant.confidence:g}"
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


class TransformersBaseline:
    """A worker process that answers one prompt at a time with transformers. Use as a context manager."""

    def __init__(self, target: str, draft: str | None, dtype: str, num_threads: int) -> None:
        arguments = [sys.executable, "-m", "outrider_bench.baseline_worker", target, draft or "", dtype, str(num_threads)]
        paths = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, **thread_environment(num_threads), "TRANSFORMERS_VERBOSITY": "error"},
        )
        self._read()

    def answer(self, prompt: tuple[int, ...], max_tokens: int, temperature: float, seed: int, settings: GenerateSettings) -> Answer:
        """Generate at most max_tokens after the prompt. Raises RuntimeError with the worker's sentence."""
        request = {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
            "settings": asdict(settings),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = self._read()
        return Answer(tuple(reply["tokens"]), reply["first_token_ms"], reply["total_ms"])

    def close(self) -> None:
        """End the worker: it leaves when its input does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> TransformersBaseline:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the transformers baseline ended with exit code {self._process.wait()}; its error is above")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"transformers refused: {reply['error']}")
        return reply
