"""The walk of coupled acceptance: from the root, follow the child that equals the target's own pick, as far as there is one.

Torch-free, for engines that run no model. Must not know distributions. Source: docs/architecture.md section 1.
"""

from __future__ import annotations

from outrider.types.tree import ROOT, IntArray, Verdict


def walk_picks(tokens: IntArray, parents: IntArray, picks: IntArray) -> Verdict:
    """What the picks make of a tree. tokens, parents: int32 [num_nodes]; picks: int32 [1 + num_nodes], the root's row first."""
    above, picked, guessed = parents.tolist(), picks.tolist(), tokens.tolist()
    if above == [*range(ROOT, len(guessed) - 1)]:
        return _walk_chain(guessed, picked)
    children = {child: node for node, child in enumerate(zip(above, guessed, strict=True))}
    path: list[int] = []
    here = ROOT
    while (node := children.get((here, picked[here + 1]))) is not None:
        here = node
        path.append(here)
    return Verdict(tuple(path), picked[here + 1], bonus=here not in above)


def _walk_chain(guessed: list[int], picked: list[int]) -> Verdict:
    """As most trees are: each node the child of the one before. Nothing is looked up."""
    num = 0
    for guess, pick in zip(guessed, picked, strict=False):
        if guess != pick:
            break
        num += 1
    return Verdict(tuple(range(num)), picked[num], bonus=num == len(guessed))
