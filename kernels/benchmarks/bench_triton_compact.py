"""Moving an accepted path's cache rows on a card, all layers: time, bytes and operations against the card's measured ceilings.

Run: python kernels/benchmarks/bench_triton_compact.py [--moves 8] [--context 4096]
Needs a CUDA GPU. Before anything is timed, the result is compared with the plain compaction, overlaps included. Bytes are each moved
row read once and written once; there are no operations. `torch` is the plain compaction, one gather and one scatter a layer. Both times
include what the host does in between, which for so few bytes is most of it: slots travel to the card by a copy that it waits for. Prints a
table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from outrider_kernels.card_ceilings import CardCeilings, Timed, best_s, measure_ceilings, require_card
from outrider_kernels.compact import compact
from outrider_kernels.triton_compact import compact_tables, pool_tables

SHAPES: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {"8B-like": (32, 8, 128), "1B-like": (16, 8, 64), "70B-like, one of 8": (80, 1, 128)}
)  # layers, kv_heads, dim


def check(pools: list[Tensor], num_moves: int) -> None:
    """A kernel that is wrong on this card is not worth timing. The moves form one cycle: every row is source and destination."""
    slots = list(range(num_moves))
    expected = [pool.clone() for pool in pools]
    compact(expected, [*slots[1:], 0], slots)
    compact_tables(pool_tables(pools), [*slots[1:], 0], slots)
    if not all(torch.equal(got, want) for got, want in zip(pools, expected, strict=True)):
        raise SystemExit("The kernel is wrong on this card. Nothing was timed.")


def measure(
    num_moves: int,
    context: int,
    ceilings: CardCeilings,
    device: str = "cuda",
    timed: Timed = best_s,
    shapes: Mapping[str, tuple[int, int, int]] = SHAPES,
) -> dict[str, dict[str, float]]:
    """Every shape, checked and timed. A path of every second row moves to the front."""
    source = [context + 2 * index + 1 for index in range(num_moves)]
    destination = [context + index for index in range(num_moves)]
    num_slots = context + 2 * num_moves + 1
    report: dict[str, dict[str, float]] = {}
    for name, (layers, kv_heads, dim) in shapes.items():
        pools = [torch.randn(2, kv_heads, num_slots, dim, device=device, dtype=torch.bfloat16) for _ in range(layers)]
        check(pools, min(num_slots, 32))
        spent_s = timed(partial(compact_tables, pool_tables(pools), source, destination))
        num_bytes = 2 * 2 * 2 * layers * kv_heads * dim * num_moves
        report[name] = ceilings.report(spent_s, num_bytes, 0) | {"torch_us": timed(partial(compact, pools, source, destination)) * 1e6}
    return report


def main() -> None:
    """Measure every shape and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=8)
    parser.add_argument("--context", type=int, default=4096)
    arguments = parser.parse_args()
    require_card()
    ceilings = measure_ceilings(torch.bfloat16)
    print(f"{ceilings.name}: copies {ceilings.bytes_per_s / 1e12:.2f} TB/s")
    report = measure(arguments.moves, arguments.context, ceilings)
    for name, found in report.items():
        print(f"{name:20s}", "  ".join(f"{key} {value:.3g}" for key, value in found.items()))
    print("RESULT", json.dumps({"card": ceilings.name, "moves": arguments.moves, "context": arguments.context, "shapes": report}))


if __name__ == "__main__":
    main()
