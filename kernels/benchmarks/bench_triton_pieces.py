"""What lies between a decoder layer's products of matrices, on a card: time and bytes against the card's measured ceilings.

Run: python kernels/benchmarks/bench_triton_pieces.py [--rows 64]
Needs a CUDA GPU. Before anything is timed, each kernel is compared with its definition. Bytes are those of rows, weights, queries, keys and
values, each moved once; operations are too few to matter. `torch` is the definition, launched operation by operation. A step's few rows are
so few bytes that a launch is most of the time: a kernel is judged by `torch_us`, and by its share of the ceiling only with very many rows.
Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from outrider_kernels.card_ceilings import CardCeilings, Timed, best_s, measure_ceilings, require_card
from outrider_kernels.decoder_pieces import (
    HeadLayout,
    HeadNorm,
    KeyPlaces,
    reference_add_norm,
    reference_gate,
    reference_rotate_and_store,
)
from outrider_kernels.triton_add_norm import add_norm
from outrider_kernels.triton_gate import gate
from outrider_kernels.triton_rotate import rotate_and_store

LAYOUTS: Mapping[str, tuple[HeadLayout, int]] = MappingProxyType(
    {"8B-like": (HeadLayout(32, 8, 128), 14336), "1B-like": (HeadLayout(32, 8, 64), 8192)}
)  # heads, and the length of the MLP
NUM_POSITIONS = 4096
EPSILON = 1e-5
WORST_ERROR = 0.1  # of numbers up to 5: a few units in the last place


@dataclass(frozen=True, slots=True)
class Piece:
    """ours, definition: of the same operands; each returns all tensors that it makes or changes. num_bytes: that must move."""

    ours: Callable[[], tuple[Tensor, ...]]
    definition: Callable[[], tuple[Tensor, ...]]
    num_bytes: int


def norm_piece(num_rows: int, hidden_len: int, device: str) -> Piece:
    """A sum into the residual stream, read and written, and the norm of it."""
    stream, added = torch.randn(2, num_rows, hidden_len, device=device, dtype=torch.bfloat16)
    weight = torch.randn(hidden_len, device=device, dtype=torch.bfloat16)

    def by(function: Callable[[Tensor, Tensor | None, Tensor, float], Tensor]) -> tuple[Tensor, ...]:
        return function(stream, added, weight, EPSILON), stream

    return Piece(lambda: by(add_norm), lambda: by(reference_add_norm), 2 * (4 * stream.numel() + hidden_len))


def gate_piece(num_rows: int, mlp_len: int, device: str) -> Piece:
    """Gates and values to their product."""
    gate_up = torch.randn(num_rows, 2 * mlp_len, device=device, dtype=torch.bfloat16)
    return Piece(lambda: (gate(gate_up),), lambda: (reference_gate(gate_up),), 2 * 3 * num_rows * mlp_len)


def rotate_piece(num_rows: int, layout: HeadLayout, device: str) -> Piece:
    """Queries, keys and values of rows that go to places all over the pool, with norms of heads."""
    row_len = (layout.num_rotated + layout.num_kv_heads) * layout.head_dim
    joined = torch.randn(num_rows, row_len, device=device, dtype=torch.bfloat16)
    angles = torch.rand(NUM_POSITIONS, layout.head_dim // 2, device=device)
    rotations = torch.stack([angles.cos(), angles.sin()], dim=-1)
    positions = torch.randint(0, NUM_POSITIONS, (num_rows,), device=device)
    keys, values = torch.zeros(2, layout.num_kv_heads, 2 * num_rows, layout.head_dim, device=device, dtype=torch.bfloat16)
    places = KeyPlaces(keys, values, torch.randperm(2 * num_rows, device=device)[:num_rows])
    norm = HeadNorm(torch.randn(layout.num_rotated, layout.head_dim, device=device, dtype=torch.bfloat16), EPSILON)

    def ours() -> tuple[Tensor, ...]:
        return rotate_and_store(joined, layout, rotations, positions, places, norm), keys, values

    def definition() -> tuple[Tensor, ...]:
        return reference_rotate_and_store(joined, layout, rotations, positions, places, norm), keys, values

    angle_bytes = num_rows * layout.head_dim * 4
    return Piece(ours, definition, 2 * 2 * joined.numel() + angle_bytes)


def pieces(num_rows: int, layout: HeadLayout, mlp_len: int, device: str) -> dict[str, Piece]:
    """By kernel; the same operands by each call."""
    torch.manual_seed(1)
    return {
        "add_norm": norm_piece(num_rows, layout.num_heads * layout.head_dim, device),
        "gate": gate_piece(num_rows, mlp_len, device),
        "rotate": rotate_piece(num_rows, layout, device),
    }


def check(num_rows: int, layout: HeadLayout, mlp_len: int, device: str) -> None:
    """A kernel that is wrong on this card is not worth timing."""
    right = pieces(num_rows, layout, mlp_len, device)
    for name, piece in pieces(num_rows, layout, mlp_len, device).items():
        for got, expected in zip(piece.ours(), right[name].definition(), strict=True):
            error = float((got.float() - expected.float()).abs().max())
            if not error <= WORST_ERROR:
                raise SystemExit(f"{name} is wrong on this card: error {error:.1e}. Nothing was timed.")


def measure(
    num_rows: int,
    ceilings: CardCeilings,
    device: str = "cuda",
    timed: Timed = best_s,
    layouts: Mapping[str, tuple[HeadLayout, int]] = LAYOUTS,
) -> dict[str, dict[str, dict[str, float]]]:
    """Every layout, every kernel, checked and timed."""
    report: dict[str, dict[str, dict[str, float]]] = {}
    for name, (layout, mlp_len) in layouts.items():
        check(num_rows, layout, mlp_len, device)
        report[name] = {
            kernel: ceilings.report(timed(piece.ours), piece.num_bytes, 0) | {"torch_us": timed(piece.definition) * 1e6}
            for kernel, piece in pieces(num_rows, layout, mlp_len, device).items()
        }
    return report


def main() -> None:
    """Measure every layout and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    arguments = parser.parse_args()
    require_card()
    ceilings = measure_ceilings(torch.bfloat16)
    print(f"{ceilings.name}: copies {ceilings.bytes_per_s / 1e12:.2f} TB/s")
    report = measure(arguments.rows, ceilings)
    for layout, kernels in report.items():
        for kernel, found in kernels.items():
            print(f"{layout:10s} {kernel:10s}", "  ".join(f"{key} {value:.3g}" for key, value in found.items()))
    print("RESULT", json.dumps({"card": ceilings.name, "rows": arguments.rows, "layouts": report}))


if __name__ == "__main__":
    main()
