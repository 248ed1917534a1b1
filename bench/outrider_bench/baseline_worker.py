"""The process behind `baseline.TransformersBaseline`: one JSON request a line in, one JSON reply a line out.

Run as `python -m outrider_bench.baseline_worker TARGET DRAFT|"" DTYPE THREADS DEVICE`. Uses nothing of Outrider: only transformers'
public generate, exactly as its documentation calls it. Ends when its input ends. Must not choose settings.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

CACHE_STEP = 512  # a static cache on a card has a multiple of this many tokens: another size would be compiled anew


class FirstTokenClock:
    """A streamer (transformers' interface) that only notes when the first generated token arrived."""

    def __init__(self) -> None:
        self.num_puts = 0
        self.first_s = 0.0

    def put(self, value: torch.Tensor) -> None:
        """Called with the prompt, then with every new token or run of tokens."""
        self.num_puts += 1
        if self.num_puts == 2:
            self.first_s = time.perf_counter()

    def end(self) -> None:
        """Called once at the end."""


class Generator:
    """A target and perhaps an assistant of one dtype on one device."""

    def __init__(self, target: str, draft: str, dtype: torch.dtype, num_threads: int, device: str) -> None:
        self.num_threads = num_threads
        self.device = torch.device(device)
        self.target = self._load(target, dtype)
        self.assistant = self._load(draft, dtype) if draft else None

    def _load(self, path: str, dtype: torch.dtype) -> Any:
        from transformers import AutoModelForCausalLM  # seconds, which a device that is not there need not wait for

        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa").to(self.device).eval()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Generate for one request (see baseline.TransformersBaseline.answer_together). Times end with tokens in this process' memory."""
        settings = request["settings"]
        self._set_attention(settings["attention"])
        torch.set_num_threads(settings["num_threads"] or self.num_threads)
        options = self._sampling(request["temperature"]) | self._drafting(settings["assistant"]) | self._lookup(settings["lookup"])
        prompts = torch.tensor(request["prompts"], device=self.device)  # [num_prompts, prompt_len] int64
        options |= self._cache(settings, prompts.shape[1] + request["max_tokens"])
        clock = FirstTokenClock()
        torch.manual_seed(request["seed"])
        begun_s = time.perf_counter()
        output = self.target.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=request["max_tokens"],
            streamer=clock,
            **options,
        )
        answers = output[:, prompts.shape[1] :].tolist()  # a card computes on until somebody asks for what it has computed
        ended_s = time.perf_counter()
        times = {"first_token_ms": 1000.0 * (clock.first_s - begun_s), "total_ms": 1000.0 * (ended_s - begun_s)}
        return {"answers": [{"tokens": self._until_end(tokens)} | times for tokens in answers]}

    def _until_end(self, tokens: list[int]) -> list[int]:
        """Of a batch, an answer that ended before the others is padded."""
        ids = self.target.generation_config.eos_token_id
        ends = set(ids if isinstance(ids, list) else [] if ids is None else [ids])
        return tokens[: next((at + 1 for at, token in enumerate(tokens) if token in ends), len(tokens))]

    def _cache(self, settings: dict[str, Any], num_tokens: int) -> dict[str, Any]:
        if settings["cache"] == "dynamic":
            return {}
        options = {"cache_implementation": settings["cache"], "disable_compile": not settings["compiled"]}
        if settings["compiled"]:
            options["max_cache_len"] = -(-num_tokens // CACHE_STEP) * CACHE_STEP
        return options

    def _set_attention(self, implementation: str) -> None:
        for model in (self.target, self.assistant):
            if model is not None and model.config._attn_implementation != implementation:
                model.set_attn_implementation(implementation)

    @staticmethod
    def _sampling(temperature: float) -> dict[str, Any]:
        if temperature == 0.0:
            return {"do_sample": False}
        # transformers' own default of top_k = 50 would be another distribution.
        return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}

    def _drafting(self, settings: dict[str, Any] | None) -> dict[str, Any]:
        if settings is None:
            return {}
        if self.assistant is None:
            raise ValueError("assisted generation needs a draft model")
        config = self.assistant.generation_config
        config.num_assistant_tokens = settings["num_tokens"]
        config.num_assistant_tokens_schedule = settings["schedule"]
        config.assistant_confidence_threshold = settings["confidence"]
        return {"assistant_model": self.assistant}

    @staticmethod
    def _lookup(settings: dict[str, Any] | None) -> dict[str, Any]:
        return (
            {}
            if settings is None
            else {"prompt_lookup_num_tokens": settings["num_tokens"], "max_matching_ngram_size": settings["ngram_len"]}
        )


def missing_device(device: str) -> str:
    """Why nothing can run there; empty when it can."""
    if device == "cpu" or (device == "cuda" and torch.cuda.is_available()):
        return ""
    return f"no CUDA card: torch {torch.__version__} sees none" if device == "cuda" else f"device {device!r} is neither cpu nor cuda"


def serve(target: str, draft: str, dtype: str, num_threads: int, device: str) -> None:
    """Answer requests until the input ends."""
    missing = missing_device(device)
    if missing:
        print(json.dumps({"error": missing}), flush=True)
        return
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(num_threads)
    generator = Generator(target, draft, getattr(torch, dtype), num_threads, device)
    print(json.dumps({"threads": torch.get_num_threads()}), flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            try:
                reply = generator.answer(json.loads(line))
            except (ValueError, RuntimeError, TypeError) as error:
                reply = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
