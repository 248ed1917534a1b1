"""The compiled attention of one layer on a CPU: time, bytes and operations against the processor's measured ceilings.

Run: python kernels/benchmarks/bench_thin_attention.py [--context 1024] [--threads 1]
Before anything is timed, the result is compared with the fp64 definition. Bytes are keys and values, read once; operations the products of
scores and of the mixture. `torch` is scaled_dot_product_attention over the same keys, without turning and storing. Prints a table by rows
and one JSON line.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch

from outrider_kernels.card_ceilings import CardCeilings, Timed
from outrider_kernels.host_ceilings import host_best_s, measure_host_ceilings
from outrider_kernels.thin_attention import HeadSizes, RowKeys, ThinAttention, ThinStep
from outrider_kernels.thin_team import ThinTeam
from outrider_kernels.tree_attention import reference_tree_attention

SIZES = HeadSizes(16, 4, 64, 1e-5)
ROWS = (1, 4, 8, 16)
FLOAT_BYTES = 4
WORST_ERROR = 1e-5


class Case:
    """Rows at the end of one sequence, each of which sees those before it; nothing is turned."""

    def __init__(self, team: ThinTeam, context: int, num_rows: int) -> None:
        draw = np.random.default_rng(0)
        num_all = SIZES.num_heads + 2 * SIZES.num_kv_heads
        self.context, self.num_rows = context, num_rows
        self.first = draw.standard_normal((num_rows, num_all * SIZES.dim)).astype(np.float32)
        self.heads, self.attended = self.first.copy(), np.empty((num_rows, SIZES.num_heads * SIZES.dim), np.float32)
        self.pool = draw.standard_normal((2, SIZES.num_kv_heads, context, SIZES.dim)).astype(np.float32)
        rotations = np.tile(np.array([1.0, 0.0], np.float32), (context, SIZES.dim // 2))
        self.attention = ThinAttention(team, SIZES, self.heads, self.attended, self.pool, rotations)
        places = np.arange(context - num_rows, context)
        mask = np.where(np.tri(num_rows, dtype=np.bool_), np.float32(0.0), np.float32(-np.inf))
        self.step = ThinStep(places, places.copy(), [RowKeys(0, num_rows, ((0, context),), mask)])

    def run(self) -> None:
        """Heads are spoilt by a run, which changes no time."""
        self.attention.run(self.step)

    def check(self) -> None:
        """An operation that is wrong is not worth timing."""
        self.heads[:] = self.first
        self.run()
        query = torch.from_numpy(self.first).view(self.num_rows, -1, SIZES.dim)[:, : SIZES.num_heads]
        keys, values = torch.from_numpy(self.pool)
        visible = torch.ones(self.num_rows, self.context, dtype=torch.bool).tril(self.context - self.num_rows)
        expected = reference_tree_attention(query, keys, values, visible, SIZES.dim**-0.5).flatten(1)
        if float((torch.from_numpy(self.attended) - expected).abs().max()) > WORST_ERROR:
            raise SystemExit("The operation is wrong on this machine. Nothing was timed.")

    def torch_s(self, timed: Timed) -> float:
        """Of torch's own attention."""
        query = torch.randn(1, SIZES.num_heads, self.num_rows, SIZES.dim)
        keys, values = (part.unsqueeze(0) for part in torch.from_numpy(self.pool))
        mask = torch.ones(self.num_rows, self.context, dtype=torch.bool).tril(self.context - self.num_rows)
        return timed(lambda: torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True))


def measure(context: int, team: ThinTeam, ceilings: CardCeilings, timed: Timed = host_best_s) -> dict[int, dict[str, float]]:
    """By number of rows, checked and timed."""
    report: dict[int, dict[str, float]] = {}
    for num_rows in ROWS:
        case = Case(team, context, num_rows)
        case.check()
        num_bytes = 2 * SIZES.num_kv_heads * context * SIZES.dim * FLOAT_BYTES
        num_operations = 4 * num_rows * SIZES.num_heads * context * SIZES.dim
        report[num_rows] = ceilings.report(timed(case.run), num_bytes, num_operations) | {"torch_us": case.torch_s(timed) * 1e6}
    return report


def main() -> None:
    """Check, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    ceilings = measure_host_ceilings(arguments.threads)
    report = measure(arguments.context, ThinTeam(arguments.threads), ceilings)
    for num_rows, found in report.items():
        print(f"{num_rows:3d} rows", "  ".join(f"{key} {value:.3g}" for key, value in found.items()))
    print("RESULT", json.dumps({**vars(arguments), "rows": report}))


if __name__ == "__main__":
    main()
