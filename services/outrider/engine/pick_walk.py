"""The walk of coupled acceptance: from the root, follow the child that equals the target's own pick, as far as there is one.

Torch-free, for engines that run no model. Must not know distributions. Source: docs/architecture.md section 1.
"""

from __future__ import annotations

from outrider.types.tree import ROOT, IntArray, Verdict


def walk_picks(tokens: IntArray, parents: IntArray, picks: IntArray) -> Verdict:
    """What the picks make of a tree. tokens, parents: int32 [num_nodes]; picks: int32 [1 + num_nodes], the root's row first."""
    children = {(int(parent), int(token)): node for node, (parent, token) in enumerate(zip(parents, tokens, strict=True))}
    path: list[int] = []
    here = ROOT
    while (here, int(picks[here + 1])) in children:
        here = children[here, int(picks[here + 1])]
        path.append(here)
    return Verdict(tuple(path), int(picks[here + 1]), bonus=here not in parents)
