"""The compiled pick on a CPU: time, bytes and operations against the processor's measured ceilings.

Run: python kernels/benchmarks/bench_thin_pick.py [--rows 8] [--vocab 32768] [--threads 1]
Before anything is timed, what it decides is compared with the reference's picks. Bytes are the logits, read once; operations a hash and an
exponential, about 30 a token, for noise, and one for the argmax. `torch_argmax` reads the same logits. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from outrider.noise.reference_pick import min_p_gap, reference_pick
from outrider.types.sampling import SamplingParams
from outrider_kernels.card_ceilings import CardCeilings, Timed
from outrider_kernels.host_ceilings import host_best_s, measure_host_ceilings
from outrider_kernels.thin_pick import LEFT, PickRule, ThinPick
from outrider_kernels.thin_team import ThinTeam

KEY = 12345
OPERATIONS_PER_TOKEN = {"greedy": 1, "warm": 30, "top p": 40, "top k": 1}
WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "warm": SamplingParams(temperature=0.7),
    "top p": SamplingParams(temperature=0.7, top_p=0.9),
    "top k": SamplingParams(temperature=0.7, top_k=20, top_p=0.8),
}


def measure(num_rows: int, num_ids: int, team: ThinTeam, ceilings: CardCeilings, timed: Timed = host_best_s) -> dict[str, dict[str, float]]:
    """By way of sampling, checked and timed."""
    logits = (np.random.default_rng(0).standard_normal((num_rows, num_ids)) * 4).astype(np.float32)
    picker, positions = ThinPick(team), range(num_rows)
    report: dict[str, dict[str, float]] = {}
    for name, params in WAYS.items():
        groups: list[tuple[PickRule, Sequence[int]]] = [
            (PickRule(KEY, params.temperature, params.top_p, min_p_gap(params), True, top_k=params.top_k), positions)
        ]
        right = [reference_pick(row, params, KEY, position, [], []) for position, row in zip(positions, logits, strict=True)]
        if any(got not in (LEFT, expected) for got, expected in zip(picker.run(logits, groups).tokens.tolist(), right, strict=True)):
            raise SystemExit(f"The picks ({name}) are not the reference's. Nothing was timed.")
        spent_s = timed(partial(picker.run, logits, groups))
        reached = ceilings.report(spent_s, logits.nbytes, logits.size * OPERATIONS_PER_TOKEN[name])
        report[name] = reached | {"torch_argmax_us": timed(partial(torch.argmax, torch.from_numpy(logits), dim=1)) * 1e6}
    return report


def main() -> None:
    """Check, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    ceilings = measure_host_ceilings(arguments.threads)
    report = measure(arguments.rows, arguments.vocab, ThinTeam(arguments.threads), ceilings)
    for name, found in report.items():
        print(f"{name:8s}", "  ".join(f"{key} {value:.3g}" for key, value in found.items()))
    print("RESULT", json.dumps({**vars(arguments), "ways": report}))


if __name__ == "__main__":
    main()
