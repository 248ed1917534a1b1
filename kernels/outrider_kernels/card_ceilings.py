"""What a card can do at most, measured on it: bytes moved and products of matrices a second, for benchmarks to be judged by.

Data sheets give numbers no program reaches; a kernel is compared with a plain copy and a large product on the same card at the same
time. Must not know any kernel. Times come from the card's own events, best of many, each with a second-level cache that holds nothing of
the work's: a cache of 50 MB would keep many a benchmark's operands, and hand them out faster than memory can.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

REPEATS = 20
WARM_CALLS = 3
FLUSH_BYTES = 1 << 29  # ten times an H200's cache; reading it takes a card longer than Python takes to launch a kernel
COPY_BYTES = 1 << 30
PRODUCT_LEN = 8192
GOAL_SHARE = 0.7  # of the ceiling that a kernel is nearer to: what each of ours is to reach


@dataclass(frozen=True, slots=True)
class CardCeilings:
    """Measured ceilings. bytes_per_s counts reads and writes; operations_per_s counts additions and multiplications."""

    name: str
    bytes_per_s: float
    operations_per_s: float

    def report(self, spent_s: float, num_bytes: float, num_operations: float) -> dict[str, float]:
        """A kernel's time, the share of each ceiling it reached, the larger of the two, and the share that is the goal."""
        of_copy_bandwidth = num_bytes / spent_s / self.bytes_per_s
        of_product_rate = num_operations / spent_s / self.operations_per_s
        return {
            "us": spent_s * 1e6,
            "mbytes": num_bytes / 1e6,
            "mega_operations": num_operations / 1e6,
            "of_copy_bandwidth": of_copy_bandwidth,
            "of_product_rate": of_product_rate,
            "larger_share": max(of_copy_bandwidth, of_product_rate),
            "goal": GOAL_SHARE,
        }


def require_card() -> None:
    """End the program, with the reason, where there is no card: times of the interpreter would mean nothing."""
    if not torch.cuda.is_available():
        print("This benchmark needs a CUDA GPU, and torch sees none here. Nothing was measured.", file=sys.stderr)
        raise SystemExit(2)


class Timed(Protocol):
    """Seconds of one call of some work, as best_s says them."""

    def __call__(self, work: Callable[[], object], /) -> float: ...


class CardClock(Protocol):
    """A device's own time. Marks and flushes queue behind the work that was given to the device before."""

    def flush(self) -> None:
        """Push everything out of the device's cache."""
        ...

    def mark(self) -> Any:
        """This moment of the device."""
        ...

    def between_s(self, begin: Any, end: Any) -> float:
        """Seconds from one mark to the other; waits for the second."""
        ...


class EventClock:
    """CardClock of the current CUDA device, by its events."""

    def __init__(self) -> None:
        self._buffer = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")

    def flush(self) -> None:
        """Read more than the cache holds. What is written instead would be carried to memory during the work, at the work's cost."""
        self._buffer.sum()

    def mark(self) -> Any:
        """An event in the current stream."""
        event_type: Any = torch.cuda.Event  # torch leaves its constructor without types
        event = event_type(enable_timing=True)
        event.record()
        return event

    def between_s(self, begin: Any, end: Any) -> float:
        """torch counts in milliseconds."""
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


def best_s(work: Callable[[], object], repeats: int = REPEATS, clock: CardClock | None = None) -> float:
    """Best time of one call on the card, seconds; the first calls, which compile, do not count.

    The cache is flushed before each call, and while the card is busy with that, the host launches the work: what it takes to launch is in
    the time only as far as it is longer than a flush, or waits for the card.
    """
    clock = clock or EventClock()
    for _ in range(WARM_CALLS):
        work()
    times: list[float] = []
    for _ in range(repeats):
        clock.flush()
        begin = clock.mark()
        work()
        times.append(clock.between_s(begin, clock.mark()))
    return min(times)


def copy_bytes_per_s() -> float:
    """Of copying a gigabyte on the card, read and written."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.zeros_like(source)
    return 2 * COPY_BYTES / best_s(lambda: target.copy_(source))


def measure_ceilings(dtype: torch.dtype) -> CardCeilings:
    """A copy of a gigabyte, and a product of two square matrices of the dtype."""
    bytes_per_s = copy_bytes_per_s()
    left, right = torch.randn(2, PRODUCT_LEN, PRODUCT_LEN, device="cuda", dtype=dtype)
    product_s = best_s(lambda: left @ right)
    return CardCeilings(torch.cuda.get_device_name(), bytes_per_s, 2 * PRODUCT_LEN**3 / product_s)
