"""The compiled gate on a CPU: time, bytes and operations against the processor's measured ceilings.

Run: python kernels/benchmarks/bench_thin_gate.py [--length 8192] [--threads 1]
Before anything is timed, the result is compared with the definition. Bytes are gates and values read, and products written; operations are
those of an exponential and a division, about 20 an element. `torch` is silu of one half times the other. Prints a table by rows and one
JSON line. The gate works on the caller's thread alone: --threads is that of the ceilings and of torch.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import numpy as np
import torch

from outrider_kernels.card_ceilings import CardCeilings, Timed
from outrider_kernels.host_ceilings import host_best_s, measure_host_ceilings
from outrider_kernels.thin_gate import ThinGate, reference_gate
from outrider_kernels.thin_team import ThinTeam

ROWS = (1, 4, 16, 64)
FLOAT_BYTES, OPERATIONS_PER_ELEMENT = 4, 20
WORST_ERROR = 1e-5


def measure(length: int, ceilings: CardCeilings, timed: Timed = host_best_s) -> dict[int, dict[str, float]]:
    """By number of rows, checked and timed."""
    gate_up = np.random.default_rng(0).standard_normal((max(ROWS), 2 * length)).astype(np.float32)
    out = np.empty((max(ROWS), length), np.float32)
    gate = ThinGate(ThinTeam(1), gate_up, out)
    gate.run(max(ROWS))
    if float(np.abs(out - reference_gate(gate_up)).max()) > WORST_ERROR:
        raise SystemExit("The operation is wrong on this machine. Nothing was timed.")
    report: dict[int, dict[str, float]] = {}
    for num_rows in ROWS:
        left, right = torch.from_numpy(gate_up[:num_rows]).chunk(2, dim=1)
        reached = ceilings.report(
            timed(partial(gate.run, num_rows)), 3 * num_rows * length * FLOAT_BYTES, num_rows * length * OPERATIONS_PER_ELEMENT
        )
        report[num_rows] = reached | {"torch_us": timed(partial(torch_gate, left, right)) * 1e6}
    return report


def torch_gate(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The same by torch."""
    return torch.nn.functional.silu(left) * right


def main() -> None:
    """Check, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    report = measure(arguments.length, measure_host_ceilings(arguments.threads))
    for num_rows, found in report.items():
        print(f"{num_rows:3d} rows", "  ".join(f"{key} {value:.3g}" for key, value in found.items()))
    print("RESULT", json.dumps({**vars(arguments), "rows": report}))


if __name__ == "__main__":
    main()
