"""The fused pick under filters and penalties in Triton on a card: time, bytes and operations against the card's measured ceilings.

Run: python kernels/benchmarks/bench_triton_filtered_pick.py [--rows 64] [--vocab 151936] [--touched 256]
Needs a CUDA GPU. Before anything is timed, what it decides on a small vocabulary is compared with the reference's picks, and at least half
of the rows must be decided. Bytes are the logits, read twice: once for the winner, once for the masses. Operations are the float64 ones of
the noise, about 70 a token, against the card's measured rate of float64 products, which no elementwise kernel reaches. `penalised`: as many
tokens of every row as --touched says have a penalty. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
from functools import partial

import torch
from torch import Tensor

from outrider.noise.reference_pick import min_p_gap, reference_pick
from outrider.types.sampling import SamplingParams
from outrider_kernels.card_ceilings import CardCeilings, Timed, best_s, measure_ceilings, require_card
from outrider_kernels.pick_rows import TouchedTokens
from outrider_kernels.triton_filtered_pick import LEFT, FilteredRows, filtered_pick

OPERATIONS_PER_TOKEN = 70
CHECKED_ROWS, CHECKED_IDS, CHECKED_TOUCHED = 16, 3001, 40
KEY = 12345
WAYS = {
    "free": SamplingParams(temperature=0.7),
    "filtered": SamplingParams(temperature=0.7, top_k=200, top_p=0.9, min_p=0.01),
    "penalised": SamplingParams(temperature=0.7, top_p=0.9, repetition_penalty=1.3, presence_penalty=2.0, frequency_penalty=1.0),
}


def rows_of(params: SamplingParams, num_rows: int, num_touched: int, device: str = "cuda") -> FilteredRows:
    """Neighbouring positions of one request. num_touched: the ids 0, 3, 6, ... that its output holds once, if it has penalties."""

    def column(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.full((num_rows,), value, dtype=dtype, device=device)

    touched = None
    if params.has_penalties:
        ids = torch.arange(num_touched, dtype=torch.int32, device=device).mul(3).repeat(num_rows, 1)
        penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        lens = torch.full((num_rows,), num_touched, dtype=torch.int32, device=device)
        touched = TouchedTokens(lens, ids, torch.ones_like(ids), torch.zeros_like(ids, dtype=torch.float64), *map(column, penalties))
    return FilteredRows(
        torch.full((num_rows,), KEY, dtype=torch.int64, device=device), torch.arange(num_rows, device=device), column(params.temperature),
        torch.full((num_rows,), params.top_k, dtype=torch.int64, device=device), column(params.top_p), column(min_p_gap(params)),
        touched=touched,
    )  # fmt: skip


def answers(num_rows: int, device: str = "cuda") -> tuple[Tensor, Tensor]:
    """Where picks and probabilities go."""
    return torch.empty(num_rows, dtype=torch.int32, device=device), torch.full((num_rows,), math.nan, device=device)


def check(device: str = "cuda") -> None:
    """A kernel that is wrong on this card is not worth timing."""
    output = list(range(0, 3 * CHECKED_TOUCHED, 3))
    logits = torch.randn(CHECKED_ROWS, CHECKED_IDS, generator=torch.Generator().manual_seed(0)) * 4
    logits[:, output] += 5.0  # so that penalties decide
    logits = logits.to(device)
    for name, params in WAYS.items():
        tokens, probs = answers(CHECKED_ROWS, device)
        filtered_pick(logits, rows_of(params, CHECKED_ROWS, CHECKED_TOUCHED, device), tokens, probs)
        right = [reference_pick(row.numpy(), params, KEY, position, [], output) for position, row in enumerate(logits.cpu())]
        decided = [(got, expected) for got, expected in zip(tokens.tolist(), right, strict=True) if got != LEFT]
        if len(decided) < CHECKED_ROWS // 2 or any(got != expected for got, expected in decided):
            raise SystemExit(f"The card's picks ({name}) are not the reference's. Nothing was timed.")


def measure(
    num_rows: int, num_ids: int, num_touched: int, ceilings: CardCeilings, device: str = "cuda", timed: Timed = best_s
) -> dict[str, dict[str, float]]:
    """Float32 logits, as a head writes them."""
    logits = torch.randn(num_rows, num_ids, device=device)
    report: dict[str, dict[str, float]] = {}
    for name, params in WAYS.items():
        work = partial(filtered_pick, logits, rows_of(params, num_rows, num_touched, device), *answers(num_rows, device))
        report[name] = ceilings.report(timed(work), 2 * logits.nbytes, logits.numel() * OPERATIONS_PER_TOKEN)
    return report


def main() -> None:
    """Check, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--touched", type=int, default=256)
    arguments = parser.parse_args()
    require_card()
    check()
    ceilings = measure_ceilings(torch.float64)
    print(f"{ceilings.name}: copies {ceilings.bytes_per_s / 1e12:.2f} TB/s, float64 products {ceilings.operations_per_s / 1e12:.1f} T/s")
    report = measure(arguments.rows, arguments.vocab, arguments.touched, ceilings)
    for name, found in report.items():
        print(f"{name:10s}", "  ".join(f"{key} {value:.3g}" for key, value in found.items()))
    print("RESULT", json.dumps({"card": ceilings.name, **vars(arguments), "ways": report}))


if __name__ == "__main__":
    main()
