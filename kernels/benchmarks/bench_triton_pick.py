"""The fused pick in Triton on a card: time, bytes and operations against the card's measured ceilings.

Run: python kernels/benchmarks/bench_triton_pick.py [--rows 64] [--vocab 151936]
Needs a CUDA GPU. Before anything is timed, the card's noise is compared with the definition in every bit, and picks with the
reference. Bytes are the logits, read once. Operations are the float64 ones of the noise, about 70 a token, against the card's measured
rate of float64 products, which no elementwise kernel reaches. `torch_argmax` reads the same logits and draws nothing.
Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import numpy as np
import torch

from outrider.noise.field import bits, gumbel
from outrider.noise.reference_pick import reference_pick
from outrider.types.sampling import SamplingParams
from outrider_kernels import triton_noise
from outrider_kernels.card_ceilings import CardCeilings, Timed, best_s, measure_ceilings, require_card
from outrider_kernels.pick_rows import PickRows
from outrider_kernels.triton_pick import pick

OPERATIONS_PER_TOKEN = 70
NUM_CHECKED = 1 << 20
CHECKED_IDS = 5000


def check_noise(num_checked: int = NUM_CHECKED, device: str = "cuda") -> None:
    """Noise that differs in a bit makes this card's picks its own."""
    keys, positions, tokens = np.random.default_rng(0).integers(0, 1 << 31, (3, num_checked))
    keys = keys * 0x1234567 + 1
    on_card = [torch.from_numpy(part).to(device) for part in (keys, positions, tokens)]
    got_bits, got = triton_noise.gumbel(*on_card)
    unsigned = keys.view(np.uint64)
    if not np.array_equal(got_bits.cpu().numpy().view(np.uint64), bits(unsigned, positions, tokens)):
        raise SystemExit("The card's random bits are not the definition's. Nothing was timed.")
    num_different = int((got.cpu().numpy().view(np.int32) != gumbel(unsigned, positions, tokens).view(np.int32)).sum())
    if num_different:
        raise SystemExit(f"{num_different} of {num_checked} Gumbel values differ from the definition's. Nothing was timed.")


def rows_of(num_rows: int, device: str = "cuda") -> PickRows:
    """Neighbouring positions of one request, at temperature 0.7."""
    temperatures = torch.full((num_rows,), 0.7, dtype=torch.float64, device=device)
    keys = torch.full((num_rows,), 12345, dtype=torch.int64, device=device)
    return PickRows(keys, torch.arange(num_rows, device=device), temperatures)


def check_picks(device: str = "cuda") -> None:
    """A kernel that is wrong on this card is not worth timing."""
    logits = torch.randn(16, CHECKED_IDS, device=device)
    got = pick(logits, rows_of(16, device)).tokens.tolist()
    expected = [
        reference_pick(row.numpy(), SamplingParams(temperature=0.7), 12345, position, [], []) for position, row in enumerate(logits.cpu())
    ]
    if got != expected:
        raise SystemExit("The card's picks are not the reference's. Nothing was timed.")


def measure(
    num_rows: int, num_ids: int, ceilings: CardCeilings, device: str = "cuda", timed: Timed = best_s
) -> dict[str, dict[str, float]]:
    """Logits of either dtype."""
    report: dict[str, dict[str, float]] = {}
    for dtype in (torch.bfloat16, torch.float32):
        logits = torch.randn(num_rows, num_ids, device=device).to(dtype)
        spent_s = timed(partial(pick, logits, rows_of(num_rows, device)))
        num_tokens = logits.numel()
        reached = ceilings.report(spent_s, num_tokens * dtype.itemsize, num_tokens * OPERATIONS_PER_TOKEN)
        argmax_s = timed(partial(torch.argmax, logits, dim=1))
        report[str(dtype).removeprefix("torch.")] = reached | {"torch_argmax_us": argmax_s * 1e6}
    return report


def main() -> None:
    """Check, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=151936)
    arguments = parser.parse_args()
    require_card()
    check_noise()
    check_picks()
    ceilings = measure_ceilings(torch.float64)
    print(f"{ceilings.name}: copies {ceilings.bytes_per_s / 1e12:.2f} TB/s, float64 products {ceilings.operations_per_s / 1e12:.1f} T/s")
    report = measure(arguments.rows, arguments.vocab, ceilings)
    for name, found in report.items():
        print(f"{name:10s}", "  ".join(f"{key} {value:.3g}" for key, value in found.items()))
    print("RESULT", json.dumps({"card": ceilings.name, "rows": arguments.rows, "vocab": arguments.vocab, "dtypes": report}))


if __name__ == "__main__":
    main()
