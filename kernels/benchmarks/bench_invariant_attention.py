"""Fixed-order attention of one tile on a CPU: time, bytes and operations against the processor's measured ceilings.

Run: python kernels/benchmarks/bench_invariant_attention.py [--context 2048] [--threads 1]
Before anything is timed, the result is compared with the fp64 definition. The tile's rows are the last positions of one sequence. Bytes
are keys and values, read once, and each row's window, gathered; operations the products, padding rows included, since they are computed.
`torch` is the plain attention of the same rows, in an order that depends on its shapes: the difference is the price. Prints a table by
rows and one JSON line.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_kernels.card_ceilings import CardCeilings, Timed
from outrider_kernels.host_ceilings import host_best_s, measure_host_ceilings
from outrider_kernels.invariant_attention import HIDDEN_SCORE, InvariantRows, InvariantShape, invariant_attention
from outrider_kernels.tree_attention import reference_tree_attention, tree_attention

HEADS, KV_HEADS, DIM = 16, 4, 64
ROWS = (1, 4, 16)
SHAPE = InvariantShape()
FLOAT_BYTES = 4
WORST_ERROR = 1e-5


@dataclass(frozen=True, slots=True)
class Case:
    """query: [rows, heads, dim]; keys, values: [kv_heads, context, dim], slots in order of position."""

    query: Tensor
    keys: Tensor
    values: Tensor
    rows: InvariantRows

    def run(self) -> Tensor:
        """The operation."""
        return invariant_attention(self.query, self.keys, self.values, self.rows, SHAPE, DIM**-0.5)

    def torch(self) -> Tensor:
        """Plain attention, with a mask of the last keys."""
        num_rows = len(self.query)
        mask = torch.zeros(num_rows, num_rows).masked_fill(~torch.ones(num_rows, num_rows, dtype=torch.bool).tril(), -torch.inf)
        return tree_attention(self.query, [self.keys], [self.values], mask if num_rows > 1 else None, DIM**-0.5)

    def check(self) -> None:
        """An operation that is wrong is not worth timing."""
        num_rows, context = len(self.query), self.keys.shape[1]
        visible = torch.ones(num_rows, context, dtype=torch.bool).tril(context - num_rows)
        expected = reference_tree_attention(self.query, self.keys, self.values, visible, DIM**-0.5)
        if float((self.run() - expected).abs().max()) > WORST_ERROR:
            raise SystemExit("The operation is wrong on this machine. Nothing was timed.")


def case_of(context: int, num_rows: int) -> Case:
    """The last rows of a sequence of so many tokens."""
    generator = torch.Generator().manual_seed(0)
    positions = range(context - num_rows, context)
    starts = [SHAPE.window_start(position) for position in positions]
    places = torch.tensor(starts)[:, None] + torch.arange(SHAPE.window_len)
    hidden = places > torch.tensor(list(positions))[:, None]
    bias = torch.zeros(places.shape).masked_fill(hidden, HIDDEN_SCORE)[:, None]
    num_blocks = max(starts) // SHAPE.block_len
    block_hidden = torch.ones(num_blocks, SHAPE.num_rows, dtype=torch.bool)
    for row, start in enumerate(starts):
        block_hidden[: start // SHAPE.block_len, row] = False
    rows = InvariantRows(
        num_rows, places.clamp(max=context - 1).flatten(), bias, 0, num_blocks, ((0, num_blocks * SHAPE.block_len),), block_hidden, None
    )
    keys, values = torch.randn(2, KV_HEADS, context, DIM, generator=generator)
    return Case(torch.randn(num_rows, HEADS, DIM, generator=generator), keys, values, rows)


def measure(context: int, ceilings: CardCeilings, timed: Timed = host_best_s) -> dict[int, dict[str, float]]:
    """By number of rows, checked and timed."""
    report: dict[int, dict[str, float]] = {}
    for num_rows in ROWS:
        case = case_of(context, num_rows)
        case.check()
        num_shared = case.rows.num_blocks * SHAPE.block_len
        num_bytes = 2 * KV_HEADS * DIM * FLOAT_BYTES * (num_shared + num_rows * SHAPE.window_len)
        num_operations = 4 * HEADS * DIM * (SHAPE.num_rows * num_shared + num_rows * SHAPE.window_len)
        reached = ceilings.report(timed(case.run), num_bytes, num_operations)
        report[num_rows] = reached | {"torch_us": timed(case.torch) * 1e6}
    return report


def main() -> None:
    """Check, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    report = measure(arguments.context, measure_host_ceilings(arguments.threads))
    for num_rows, found in report.items():
        print(f"{num_rows:3d} rows", "  ".join(f"{key} {value:.3g}" for key, value in found.items()))
    print("RESULT", json.dumps({**vars(arguments), "rows": report}))


if __name__ == "__main__":
    main()
