"""Matching picks against trees in Triton on a card: time and bytes against the card's measured ceilings.

Run: python kernels/benchmarks/bench_triton_pick_walk.py [--sequences 64] [--nodes 32]
Needs a CUDA GPU. Before anything is timed, the paths are compared with the chains. The trees are chains that are accepted to the end,
the longest walk there is. Bytes are tokens, parents and picks read once, paths written; there are no operations to speak of: it is the
latency of the walk that is measured. Prints one line and one JSON line.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import torch

from outrider_kernels.card_ceilings import CardCeilings, Timed, best_s, measure_ceilings, require_card
from outrider_kernels.triton_pick_walk import walk_picks

INT_BYTES = 4


def measure(num_sequences: int, num_nodes: int, ceilings: CardCeilings, device: str = "cuda", timed: Timed = best_s) -> dict[str, float]:
    """Chains, checked and timed."""
    tokens = torch.randint(0, 1000, (num_sequences, num_nodes), dtype=torch.int32, device=device)
    parents = (torch.arange(num_nodes, dtype=torch.int32, device=device) - 1).repeat(num_sequences)
    picks = torch.cat([tokens, torch.full((num_sequences, 1), 7, dtype=torch.int32, device=device)], dim=1).view(-1)
    begins = torch.arange(num_sequences + 1, dtype=torch.int32, device=device) * num_nodes
    work = partial(walk_picks, tokens.view(-1), parents, picks, begins, num_nodes)
    walks = work()
    whole = torch.arange(num_nodes, dtype=torch.int32, device=device).expand(num_sequences, -1)
    if not (torch.equal(walks.paths, whole) and bool((walks.emitted == 7).all()) and bool(walks.bonus.all())):
        raise SystemExit("The kernel is wrong on this card. Nothing was timed.")
    num_bytes = INT_BYTES * num_sequences * (4 * num_nodes + 4)
    return ceilings.report(timed(work), num_bytes, 0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=32)
    arguments = parser.parse_args()
    require_card()
    ceilings = measure_ceilings(torch.bfloat16)
    report = measure(arguments.sequences, arguments.nodes, ceilings)
    print("  ".join(f"{key} {value:.3g}" for key, value in report.items()))
    print("RESULT", json.dumps({"card": ceilings.name, "sequences": arguments.sequences, "nodes": arguments.nodes, "walk": report}))


if __name__ == "__main__":
    main()
