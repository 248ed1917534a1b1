"""Whether an engine's steps run on a card in our own way (Triton kernels, recorded steps), and how they are made; one line says why not.

Imports Triton's kernels only where they will run: Triton is an extra. Must not know steps.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from outrider.engine.card_buckets import StepSizes
from outrider.engine.card_graphs import CudaGraphs, GraphCapture
from outrider.engine.config import EngineConfig
from outrider.engine.decoder_forward import DecoderForward
from outrider.engine.paged_cache import PagedCache
from outrider.types.identity import Numerics

if TYPE_CHECKING:
    from outrider.engine.card_steps import CardSteps

NUM_SPARE_BLOCKS = 1  # of the cache, for rows of padding
NO_TRITON = "Triton is not installed (the extra `triton`)"
MIN_CAPABILITY = (8, 0)  # bfloat16 products, which the kernels are compiled for

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CardWay:
    """new_graphs: what records the steps of one cache; None: each is launched operation by operation."""

    new_graphs: Callable[[], GraphCapture] | None

    def steps(self, forward: DecoderForward, cache: PagedCache, sizes: StepSizes, num_ids: int, missing_ids: tuple[int, ...]) -> CardSteps:
        """Steps over a cache of sizes.num_blocks + NUM_SPARE_BLOCKS blocks, recorded where they are to be, and moves of its rows."""
        from outrider.engine.card_mover import CardMover
        from outrider.engine.card_steps import CardSteps

        cache.move_with(CardMover(cache.pools))
        steps = CardSteps(forward, cache, sizes, num_ids, missing_ids)
        if self.new_graphs is not None:
            steps.record(self.new_graphs())
        return steps


def card_way(config: EngineConfig, *, can_record: bool) -> CardWay | None:
    """How steps of this configuration run on its card; None for plain torch operations.

    can_record: whether the model's forward never waits for the card. The calling thread works on that card from here on.
    """
    device = torch.device(config.device)
    if device.type != "cuda" or config.numerics is Numerics.INVARIANT:
        return None
    problem = card_problem(device)
    if problem is not None:
        _LOG.warning("steps on %s run on plain torch operations, which is slower: %s", config.device, problem)
        return None
    if device.index is not None:
        torch.cuda.set_device(device)  # kernels and recordings go to the thread's current card
    if config.card_graphs and not can_record:
        _LOG.info("steps on %s are launched operation by operation: this model's forward is not recorded", config.device)
    return CardWay(CudaGraphs if config.card_graphs and can_record else None)


def card_problem(device: torch.device) -> str | None:
    """Why our kernels cannot run on this card; None when nothing is known against it."""
    if torch.version.hip is not None:
        return "the kernels are written for CUDA, and this torch is built for ROCm"
    if importlib.util.find_spec("triton") is None:
        return NO_TRITON
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        return f"its compute capability is {capability[0]}.{capability[1]}, the kernels need {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]}"
    return None
