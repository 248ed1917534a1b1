"""The guesses of several drafters as one trie to verify, clipped to what the round can use.

Knows guess trees whose roots stand at the newest committed token. Must not know who is a better guesser. Duplicates from several sources
merge ((parent, token) is unique); shallow nodes come first, so that a small budget is spent where a node is likeliest to be reached;
nothing is verified below a node that ends the answer, nor on side branches, which wait for a mismatch to come their way
(docs/architecture.md section 3, tree invariants and hedging).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from outrider.session.guess_tree import GuessTree
from outrider.types.tree import ROOT, DraftRow, DraftTree


def merge_trees(trees: Sequence[GuessTree], max_nodes: int, max_depth: int, stop_ids: frozenset[int]) -> tuple[DraftTree, dict[int, int]]:
    """One trie of at most max_nodes nodes and max_depth levels, and the place in it of each verified node of the first tree."""
    if not trees:
        return DraftTree.empty(), {}
    if len(trees) == 1 and trees[0].is_chain:
        return _clipped_chain(trees[0], min(max_nodes, max_depth), stop_ids)
    starts = [tree.root_len - tree.base for tree in trees]
    candidates = sorted([(tree.depth(node) - starts[at], at, node) for at, tree in enumerate(trees) for node in tree.main_nodes()])
    places: list[dict[int, int]] = [{tree.root: ROOT} for tree in trees]
    known: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    parents: list[int] = []
    for depth, at, node in candidates:
        if depth >= max_depth:
            break
        tree = trees[at]
        parent = places[at].get(tree.parents[node])
        if parent is None or (parent != ROOT and tokens[parent] in stop_ids):
            continue
        token = tree.tokens[node]
        place = known.get((parent, token))
        if place is None:
            if len(tokens) == max_nodes:
                continue
            place = len(tokens)
            known[parent, token] = place
            tokens.append(token)
            parents.append(parent)
        places[at][node] = place
    return DraftTree(np.asarray(tokens, np.int32), np.asarray(parents, np.int32)), places[0]


def _clipped_chain(tree: GuessTree, most: int, stop_ids: frozenset[int]) -> tuple[DraftTree, dict[int, int]]:
    """merge_trees of what most trees are: at most so many guesses behind the truth, one after another."""
    first = tree.root + 1
    tokens = tree.tokens[first : first + max(0, most)]
    end = next((at for at, token in enumerate(tokens, 1) if token in stop_ids), len(tokens))
    places = {first + place: place for place in range(end)}
    return DraftTree.chain(tokens[:end]), {tree.root: ROOT, **places}


def tree_depth(tree: DraftTree) -> int:
    """Levels of a tree; 0 when it is empty."""
    if not tree.num_nodes:
        return 0
    depths: list[int] = []
    for parent in tree.parents.tolist():
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return max(depths)


def placed_rows(rows: dict[int, DraftRow], places: dict[int, int], tree: DraftTree) -> tuple[DraftRow, ...]:
    """The draft rows of nodes that have children in the verified tree, renamed to their places in it, by place."""
    with_children = set(tree.parents.tolist())
    renamed = [dataclasses.replace(rows[node], parent=place) for node, place in places.items() if node in rows and place in with_children]
    return tuple(sorted(renamed, key=lambda row: row.parent))
