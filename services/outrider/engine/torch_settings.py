"""The numeric libraries' view of an EngineConfig: dtype, threads, the fixed sizes of `invariant`.

Must not know models.
"""

from __future__ import annotations

import os

import torch
from threadpoolctl import threadpool_limits

from outrider.engine.config import DType, EngineConfig
from outrider.errors import InvalidRequest
from outrider.types.identity import Numerics
from outrider_kernels.cpu_quota import cpu_quota
from outrider_kernels.invariant_attention import InvariantShape

TORCH_DTYPES = {DType.FLOAT32: torch.float32, DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16}


def check_device(config: EngineConfig) -> None:
    """Raise InvalidRequest when torch does not know the device or this machine lacks it."""
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidRequest("engine.device", f"{config.device!r} cannot be used here: {str(error).splitlines()[0]}") from error


def use_threads(config: EngineConfig) -> None:
    """Set torch's and numpy's threads; the thread that calls this must be the one that steps (each has its own OpenMP team)."""
    num_threads = config.num_threads or _most_threads()
    if num_threads and config.device == "cpu":
        torch.set_num_threads(num_threads)
        threadpool_limits(num_threads, user_api="blas")


def _most_threads() -> int:
    """Of a container whose quota is for fewer than torch would have, where nobody said how many; 0: torch's choice is right."""
    quota = None if "OMP_NUM_THREADS" in os.environ else cpu_quota()
    return 0 if quota is None or quota >= torch.get_num_threads() else max(1, int(quota))


def await_device(device: torch.device) -> None:
    """Until a card has done what it was told, as reading an answer off it does: a step without one would be over before it is computed,
    take no time, and fail in a later one. Nothing to wait for on a processor."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def invariant_shape(config: EngineConfig) -> InvariantShape | None:
    """The fixed sizes of `invariant` numerics, None in `fast`."""
    sizes = config.invariant
    if config.numerics is not Numerics.INVARIANT:
        return None
    return InvariantShape(sizes.rows, sizes.block_len, sizes.max_tree_depth, sizes.group_blocks)
