"""Rejection of drafted chains in Triton on a card: time, bytes and operations against the card's measured ceilings.

Run: python kernels/benchmarks/bench_triton_rejection.py [--sequences 64] [--nodes 5] [--vocab 151936]
Needs a CUDA GPU. Before anything is timed, verdicts on a small vocabulary are compared with the definition. Every chain is refused at its
last token, so that a whole walk is measured and a draft is subtracted. Bytes are those of one row of target and draft a sequence, read
once, and a tile of them once more; operations are the subtractions and sums, in float64, against the card's measured rate of float64
products. `torch` is the same subtraction and a running sum by torch's own operations. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import torch
from torch import Tensor

from outrider.noise.field import bits, uniform_of
from outrider_kernels.card_ceilings import CardCeilings, Timed, best_s, measure_ceilings, require_card
from outrider_kernels.rejection import DraftChains, Judged, reference_judge_chains
from outrider_kernels.triton_rejection import BLOCK_TOKENS, ChainNoise, judge_chains

OPERATIONS_PER_TOKEN = 3  # a subtraction, and the sums of what is left and of the target
CHECKED_IDS, CHECKED_SEQUENCES = 3001, 6
ACCEPT_KEY, RESIDUAL_KEY = 11, 12


def refused_chains(num_sequences: int, num_nodes: int, num_ids: int, dtype: torch.dtype, device: str = "cuda") -> DraftChains:
    """Chains whose last token the target cannot say, and whose others it says for certain as often as the drafter."""
    targets = torch.softmax(torch.randn(num_sequences, num_nodes + 1, num_ids, device=device), dim=2)
    drafts = torch.softmax(torch.randn(num_sequences, num_nodes, num_ids, device=device), dim=2)
    tokens = torch.randint(0, num_ids, (num_sequences, num_nodes), dtype=torch.int32, device=device)
    chosen = tokens.long().unsqueeze(2)
    wanted = torch.full_like(drafts.gather(2, chosen), 0.5)
    wanted[:, -1] = 0.0
    targets[:, :-1] = targets[:, :-1].scatter(2, chosen, wanted)
    drafts = drafts.scatter(2, chosen, torch.full_like(wanted, 0.5))
    begins = torch.arange(num_sequences + 1, dtype=torch.int32, device=device) * num_nodes
    return DraftChains(tokens.flatten(), begins, targets.to(dtype).flatten(0, 1), drafts.to(dtype).flatten(0, 1))


def noise_of(num_sequences: int, device: str = "cuda") -> ChainNoise:
    """One request's keys at neighbouring positions."""
    bases = torch.arange(num_sequences, device=device)
    return ChainNoise(torch.full_like(bases, ACCEPT_KEY), torch.full_like(bases, RESIDUAL_KEY), bases)


def check(num_nodes: int, device: str = "cuda") -> None:
    """A kernel that is wrong on this card is not worth timing."""
    chains = refused_chains(CHECKED_SEQUENCES, num_nodes, CHECKED_IDS, torch.float32, device)
    got, expected = judge_chains(chains, noise_of(CHECKED_SEQUENCES, device)), _expected(chains, num_nodes)
    for found, right in ((got.accepted_lens, expected.accepted_lens), (got.emitted, expected.emitted), (got.bonus, expected.bonus)):
        if not torch.equal(found.cpu(), right):
            raise SystemExit("The kernel is wrong on this card. Nothing was timed.")


def _expected(chains: DraftChains, num_nodes: int) -> Judged:
    on_host = DraftChains(chains.tokens.cpu(), chains.begins.cpu(), chains.targets.cpu(), chains.drafts.cpu())

    def uniforms(key: int, num_rows: int) -> Tensor:
        positions = torch.arange(CHECKED_SEQUENCES)[:, None] + torch.arange(num_rows)
        return torch.from_numpy(uniform_of(bits(key, positions.flatten().numpy(), 0)))

    return reference_judge_chains(on_host, uniforms(ACCEPT_KEY, num_nodes), uniforms(RESIDUAL_KEY, num_nodes + 1))


def measure(
    num_sequences: int, num_nodes: int, num_ids: int, ceilings: CardCeilings, device: str = "cuda", timed: Timed = best_s
) -> dict[str, dict[str, float]]:
    """Probabilities of either type, checked and timed."""
    check(num_nodes, device)
    report: dict[str, dict[str, float]] = {}
    for dtype in (torch.bfloat16, torch.float32):
        chains = refused_chains(num_sequences, num_nodes, num_ids, dtype, device)
        spent_s = timed(partial(judge_chains, chains, noise_of(num_sequences, device)))
        num_bytes = 2 * num_sequences * (num_ids + min(num_ids, BLOCK_TOKENS)) * dtype.itemsize
        reached = ceilings.report(spent_s, num_bytes, num_sequences * num_ids * OPERATIONS_PER_TOKEN)
        report[str(dtype).removeprefix("torch.")] = reached | {"torch_us": timed(partial(by_torch, chains, num_nodes)) * 1e6}
    return report


def by_torch(chains: DraftChains, num_nodes: int) -> Tensor:
    """What is left after each chain's last token, and its running sums."""
    targets, drafts = chains.targets[num_nodes - 1 :: num_nodes + 1], chains.drafts[num_nodes - 1 :: num_nodes]
    return (targets.double() - drafts.double()).clamp_(min=0.0).cumsum(1)


def main() -> None:
    """Check, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=151936)
    arguments = parser.parse_args()
    require_card()
    ceilings = measure_ceilings(torch.float64)
    print(f"{ceilings.name}: copies {ceilings.bytes_per_s / 1e12:.2f} TB/s, float64 products {ceilings.operations_per_s / 1e12:.1f} T/s")
    report = measure(arguments.sequences, arguments.nodes, arguments.vocab, ceilings)
    for name, found in report.items():
        print(f"{name:10s}", "  ".join(f"{key} {value:.3g}" for key, value in found.items()))
    print("RESULT", json.dumps({"card": ceilings.name, **vars(arguments), "dtypes": report}))


if __name__ == "__main__":
    main()
