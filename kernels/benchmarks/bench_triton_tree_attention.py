"""Paged tree attention in Triton on a card: time, bytes and operations of one layer, against the card's measured ceilings.

Run: python kernels/benchmarks/bench_triton_tree_attention.py [--context 4096] [--nodes 32] [--sequences 8] [--sweep]
Needs a CUDA GPU. Before anything is timed, the result is compared with the fp64 definition on a small step. Bytes are those that must
move: keys and values of each sequence once, queries and results once. `torch` is scaled_dot_product_attention over gathered keys
with a mask, the gathering not counted. Prints a table and one JSON line. --sweep times other programs and splits beside the chosen ones:
what `program_for` and `useful_splits` are set by, on another card.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from functools import partial
from itertools import product
from operator import itemgetter
from types import MappingProxyType

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from triton.runtime.errors import OutOfResources

from outrider_kernels.bit_mask import pack_bits
from outrider_kernels.card_ceilings import CardCeilings, Timed, best_s, measure_ceilings, require_card
from outrider_kernels.paged_tree_attention import PagedRows, reference_paged_tree_attention
from outrider_kernels.triton_tree_attention import TileProgram, paged_tree_attention, plan_launch

SHAPES: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "7B-like, no groups": (32, 32, 128),
        "8B-like": (32, 8, 128),
        "1B-like": (32, 8, 64),
        "70B-like": (64, 8, 128),
        "70B-like, one of 8": (8, 1, 128),
    }
)  # heads, kv_heads, dim
SWEPT_PROGRAMS = (
    TileProgram(32, 64, 4, 3),
    TileProgram(64, 32, 4, 3),
    TileProgram(64, 64, 4, 2),
    TileProgram(64, 64, 4, 3),
    TileProgram(64, 128, 4, 2),
    TileProgram(128, 32, 4, 3),
    TileProgram(128, 64, 4, 2),
    TileProgram(128, 64, 8, 2),
    TileProgram(128, 64, 8, 3),
    TileProgram(128, 128, 8, 2),
)
SWEPT_SPLITS = (1, 2, 4, 8, 16)
SHOWN = 8
BLOCK_LEN = 16
WORST_ERROR = 2e-2


def chain_rows(num_sequences: int, context: int, num_nodes: int, device: str = "cuda") -> PagedRows:
    """Each sequence: one committed row and a tree of two chains, over blocks in random order."""
    num_blocks = -(-(context + num_nodes) // BLOCK_LEN)
    depths = torch.arange(num_nodes) // 2
    ancestry = (torch.arange(num_nodes)[:, None] >= torch.arange(num_nodes)) & (
        torch.arange(num_nodes)[:, None] % 2 == torch.arange(num_nodes) % 2
    )
    own = torch.cat([torch.zeros(1, num_nodes, dtype=torch.bool), ancestry])
    positions = torch.cat([torch.tensor([context - 1]), context + depths])
    return PagedRows(
        rows_per_sequence=(1 + num_nodes,) * num_sequences,
        block_table=torch.randperm(num_sequences * num_blocks).view(num_sequences, num_blocks).int().to(device),
        committed_lens=torch.full((num_sequences,), context, dtype=torch.int32, device=device),
        num_nodes=torch.full((num_sequences,), num_nodes, dtype=torch.int32, device=device),
        node_positions=(context + depths).int().repeat(num_sequences, 1).to(device),
        row_positions=positions.int().repeat(num_sequences).to(device),
        row_ancestry=pack_bits(own).repeat(num_sequences, 1).to(device),
        block_len=BLOCK_LEN,
        max_keys=context + num_nodes,
    )


def tensors(rows: PagedRows, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Query and pools in bfloat16."""
    heads, kv_heads, dim = shape
    num_slots, device = rows.block_table.numel() * BLOCK_LEN, rows.block_table.device
    query = torch.randn(rows.num_rows, heads, dim, device=device, dtype=torch.bfloat16)
    keys, values = torch.randn(2, kv_heads, num_slots, dim, device=device, dtype=torch.bfloat16)
    return query, keys, values


def check(shape: tuple[int, int, int], device: str = "cuda") -> None:
    """A kernel that is wrong on this card is not worth timing: with a window, where every block of keys is masked, and with a context
    most of whose blocks are read without a mask, as many steps of a pipeline deep as those that are timed."""
    for context, window, num_splits in ((100, 30, 1), (100, 30, 3), (1000, None, 1), (1000, None, 4)):
        rows = chain_rows(2, context, 7, device)
        query, keys, values = tensors(rows, shape)
        launch = plan_launch(rows, shape[0], shape[1], query.dtype, num_splits)
        got = paged_tree_attention(query, keys, values, launch, shape[2] ** -0.5, window, 20.0).cpu().double()
        expected = reference_paged_tree_attention(query.cpu(), keys.cpu(), values.cpu(), rows, shape[2] ** -0.5, window, 20.0)
        error = float((got - expected).abs().max())
        if error > WORST_ERROR:
            raise SystemExit(f"The kernel is wrong on this card: error {error:.1e} with {num_splits} splits. Nothing was timed.")


def torch_s(rows: PagedRows, shape: tuple[int, int, int], context: int, num_nodes: int, timed: Timed = best_s) -> float:
    """Time of torch's own attention over a gathered batch of the same sizes."""
    heads, kv_heads, dim = shape
    num_sequences, device = len(rows.rows_per_sequence), rows.block_table.device
    query = torch.randn(num_sequences, heads, 1 + num_nodes, dim, device=device, dtype=torch.bfloat16)
    keys, values = torch.randn(2, num_sequences, kv_heads, context + num_nodes, dim, device=device, dtype=torch.bfloat16)
    mask = torch.ones(1 + num_nodes, context + num_nodes, dtype=torch.bool, device=device).tril(context - 1)
    attend = torch.nn.functional.scaled_dot_product_attention
    return timed(lambda: attend(query, keys, values, attn_mask=mask, enable_gqa=True))


def measure(
    context: int,
    num_nodes: int,
    num_sequences: int,
    ceilings: CardCeilings,
    device: str = "cuda",
    timed: Timed = best_s,
    shapes: Mapping[str, tuple[int, int, int]] = SHAPES,
) -> dict[str, dict[str, float]]:
    """Every shape, checked and timed."""
    report: dict[str, dict[str, float]] = {}
    for name, shape in shapes.items():
        check(shape, device)
        heads, kv_heads, dim = shape
        rows = chain_rows(num_sequences, context, num_nodes, device)
        query, keys, values = tensors(rows, shape)
        launch = plan_launch(rows, heads, kv_heads, query.dtype)
        spent_s = timed(partial(paged_tree_attention, query, keys, values, launch, dim**-0.5))
        num_keys = num_sequences * rows.max_keys
        num_bytes = 2 * (2 * num_keys * kv_heads * dim + 2 * query.numel())
        num_operations = 4 * num_keys * (1 + num_nodes) * heads * dim
        report[name] = ceilings.report(spent_s, num_bytes, num_operations) | {
            "num_splits": launch.num_splits,
            "torch_us": torch_s(rows, shape, context, num_nodes, timed) * 1e6,
        }
    return report


def sweep(
    rows: PagedRows,
    shape: tuple[int, int, int],
    timed: Timed = best_s,
    programs: tuple[TileProgram, ...] = SWEPT_PROGRAMS,
    splits: tuple[int, ...] = SWEPT_SPLITS,
) -> list[tuple[float, TileProgram, int]]:
    """(seconds, program, splits), the fastest first. A program that needs more shared memory than the card has is left out."""
    query, keys, values = tensors(rows, shape)
    found: list[tuple[float, TileProgram, int]] = []
    for program, num_splits in product(programs, splits):
        launch = plan_launch(rows, shape[0], shape[1], query.dtype, num_splits, program)
        try:
            spent_s = timed(partial(paged_tree_attention, query, keys, values, launch, shape[2] ** -0.5))
        except OutOfResources as error:
            print(f"{program}: {error}")
            continue
        found.append((spent_s, program, num_splits))
    return sorted(found, key=itemgetter(0))


def print_sweep(context: int, num_nodes: int, num_sequences: int, chosen: Mapping[str, Mapping[str, float]]) -> None:
    """The fastest few of each shape, and how much slower the chosen program is. Takes some ten minutes, most of it compiling."""
    for name, shape in track(SHAPES.items(), "sweeping", console=Console(stderr=True)):
        found = sweep(chain_rows(num_sequences, context, num_nodes), shape)
        print(f"{name}: chosen {chosen[name]['us']:.1f} us, {chosen[name]['us'] / (found[0][0] * 1e6):.2f} of the fastest")
        for spent_s, program, num_splits in found[:SHOWN]:
            print(f"  {spent_s * 1e6:8.1f} us  {program}, {num_splits} splits")


def main() -> None:
    """Measure every shape and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--sweep", action="store_true", help="time other programs and splits too")
    arguments = parser.parse_args()
    require_card()
    ceilings = measure_ceilings(torch.bfloat16)
    print(f"{ceilings.name}: copies {ceilings.bytes_per_s / 1e12:.2f} TB/s, products {ceilings.operations_per_s / 1e12:.0f} T/s")
    report = measure(arguments.context, arguments.nodes, arguments.sequences, ceilings)
    for name, found in report.items():
        print(f"{name:20s}", "  ".join(f"{key} {value:.3g}" for key, value in found.items()))
    if arguments.sweep:
        print_sweep(arguments.context, arguments.nodes, arguments.sequences, report)
    print("RESULT", json.dumps({"card": ceilings.name, "context": arguments.context, "nodes": arguments.nodes, "shapes": report}))


if __name__ == "__main__":
    main()
