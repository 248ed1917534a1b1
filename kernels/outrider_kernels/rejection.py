"""Classical rejection of a chain of drafted tokens, plain: how many are kept, and which token follows them.

A token x drafted at depth d is kept when r * draft_d(x) < target_d(x). At the first that is not, the token after it is drawn from
max(0, target_d - draft_d), or from target_d where nothing of that is left (the two were equal, and only rounding refused) or where
draft_d(x) is 0 (x cannot have been drawn from it). After a chain that was kept to its end, from the target's last row. A draw goes through
ids in ascending order: the first whose running sum exceeds u times the whole. A candidate that nobody drew has a draft of 1 at itself.
Sums are float64. Must not know where uniforms come from, nor trees or models. Sources: Leviathan et al. 2023, Chen et al. 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

NO_TOKEN = -1  # emitted where a target's row has no mass at all


@dataclass(frozen=True, slots=True)
class DraftChains:
    """Drafted chains, one after another, and what was said about them. Floating types may be any, with a dense last axis.

    tokens: int32 [all drafted]. begins: int32 [num_seqs + 1], where each chain begins. targets: [all drafted + num_seqs, num_ids], of each
    chain the row before its first token, then those after each. drafts: [all drafted, num_ids], what each token was drawn from.
    Probabilities are finite, not negative, and each row sums to 1 but for rounding.
    """

    tokens: Tensor
    begins: Tensor
    targets: Tensor
    drafts: Tensor

    def check(self) -> None:
        """Assert that shapes fit."""
        (num_drafted,), num_chains = self.tokens.shape, self.begins.numel() - 1
        assert self.targets.shape[0] == num_drafted + num_chains
        assert self.drafts.shape == (num_drafted, self.targets.shape[1])
        assert self.targets.stride(1) == 1
        assert self.drafts.numel() == 0 or self.drafts.stride(1) == 1


@dataclass(frozen=True, slots=True)
class Judged:
    """accepted_lens, emitted: int32 [num_seqs]. bonus: bool [num_seqs], whether the whole chain was kept, so that nothing was corrected."""

    accepted_lens: Tensor
    emitted: Tensor
    bonus: Tensor


def reference_judge_chains(chains: DraftChains, accept_uniforms: Tensor, emit_uniforms: Tensor) -> Judged:
    """The definition. accept_uniforms: float64 [all drafted], one a token. emit_uniforms: float64 [all drafted + num_seqs], one for a draw
    after each row of the targets; all inside (0, 1)."""
    chains.check()
    begins = chains.begins.tolist()
    kept, emitted, bonus = [], [], []
    for chain, (begin, end) in enumerate(pairwise(begins)):
        length = _accepted_len(chains, chain, begin, end, accept_uniforms)
        row = begin + chain + length
        weights = chains.targets[row].double()
        if begin + length < end:
            weights = _left(weights, chains.drafts[begin + length].double(), int(chains.tokens[begin + length]))
        kept.append(length)
        emitted.append(_draw(weights, float(emit_uniforms[row])))
        bonus.append(begin + length == end)
    return Judged(torch.tensor(kept, dtype=torch.int32), torch.tensor(emitted, dtype=torch.int32), torch.tensor(bonus, dtype=torch.bool))


def _accepted_len(chains: DraftChains, chain: int, begin: int, end: int, uniforms: Tensor) -> int:
    for node in range(begin, end):
        token = int(chains.tokens[node])
        drafted, wanted = float(chains.drafts[node, token]), float(chains.targets[node + chain, token])
        if drafted == 0.0 or not float(uniforms[node]) * drafted < wanted:
            return node - begin
    return end - begin


def _left(target: Tensor, draft: Tensor, token: int) -> Tensor:
    """What the replacement of a token that was refused is drawn from; not normalised."""
    rest = (target - draft).clamp(min=0.0)
    return target if float(draft[token]) == 0.0 or float(rest.sum()) == 0.0 else rest


def _draw(weights: Tensor, r: float) -> int:
    possible = torch.nonzero(weights).flatten().tolist()
    if not possible:
        return NO_TOKEN
    running = weights.cumsum(0)
    place = int(torch.searchsorted(running, r * float(running[-1]), right=True))
    return min(place, int(possible[-1]))
