"""OpenVINO GenAI as a contestant: plain, with its draft model, or with prompt lookup, in a process of its own with its own threads.

Settings cover its two attention backends, threads, and how much is drafted; the bench keeps the best. Must not import OpenVINO.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from outrider_bench.contestants import threads_text
from outrider_bench.measurement import Answer, Prompt
from outrider_bench.openvino_folder import WITHOUT_REPORTING
from outrider_bench.worker import Worker

PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
SETTLED = "prefix cache off, no streamer"


@dataclass(frozen=True, slots=True)
class OpenVinoSettings:
    """num_threads: INFERENCE_NUM_THREADS. backend: "PA" (paged attention) or "SDPA" (stateful graph), plain decoding only.

    With a draft model either num_tokens (drafted a round) or confidence (draft until the drafter is less sure) is above 0; with prompt
    lookup num_tokens and ngram_len are.
    """

    num_threads: int
    backend: str = "PA"
    num_tokens: int = 0
    confidence: float = 0.0
    ngram_len: int = 0

    @property
    def name(self) -> str:
        """Short and unique but for the threads, for tables."""
        wishes = {"k=": self.num_tokens, "p>=": self.confidence, "n=": self.ngram_len}
        return " ".join([self.backend, *(f"{name}{value:g}" for name, value in wishes.items() if value)])


def plain_candidates(num_threads: int) -> list[OpenVinoSettings]:
    """Both attention backends."""
    return [OpenVinoSettings(num_threads, backend) for backend in ("PA", "SDPA")]


def draft_candidates(num_threads: int) -> list[OpenVinoSettings]:
    """Fixed lengths, and OpenVINO's confidence threshold; its documentation's 5 and 0.4 are among them."""
    fixed = [OpenVinoSettings(num_threads, num_tokens=length) for length in (5, 3, 8, 12, 16, 24)]
    return [*fixed, *(OpenVinoSettings(num_threads, confidence=confidence) for confidence in (0.4, 0.6, 0.8))]


def lookup_candidates(num_threads: int) -> list[OpenVinoSettings]:
    """Draft lengths by lengths of the sought n-gram."""
    return [OpenVinoSettings(num_threads, num_tokens=length, ngram_len=ngram_len) for length in (5, 3, 10, 16) for ngram_len in (3, 2)]


class OpenVinoWorker(Worker):
    """Answers prompts with OpenVINO GenAI. draft: folder of a converted model; lookup: prompt lookup instead."""

    def __init__(self, target: Path, draft: Path | None, dtype: str, num_threads: int, *, lookup: bool = False) -> None:
        plan = {"target": str(target), "draft": None if draft is None else str(draft), "lookup": lookup, "precision": PRECISIONS[dtype]}
        super().__init__("OpenVINO", "outrider_bench.openvino_worker", [json.dumps(plan)], num_threads, WITHOUT_REPORTING)


@dataclass(frozen=True)
class OpenVinoPeer:
    """OpenVINO GenAI with some settings."""

    name: str
    worker: OpenVinoWorker
    chosen: OpenVinoSettings

    @property
    def settings(self) -> str:
        """Backend, drafting, threads, and what no candidate changes."""
        return f"{self.chosen.name}; {SETTLED}; {threads_text(self.chosen.num_threads)}"

    def answer(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Answer:
        """Through OpenVINO's own random numbers: texts at T > 0 differ from ours, speeds compare."""
        request = {"prompt": prompt.token_ids, "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
        return self.worker.ask({**request, "settings": asdict(self.chosen)})
