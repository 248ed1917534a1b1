"""Rejection acceptance: the classical test of drafted tokens against the ratio of target and draft probability.

One child: Leviathan et al. 2023, Chen et al. 2023: accept x when r < target(x) / draft(x), else go on with norm((target - draft)+).
More children: drawn without replacement and tested in draw order (RSD, Sequoia; ALGORITHMS.md D.1 rule 2): after a refusal
target := norm((target - draft)+), then draft(x) := 0, renormalised. Children without a usable draft row are deterministic
candidates (D.1 rule 5): accept x with target(x), else target(x) := 0, renormalised. All are exact in distribution, provided the
draft did not use this rule's randomness. Ours: uniforms are addressed by (purpose, position, sibling ordinal), so a retry repeats
itself. Loses to `coupled` where the same text on every replica matters, and against its siblings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.engine.acceptance.contract import AcceptanceNoise, Guarantee, ProbArray, TargetRows
from outrider.noise.field import uniform
from outrider.noise.keys import Purpose, key_of
from outrider.types.tree import ROOT, DraftRow, DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class RejectionAcceptance:
    """Promises the distribution only; the text depends on which drafts arrived."""

    name: str = "rejection"
    guarantee: Guarantee = Guarantee.DISTRIBUTION
    reads_probs: bool = True

    def accept(self, tree: DraftTree, draft_rows: tuple[DraftRow, ...], target: TargetRows, noise: AcceptanceNoise) -> Verdict:
        """Descend into accepted children; at the first family without one emit from what is left of the target."""
        accept_key = key_of(noise.address, Purpose.ACCEPT)
        rows = {row.parent: row for row in draft_rows}
        families = _families(tree)
        path: list[int] = []
        here = ROOT
        while True:
            position = noise.base + len(path)
            children = families.get(here, [])
            left, chosen = judge_family(
                target.probs(here + 1), [int(tree.tokens[node]) for node in children], rows.get(here), accept_key, position
            )
            if chosen is None:
                r = uniform(key_of(noise.address, Purpose.RESIDUAL), position)
                return Verdict(tuple(path), draw(left, r), bonus=not children)
            here = children[chosen]
            path.append(here)


def judge_family(
    target_probs: ProbArray, tokens: list[int], row: DraftRow | None, accept_key: int, position: int
) -> tuple[ProbArray, int | None]:
    """Test siblings in draw order: (what is left of the target, index of the accepted one or None)."""
    draft_probs = dense_draft(row, len(target_probs)) if row is not None else None
    for ordinal, token in enumerate(tokens):
        r = uniform(accept_key, position, ordinal)
        if draft_probs is None:
            if r < target_probs[token]:
                return target_probs, ordinal
            target_probs = _without(target_probs, token, otherwise=target_probs)
            continue
        if draft_probs[token] == 0.0:
            continue  # cannot have been drawn from this row: testing it would be wrong, leaving it out is exact
        if r * draft_probs[token] < target_probs[token]:
            return target_probs, ordinal
        target_probs = _normalised(np.maximum(target_probs - draft_probs, 0.0), otherwise=target_probs)
        draft_probs = _without(draft_probs, token, otherwise=np.zeros_like(draft_probs))
    return target_probs, None


def dense_draft(row: DraftRow, vocab_size: int) -> ProbArray | None:
    """float64 [vocab] summing to 1, or None for a row no distribution can be made of (its children are then mere candidates)."""
    ids, probs = row.ids, row.probs.astype(np.float64)
    total = float(probs.sum())
    well_formed = len(ids) == len(probs) > 0 and np.isfinite(total) and total > 0.0 and float(probs.min()) >= 0.0
    if not well_formed or int(ids.min()) < 0 or int(ids.max()) >= vocab_size or len(set(ids.tolist())) != len(ids):
        return None
    dense = np.zeros(vocab_size)
    dense[ids] = probs / total
    return dense


def draw(probs: ProbArray, r: float) -> int:
    """Inverse transform in token-id order; r in (0, 1). Never a token of probability 0."""
    cumulative = np.cumsum(probs)
    token = int(np.searchsorted(cumulative, r * cumulative[-1], side="right"))
    return min(token, int(np.flatnonzero(probs)[-1]))


def _families(tree: DraftTree) -> dict[int, list[int]]:
    """Children of each node, in draw order."""
    families: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents.tolist()):
        families.setdefault(parent, []).append(node)
    return families


def _without(probs: ProbArray, token: int, otherwise: ProbArray) -> ProbArray:
    """The distribution given that the token is excluded; `otherwise` when it was the only one."""
    rest = probs.copy()
    rest[token] = 0.0
    return _normalised(rest, otherwise)


def _normalised(weights: ProbArray, otherwise: ProbArray) -> ProbArray:
    """weights / sum, or `otherwise` where nothing is left (after a refusal only by rounding: the distributions were equal)."""
    total = float(weights.sum())
    return weights / total if total > 0.0 else otherwise
