"""The process behind `openvino_peer.OpenVinoWorker`: one JSON request a line in, one JSON reply a line out.

Run as `python -m outrider_bench.openvino_worker PLAN`, a JSON object. Uses nothing of Outrider: only OpenVINO GenAI's public pipeline,
as its samples call it, fed with token ids. Prefix caching is off, as it is with every other contestant: a repeated prompt would be
free otherwise. Ends when its input ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

MAX_PIPELINES = 4  # backends by threads
CACHE_GIB = 1
MAX_BATCHED_TOKENS = 2048  # a whole prompt in one step


class Pipelines:
    """A target, and perhaps what drafts for it; one pipeline for each backend and number of threads, the latest kept."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        config = json.loads((Path(plan["target"]) / "config.json").read_text())
        ends = config.get("eos_token_id")
        self.end_ids: set[int] = set() if ends is None else set(ends if isinstance(ends, list) else [ends])
        self._pipelines: OrderedDict[tuple[str, int], Any] = OrderedDict()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Generate for one request (see openvino_peer.OpenVinoPeer.answer)."""
        settings = request["settings"]
        pipeline = self._pipeline(settings["backend"], settings["num_threads"])
        wishes = self._wishes(request)
        prompt = ov.Tensor(np.array([request["prompt"]], dtype=np.int64))
        begun_s = time.perf_counter()
        output = pipeline.generate(prompt, wishes)
        ended_s = time.perf_counter()
        reply = {
            "tokens": list(output.tokens[0]),
            "first_token_ms": output.perf_metrics.get_ttft().mean,
            "total_ms": 1000.0 * (ended_s - begun_s),
        }
        return reply | _rounds(output)

    def _wishes(self, request: dict[str, Any]) -> Any:
        settings = request["settings"]
        wishes = genai.GenerationConfig()
        wishes.max_new_tokens = request["max_tokens"]
        wishes.stop_token_ids = self.end_ids
        wishes.apply_chat_template = False
        if request["temperature"] > 0.0:
            wishes.do_sample, wishes.temperature, wishes.rng_seed = True, request["temperature"], request["seed"]
        if settings["confidence"]:
            wishes.assistant_confidence_threshold = settings["confidence"]
        elif settings["num_tokens"]:
            wishes.num_assistant_tokens = settings["num_tokens"]
        if settings["ngram_len"]:
            wishes.max_ngram_size = settings["ngram_len"]
        return wishes

    def _pipeline(self, backend: str, num_threads: int) -> Any:
        key = (backend, num_threads)
        if key not in self._pipelines:
            while len(self._pipelines) >= MAX_PIPELINES:
                self._pipelines.popitem(last=False)
            self._pipelines[key] = self._build(backend, num_threads)
        return self._pipelines[key]

    def _build(self, backend: str, num_threads: int) -> Any:
        precision = self.plan["precision"]
        options: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": num_threads,
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,  # its default is 8 bits
        }
        if backend == "SDPA":
            return genai.LLMPipeline(self.plan["target"], "CPU", ATTENTION_BACKEND="SDPA", **options)
        schedule = genai.SchedulerConfig()
        schedule.cache_size = CACHE_GIB
        schedule.max_num_batched_tokens = MAX_BATCHED_TOKENS
        schedule.enable_prefix_caching = False
        drafting: dict[str, Any] = {}
        if self.plan["draft"] is not None:
            drafting["draft_model"] = genai.draft_model(self.plan["draft"], "CPU", **options)
        if self.plan["lookup"]:
            drafting["prompt_lookup"] = True
        return genai.LLMPipeline(self.plan["target"], "CPU", scheduler_config=schedule, **drafting, **options)


def _rounds(output: Any) -> dict[str, int]:
    """Forwards of the target and accepted drafts, where the pipeline counts them (it does with a draft model)."""
    metrics = output.extended_perf_metrics
    if metrics is None or not hasattr(metrics, "main_model_metrics"):
        return {}
    num_rounds = len(metrics.main_model_metrics.raw_metrics.m_durations)
    return {"num_rounds": num_rounds, "num_accepted": metrics.get_num_accepted_tokens()}


def serve(plan: dict[str, Any]) -> None:
    """Answer requests until the input ends."""
    pipelines = Pipelines(plan)
    print(json.dumps({"version": genai.__version__}), flush=True)
    for line in sys.stdin:
        try:
            reply = pipelines.answer(json.loads(line))
        except (ValueError, RuntimeError, TypeError) as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
