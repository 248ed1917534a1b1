"""A layer's MLP by number of rows, as a program runs it: norm, the product with gate and up, the gate, the product with what comes of it.

Run: python kernels/benchmarks/bench_thin_mlp.py [--shape ref-large] [--threads 1]
Prints a table and one JSON line: milliseconds, medians, and billions of multiply-adds per second. There are as many layers
as do not fit into a shared cache (LEAST_BYTES), one after another, as in a forward. The weights are bfloat16 numbers, and the rows
are rounded to such where the processor multiplies them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from outrider_kernels.thin_gate import ThinGate
from outrider_kernels.thin_matrix import ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct
from outrider_kernels.thin_program import ThinProgram
from outrider_kernels.thin_team import ThinTeam, multiplies_bfloat16

FloatArray = npt.NDArray[np.float32]

# hidden size and neurons; "wide" is ref-large with sixteen times the neurons (`outrider bench --made widened`)
SHAPES = {"ref-large": (384, 896), "wide": (384, 14336), "1B-like": (2048, 8192), "8B-like": (4096, 14336)}
ROWS = (1, 16, 32, 64, 128, 256, 512)
LEAST_BYTES = 200_000_000
REPEATS = 8


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="A layer's MLP by number of rows.")
    parser.add_argument("--shape", choices=list(SHAPES), default="ref-large", help="whose layers (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="that work (%(default)s)")
    given = parser.parse_args()
    hidden, length = SHAPES[given.shape]
    num_layers = max(1, LEAST_BYTES // (6 * hidden * length))
    found = measure(hidden, length, num_layers, ThinTeam(given.threads), time.perf_counter)
    print("| rows | ms | G multiply-adds/s |\n|---|---|---|")
    for num_rows, taken_ms in found.items():
        print(f"| {num_rows} | {taken_ms:.2f} | {3 * num_rows * hidden * length / taken_ms / 1e6:.0f} |")
    print(json.dumps({"shape": given.shape, "threads": given.threads, "ms": found}))


def measure(hidden: int, length: int, num_layers: int, team: ThinTeam, clock: Callable[[], float]) -> dict[int, float]:
    """Milliseconds by number of rows, of one layer. clock: seconds."""
    most = max(ROWS)
    rows = np.random.default_rng(0).standard_normal((most, hidden)).astype(np.float32)
    gate_up, gated, out = (np.zeros((most, columns), np.float32) for columns in (2 * length, length, hidden))
    layers = []
    for seed in range(num_layers):
        down = ThinProduct(team, _matrix(length, hidden, seed), gated, out, adds=True)
        up = ThinProduct(team, _matrix(hidden, 2 * length, seed), rows, gate_up, norm=RowNorm(np.ones(hidden, np.float32), 1e-5))
        layers.append(ThinProgram(team, [up, ThinGate(team, gate_up, gated, down), down]))
    found = {}
    for num_rows in ROWS:
        times = []
        for program in layers * REPEATS:
            began = clock()
            program.run(num_rows, [])
            times.append(1000.0 * (clock() - began))
        found[num_rows] = statistics.median(times)
    return found


def _matrix(inputs: int, outputs: int, seed: int) -> ThinMatrix:
    weight = np.random.default_rng(seed).standard_normal((outputs, inputs), dtype=np.float32) / np.float32(np.sqrt(inputs))
    halves = (weight.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return ThinMatrix.pack_pairs(halves) if multiplies_bfloat16() else ThinMatrix.pack(halves)


if __name__ == "__main__":
    main()
