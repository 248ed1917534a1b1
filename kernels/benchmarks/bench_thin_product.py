"""Thin products against numpy's for all matrices of a model, by number of rows: what products cost, and what narrower numbers save.

Run: python kernels/benchmarks/bench_thin_product.py [--shape ref-large] [--threads 1] [--streamed]
Prints a table and one JSON line: milliseconds, the quickest of interleaved repetitions, and multiply-adds per second. `half` keeps weights
as bfloat16, `float` as float32: the same bits come out. `pairs`, `float16` and `fixed16` round the rows too, to bfloat16, to float16
and to whole numbers by blocks, where the processor multiplies such. `int8`, `quads` and `fixed8` have other weights: rounded ones; the
latter two round the rows as well, as guesses are made. numpy has the layout that suits it best.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits

from outrider_kernels.int8_weight import Int8Weight
from outrider_kernels.thin_matrix import ThinMatrix
from outrider_kernels.thin_product import ThinProduct
from outrider_kernels.thin_team import ThinTeam, multiplies_bfloat16, multiplies_bytes, multiplies_fixed16, multiplies_float16

FloatArray = npt.NDArray[np.float32]

# inputs and outputs of every matrix of a step: layers times (qkv, output, gate and up, down), and the head
SHAPES = {
    "ref-large": [*([(384, 640), (384, 384), (384, 1792), (896, 384)] * 6), (384, 2048)],
    "ref-small": [*([(128, 256), (128, 128), (128, 704), (352, 128)] * 3), (128, 2048)],
    "1B-like layer": [(2048, 3072), (2048, 2048), (2048, 16384), (8192, 2048)],
}
ROWS = (1, 2, 4, 6, 8, 12, 16, 32, 64)
NUMPY = "numpy"
REPEATS = 60  # of which the quickest counts: a loaded machine only ever adds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Thin products against numpy's.")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="ref-large", help="whose matrices (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of either (%(default)s)")
    parser.add_argument("--streamed", action="store_true", help="as matrices of a model that no cache keeps are multiplied")
    given = parser.parse_args()
    with threadpool_limits(given.threads, user_api="blas"):
        result = measure(SHAPES[given.shape], ThinTeam(given.threads), given.streamed)
    ways = list(result[1])
    print("| rows | " + " | ".join(f"{way}, ms" for way in ways) + " | best, G multiply-adds/s |\n" + "|---" * (len(ways) + 2) + "|")
    size = sum(inputs * outputs for inputs, outputs in SHAPES[given.shape])
    for num_rows, row in result.items():
        times = " | ".join(f"{row[way]:.2f}" for way in ways)
        print(f"| {num_rows} | {times} | {num_rows * size / min(row.values()) / 1e6:.1f} |")
    print(json.dumps({"shape": given.shape, "threads": given.threads, "streamed": given.streamed, "ms": result}))


def measure(shapes: list[tuple[int, int]], team: ThinTeam, streamed: bool) -> dict[int, dict[str, float]]:
    """Milliseconds of all products by number of rows and way."""
    generator = np.random.default_rng(0)
    most = max(ROWS)
    narrow = {"pairs": ThinMatrix.pack_pairs} if multiplies_bfloat16() else {}
    narrow |= {"float16": ThinMatrix.pack_float16} if multiplies_float16() else {}
    narrow |= {"fixed16": ThinMatrix.pack_fixed16} if multiplies_fixed16() else {}
    of_bytes = {"int8": ThinMatrix.pack_int8}
    of_bytes |= {"quads": ThinMatrix.pack_quads} if multiplies_bytes() else {}
    of_bytes |= {"fixed8": ThinMatrix.pack_fixed8} if multiplies_fixed16() else {}
    ways: dict[str, list[Callable[[int], object]]] = {way: [] for way in (*of_bytes, *narrow, "half", "float", NUMPY)}
    for inputs, outputs in shapes:
        weight = generator.standard_normal((outputs, inputs)).astype(np.float32)
        halves = (weight.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        rows, out = generator.standard_normal((most, inputs)).astype(np.float32), np.empty((most, outputs), np.float32)
        int8 = Int8Weight.of(torch.from_numpy(weight))
        for way, pack_bytes in of_bytes.items():
            ways[way].append(_product(team, pack_bytes(int8.values.numpy(), int8.scale.numpy()), rows, out, streamed))
        for way, pack in narrow.items():
            ways[way].append(_product(team, pack(halves), rows, out, streamed))
        ways["half"].append(_product(team, ThinMatrix.pack(halves), rows, out, streamed))
        ways["float"].append(_product(team, ThinMatrix.pack(weight), rows, out, streamed))
        ways[NUMPY].append(_numpy_product(rows, np.ascontiguousarray(weight.T)))
    found: dict[int, dict[str, float]] = {}
    for num_rows in ROWS:
        times: dict[str, list[float]] = {way: [] for way in ways}
        # numpy by itself: its threads spin for a while after each product, on the cores of the team's
        for together in ([way for way in ways if way != NUMPY], [NUMPY]):
            for way in together * REPEATS:
                begin = time.perf_counter()
                for product in ways[way]:
                    product(num_rows)
                times[way].append(1000.0 * (time.perf_counter() - begin))
        found[num_rows] = {way: min(values) for way, values in times.items()}
    return found


def _product(team: ThinTeam, matrix: ThinMatrix, rows: FloatArray, out: FloatArray, streamed: bool) -> Callable[[int], object]:
    product = ThinProduct(team, matrix, rows, out)
    if streamed:
        product.stream()
    return product.run


def _numpy_product(rows: FloatArray, matrix: FloatArray) -> Callable[[int], object]:
    return lambda num_rows: rows[:num_rows] @ matrix


if __name__ == "__main__":
    main()
