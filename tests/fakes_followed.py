"""Small thin engines whose chains may be followed, sequences in many runs of their caches, and a chain by one step or by one a row.

Engines come from FollowingEngines, which loads each model once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fakes_models
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.load import load_engine
from outrider.engine.paged_engine import PagedEngine
from outrider.errors import InvalidRequest
from outrider.noise.field import POSITION_STEP
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import Follow, SequenceResult, SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import IntArray
from outrider_kernels.thin_pick import MAX_TOP_K, PickRule

NONE: IntArray = np.empty(0, np.int32)
NUM_IDS = fakes_models.VOCAB - 3  # the last columns of the logits are padding
BLOCK_LEN = 4  # a sequence lies in many runs
MAX_LEN, MAX_NODES, MAX_CONTEXT = 70, 9, 74
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 64},
    "mistral": {},  # every layer has a window of 12
    "qwen3": {},  # a norm of queries and keys
    "qwen2": {"sliding_window": 9, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"], "hidden_size": 64},
}
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "warm": SamplingParams(temperature=0.8),
    "top p": SamplingParams(temperature=0.8, top_p=0.7),
    "top k": SamplingParams(temperature=0.8, top_k=5),
    "left": SamplingParams(temperature=0.8, top_k=MAX_TOP_K + 1),  # to the general pick, row by row
    "all filters": SamplingParams(temperature=1.3, top_k=12, top_p=0.9, min_p=0.05),
    "penalised": SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=0.9, frequency_penalty=0.5, presence_penalty=-0.9),
    "biased": SamplingParams(temperature=0.8, logit_bias=((3, 1.5), (8, -2.0), (20, 3.0))),
    "penalised and left": SamplingParams(temperature=0.8, top_k=MAX_TOP_K + 1, repetition_penalty=0.6, logit_bias=((4, 1.0),)),
}


NUM_HOLDERS = 40


class FollowingEngines:
    """Engines over one loaded model a name, each with a cache of its own that begins with holes."""

    def __init__(self, new_folder: Callable[[str], Path], num_threads: int = 1) -> None:
        """num_threads: of each model's team, which its engines share."""
        self._new_folder = new_folder
        self._num_threads = num_threads
        self._loaded: dict[str, PagedEngine] = {}

    def forward(self, name: str) -> Any:
        """The model itself, which its engines share."""
        return self._load(name)._forward

    def make(self, name: str = "llama", missing_ids: tuple[int, ...] = (), end_ids: tuple[int, ...] = (), **changes: Any) -> PagedEngine:
        """changes: of the configuration."""
        loaded = self._load(name)
        settings: dict[str, Any] = {"num_blocks": 80, "block_len": BLOCK_LEN, "max_rows": 64, "num_threads": 1, **changes}
        identity = replace(loaded.identity, eos_token_ids=end_ids, max_context=MAX_CONTEXT, vocab_size=NUM_IDS)
        engine = PagedEngine(loaded._forward, identity, EngineConfig(name, **settings), torch.float32, missing_ids)
        for index in range(NUM_HOLDERS):
            engine.open(index, SequenceSpec(SAMPLINGS["greedy"], NoiseAddress(0), 0, BLOCK_LEN * (1 + index % 2), 0))
        for index in (*range(0, NUM_HOLDERS, 3), *(index for index in range(NUM_HOLDERS) if index % 3 and index % 9 != 1)):
            engine.close(index)
        return engine

    def _load(self, name: str) -> PagedEngine:
        if name not in self._loaded:
            folder = self._new_folder(name)
            fakes_models.make_model(name, folder, **MODELS[name])
            threads = self._num_threads
            config = EngineConfig(str(folder), EngineKind.LEAN, num_blocks=1, thin_rows=64, num_threads=threads, probe=False)
            engine = load_engine(config)
            assert isinstance(engine, PagedEngine)
            self._loaded[name] = engine
        return self._loaded[name]


def spec(sampling: SamplingParams, seed: int = 3) -> SequenceSpec:
    return SequenceSpec(sampling, NoiseAddress(seed), 4, MAX_LEN, MAX_NODES)


def opened(engine: PagedEngine, sampling: SamplingParams = SAMPLINGS["warm"]) -> PagedEngine:
    """With a sequence, 51."""
    engine.open(51, spec(sampling))
    return engine


def ints(*tokens: int) -> IntArray:
    return np.array(tokens, np.int32)


def step(engine: PagedEngine, *parts: SequenceRows) -> SequenceResult:
    return engine.step(StepPlan(parts)).results[0]


def followed(engine: PagedEngine, first: SequenceRows, wish: Follow, *others: SequenceRows) -> tuple[list[int], list[float]]:
    """Picks and probabilities of one step."""
    result = step(engine, replace(first, follow=wish), *others)
    return result.picks.tolist(), [] if result.pick_probs is None else result.pick_probs.tolist()


def seconds_of(result: SequenceResult) -> list[tuple[int, float]]:
    """Ids and how far they lie behind, -1 in the place of no number; nothing where they were not asked for."""
    if result.seconds is None:
        return []
    return list(zip(result.seconds.ids.tolist(), np.nan_to_num(result.seconds.behind, nan=-1.0).tolist(), strict=True))


def logprobs_of(result: SequenceResult) -> list[bytes]:
    """All their numbers; nothing where they were not asked for."""
    return [] if result.logprobs is None else [getattr(result.logprobs, part).tobytes() for part in ("chosen", "top_ids", "top")]


def one_by_one(engine: PagedEngine, first: SequenceRows, wish: Follow, *others: SequenceRows) -> tuple[list[int], list[float]]:
    """The same by a step for each row, for as long as the engine takes one."""
    result = step(engine, first, *others)
    picks, probs = result.picks.tolist(), [] if result.pick_probs is None else result.pick_probs.tolist()
    while len(picks) <= wish.num_more and picks[-1] not in engine.identity.eos_token_ids:
        if probs and probs[-1] < wish.stop_below:
            break
        above = len(engine._sequences.state(first.sequence).tree) - 1
        try:
            result = step(engine, SequenceRows(first.sequence, NONE, ints(picks[-1]), ints(above), pick_probs=first.pick_probs))
        except InvalidRequest:  # no room, or no position
            break
        picks += result.picks.tolist()
        probs += [] if result.pick_probs is None else result.pick_probs.tolist()
    return picks, probs


def later_noise(engine: PagedEngine) -> Callable[..., PickRule]:
    """An engine's rule, but for its noise: each pick has that of the next position."""
    original = engine._picker.rule

    def rule(spec: SequenceSpec, *, with_prob: bool, with_second: bool) -> PickRule:
        right = original(spec, with_prob=with_prob, with_second=with_second)
        return replace(right, key=(right.key + POSITION_STEP) % 2**64)

    return rule


def held(engine: PagedEngine, sequence: int) -> list[object]:
    """All that an engine knows of a sequence, its KV among it."""
    state = engine._sequences.state(sequence)
    tree, slots = state.tree, state.table.slots[: state.cached_len + len(state.tree)]
    nodes = [tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist(), tree.ancestry.tolist()]
    return [
        state.committed.tolist(),
        *nodes,
        len(state.keys),
        *(pool[:, :, slots].view(torch.uint8).numpy().tobytes() for pool in engine._cache.pools),
    ]


def read_by_another(engine: PagedEngine, sampling: SamplingParams) -> tuple[int, list[int]]:
    """How much of the sequence's text another finds cached, and what it makes of the rest."""
    text = engine._sequences.state(51).committed.copy()
    engine.open(53, spec(sampling), text)
    cached_len = engine.cached_len(53)
    picks = step(engine, SequenceRows(53, text[cached_len:], NONE, NONE)).picks.tolist()
    engine.close(53)
    return cached_len, picks
