"""What a step costs over the paged cache against a contiguous one, at a given context: the price of pages must stay below 1.15.

Run: python kernels/benchmarks/bench_tree_attention.py [--context 2048] [--rows 8]
Prints a table and one JSON line. CPU time of this thread is measured, best of many, so that a busy machine disturbs less. `gathered`
is what we avoid: copying the whole cache together before attending.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor

from outrider_kernels.tree_attention import tree_attention

SHAPES = {"ref-large": (6, 2, 64), "ref-small": (2, 1, 64), "7B-like": (32, 8, 128)}
BLOCK_LEN = 32
REPEATS = 60


def best_us(work: Callable[[], Tensor]) -> float:
    """Best CPU time of one call, microseconds."""
    times = []
    for _ in range(REPEATS):
        begin = time.thread_time_ns()
        work()
        times.append(time.thread_time_ns() - begin)
    return min(times) / 1000


def measure(heads: int, kv_heads: int, dim: int, context: int, num_rows: int) -> dict[str, float]:
    """Microseconds of one layer's attention by cache layout."""
    query = torch.randn(num_rows, heads, dim)
    keys, values = torch.randn(2, kv_heads, context, dim)
    pool_keys, pool_values = torch.zeros(2, kv_heads, 4 * context, dim)
    mask = torch.zeros(num_rows, num_rows).masked_fill(torch.ones(num_rows, num_rows).triu(1).bool(), -torch.inf)
    begin = context // 2
    pool_keys[:, begin : begin + context], pool_values[:, begin : begin + context] = keys, values
    view = slice(begin, begin + context)
    quarter = context // 4
    runs = [slice(begin + index * quarter, begin + (index + 1) * quarter) for index in range(4)]
    slots = torch.arange(begin, begin + context)
    scaling = dim**-0.5
    return {
        "contiguous": best_us(lambda: tree_attention(query, [keys], [values], mask, scaling)),
        "paged": best_us(lambda: tree_attention(query, [pool_keys[:, view]], [pool_values[:, view]], mask, scaling)),
        "paged_4_runs": best_us(
            lambda: tree_attention(query, [pool_keys[:, run] for run in runs], [pool_values[:, run] for run in runs], mask, scaling)
        ),
        "gathered": best_us(
            lambda: tree_attention(query, [pool_keys.index_select(1, slots)], [pool_values.index_select(1, slots)], mask, scaling)
        ),
    }


def main() -> None:
    """Measure every shape and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, dict[str, float]] = {}
    with torch.inference_mode():
        for name, (heads, kv_heads, dim) in SHAPES.items():
            times = measure(heads, kv_heads, dim, arguments.context, arguments.rows)
            report[name] = {layout: round(spent / times["contiguous"], 3) for layout, spent in times.items()}
            print(f"{name:10s}", "  ".join(f"{layout} {spent:8.1f} us" for layout, spent in times.items()))
    print("RESULT", json.dumps({"context": arguments.context, "rows": arguments.rows, "ratio_to_contiguous": report}))


if __name__ == "__main__":
    main()
