"""Coupled acceptance: a guess is right when it equals the target's own pick (drafter-invariant decoding, Daliri et al., 2408.07978).

With shared uniforms U per position the drafter's pick is a = argmin -ln U_i / draft_probs_i and the target's b = argmin
-ln U_i / target_probs_i; always b is emitted, and a counts as accepted when a = b. Here both are argmax of logit + T * gumbel, so
acceptance is integer comparison, and siblings are simply more guesses.
P(a = b) = sum_i 1 / sum_j max(target_j / target_i, draft_j / draft_i), within [(1-TV)/(1+TV), 1-TV].
Different from the paper: trees, and Gumbel-top-k siblings. Loses to `rejection` in acceptance of a single draft (never above 1-TV).
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.engine.acceptance.contract import AcceptanceNoise, Guarantee, TargetRows
from outrider.engine.pick_walk import walk_picks
from outrider.types.tree import DraftRow, DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class CoupledAcceptance:
    """The default rule: needs no draft probabilities and no randomness of its own."""

    name: str = "coupled"
    guarantee: Guarantee = Guarantee.TOKENS
    reads_probs: bool = False

    def accept(self, tree: DraftTree, draft_rows: tuple[DraftRow, ...], target: TargetRows, noise: AcceptanceNoise) -> Verdict:
        """Follow the picks through the tree; draft_rows and noise do not matter."""
        return walk_picks(tree.tokens, tree.parents, target.picks)
