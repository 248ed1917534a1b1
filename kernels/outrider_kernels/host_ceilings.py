"""What a processor can do at most, measured on it, as card_ceilings.py says it of a card: for benchmarks of operations on a CPU.

Bytes a second are those of a plain copy, operations those of a large product of float32 matrices, each with as many threads as what is
measured. Times are the quickest of several, each with caches that hold nothing of the work's. Must not know any kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from outrider_kernels.card_ceilings import CardCeilings, best_s

FLUSH_BYTES = 1 << 26  # beyond the caches of most processors, and written in some ten milliseconds
COPY_BYTES = 1 << 27
PRODUCT_LEN = 1024


class HostClock:
    """CardClock of a processor."""

    def __init__(self) -> None:
        self._buffer = torch.empty(FLUSH_BYTES, dtype=torch.uint8)

    def flush(self) -> None:
        """Write more than caches hold."""
        self._buffer.zero_()

    def mark(self) -> float:
        """Seconds of the monotonic clock."""
        return time.perf_counter()

    def between_s(self, begin: float, end: float) -> float:
        """The work is done when its call returns."""
        return end - begin


def host_best_s(work: Callable[[], object]) -> float:
    """Best time of one call on this processor, seconds; the first calls do not count."""
    return best_s(work, clock=HostClock())


def measure_host_ceilings(num_threads: int) -> CardCeilings:
    """A copy, and a product of two square float32 matrices, by so many threads; torch keeps that number."""
    torch.set_num_threads(num_threads)
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8)
    target = torch.zeros_like(source)
    copy_s = host_best_s(lambda: target.copy_(source))
    left, right = torch.randn(2, PRODUCT_LEN, PRODUCT_LEN)
    product_s = host_best_s(lambda: left @ right)
    return CardCeilings(f"{num_threads} threads", 2 * COPY_BYTES / copy_s, 2 * PRODUCT_LEN**3 / product_s)
