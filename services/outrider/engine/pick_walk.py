"""The walk of coupled acceptance: from the root, follow the child that equals the target's own pick, as far as there is one.

Torch-free, for engines that run no model. Must not know distributions. Source: docs/architecture.md section 1.
"""

from __future__ import annotations

from outrider.types.tree import ROOT, IntArray, Verdict


def walk_picks(tokens: IntArray, parents: IntArray, picks: IntArray) -> Verdict:
    """What the picks make of a tree. tokens, parents: int32 [num_nodes]; picks: int32 [1 + num_nodes], the root's row first."""
    above, picked = parents.tolist(), picks.tolist()
    children = {child: node for node, child in enumerate(zip(above, tokens.tolist(), strict=True))}
    path: list[int] = []
    here = ROOT
    while (node := children.get((here, picked[here + 1]))) is not None:
        here = node
        path.append(here)
    return Verdict(tuple(path), picked[here + 1], bonus=here not in above)
