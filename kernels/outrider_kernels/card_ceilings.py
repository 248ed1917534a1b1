"""What a card can do at most, measured on it: bytes moved and products of matrices a second, for benchmarks to be judged by.

Data sheets give numbers no program reaches; a kernel is compared with a plain copy and a large product on the same card at the same
time. Must not know any kernel. Times come from the card's own events, best of many.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

REPEATS = 20
COPY_BYTES = 1 << 30
PRODUCT_LEN = 8192


@dataclass(frozen=True, slots=True)
class CardCeilings:
    """Measured ceilings. bytes_per_s counts reads and writes; operations_per_s counts additions and multiplications."""

    name: str
    bytes_per_s: float
    operations_per_s: float

    def report(self, spent_s: float, num_bytes: float, num_operations: float) -> dict[str, float]:
        """A kernel's time, and the share of each ceiling it reached."""
        return {
            "us": spent_s * 1e6,
            "mbytes": num_bytes / 1e6,
            "mega_operations": num_operations / 1e6,
            "of_copy_bandwidth": num_bytes / spent_s / self.bytes_per_s,
            "of_product_rate": num_operations / spent_s / self.operations_per_s,
        }


def require_card() -> None:
    """End the program, with the reason, where there is no card: times of the interpreter would mean nothing."""
    if not torch.cuda.is_available():
        print("This benchmark needs a CUDA GPU, and torch sees none here. Nothing was measured.", file=sys.stderr)
        raise SystemExit(2)


def best_s(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Best time of one call on the card, seconds; the first calls, which compile, do not count."""
    for _ in range(3):
        work()
    times: list[float] = []
    event: Any = torch.cuda.Event  # torch leaves its constructor without types
    for _ in range(repeats):
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    return min(times)


def measure_ceilings(dtype: torch.dtype) -> CardCeilings:
    """A copy of a gigabyte, and a product of two square matrices of the dtype."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy_s = best_s(lambda: target.copy_(source))
    left, right = torch.randn(2, PRODUCT_LEN, PRODUCT_LEN, device="cuda", dtype=dtype)
    product_s = best_s(lambda: left @ right)
    return CardCeilings(torch.cuda.get_device_name(), 2 * COPY_BYTES / copy_s, 2 * PRODUCT_LEN**3 / product_s)
