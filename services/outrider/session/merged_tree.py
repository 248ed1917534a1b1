"""The guesses of several drafters as one trie to verify, clipped to what the round can use.

Knows guess trees whose roots stand at the newest committed token. Must not know who is a better guesser. Duplicates from several sources
merge ((parent, token) is unique); shallow nodes come first, so that a small budget is spent where a node is likeliest to be reached;
nothing is verified below a node that ends the answer. Side branches wait for a mismatch to come their way, but for as many of their nodes
as are asked for beside the chain (docs/architecture.md section 3, tree invariants and hedging).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.session.guess_tree import GuessTree
from outrider.types.tree import MAX_TREE_NODES, ROOT, DraftRow, DraftTree
from outrider.types.value import quickly_made


@quickly_made
@dataclass(frozen=True, slots=True)
class MergedTree:
    """What a round verifies. places: in it, of each verified node of the first tree. num_main: its first nodes, outside side branches.
    depth: its levels."""

    tree: DraftTree
    places: dict[int, int]
    num_main: int
    depth: int

    @staticmethod
    def of_chain(chain: DraftTree, places: dict[int, int]) -> MergedTree:
        """One guess after another."""
        num_nodes = chain.num_nodes
        return MergedTree(chain, places, num_nodes, num_nodes)

    def side_at(self, path: Sequence[int]) -> int | None:
        """Where in a path of accepted nodes it enters a side branch; None where it does not."""
        if self.num_main == len(self.tree.tokens):
            return None
        return next((at for at, node in enumerate(path) if node >= self.num_main), None)


NO_GUESSES = MergedTree(DraftTree.empty(), {}, 0, 0)


def merge_trees(
    trees: Sequence[GuessTree],
    max_nodes: int,
    max_depth: int,
    stop_ids: frozenset[int],
    max_side_nodes: int = 0,
    max_all: int = MAX_TREE_NODES,
) -> MergedTree:
    """One trie of at most max_nodes nodes and max_depth levels, and beside it at most max_side_nodes live nodes of side branches, but no
    more than max_all together.

    A branch is entered only beside a guess that is verified too, and once on any path; its nodes come behind all others, shallowest first.
    """
    if not trees:
        return NO_GUESSES
    if len(trees) == 1 and trees[0].is_chain:
        return _clipped_chain(trees[0], min(max_nodes, max_depth), stop_ids)
    merging = _Merging(trees, max_depth, stop_ids)
    merging.add([tree.main_nodes() for tree in trees], max_nodes)
    num_main = len(merging.tokens)
    if max_side_nodes > 0:
        merging.add([_beside_verified(tree, merging.places[at]) for at, tree in enumerate(trees)], min(max_all, num_main + max_side_nodes))
    tree = DraftTree(np.asarray(merging.tokens, np.int32), np.asarray(merging.parents, np.int32))
    return MergedTree(tree, merging.places[0], num_main, tree_depth(merging.parents))


def _beside_verified(tree: GuessTree, places: dict[int, int]) -> list[int]:
    """Live side nodes, without those that begin a branch where the guess itself is not verified: more of the chain would be better."""
    nodes: list[int] = []
    for node in tree.side_nodes():
        parent = tree.parents[node]
        if not tree.is_side_of(node, parent) or tree.first_child(parent) in places:
            nodes.append(node)
    return nodes


class _Merging:
    """The trie as it grows. places: of each tree's nodes in it."""

    def __init__(self, trees: Sequence[GuessTree], max_depth: int, stop_ids: frozenset[int]) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.places: list[dict[int, int]] = [{tree.root: ROOT} for tree in trees]
        self._trees = trees
        self._starts = [tree.root_len - tree.base for tree in trees]
        self._max_depth = max_depth
        self._stop_ids = stop_ids
        self._known: dict[tuple[int, int], int] = {}

    def add(self, nodes_of: Sequence[Sequence[int]], most: int) -> None:
        """These nodes of each tree, shallowest first, until the trie has `most`; without those whose parents are not in it."""
        found = [(self._trees[at].depth(node) - self._starts[at], at, node) for at, nodes in enumerate(nodes_of) for node in nodes]
        for depth, at, node in sorted(found):
            if depth >= self._max_depth:
                break
            self._add(at, node, most)

    def _add(self, at: int, node: int, most: int) -> None:
        tree = self._trees[at]
        parent = self.places[at].get(tree.parents[node])
        if parent is None or (parent != ROOT and self.tokens[parent] in self._stop_ids):
            return
        token = tree.tokens[node]
        place = self._known.get((parent, token))
        if place is None:
            if len(self.tokens) >= most:
                return
            place = self._known[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
        self.places[at][node] = place


def _clipped_chain(tree: GuessTree, most: int, stop_ids: frozenset[int]) -> MergedTree:
    """merge_trees of what most trees are: at most so many guesses behind the truth, one after another."""
    first = tree.root + 1
    tokens = tree.tokens[first : first + max(0, most)]
    if not stop_ids.isdisjoint(tokens):
        tokens = tokens[: next(at for at, token in enumerate(tokens, 1) if token in stop_ids)]
    places = dict(zip(range(tree.root, first + len(tokens)), range(ROOT, len(tokens)), strict=True))
    return MergedTree.of_chain(DraftTree.chain(tokens), places)


def tree_depth(parents: Sequence[int]) -> int:
    """Levels of a tree of which these are the nodes' parents; 0 when it is empty."""
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return max(depths, default=0)


def placed_rows(rows: dict[int, DraftRow], places: dict[int, int], tree: DraftTree) -> tuple[DraftRow, ...]:
    """The draft rows of nodes that have children in the verified tree, renamed to their places in it, by place."""
    with_children = set(tree.parents.tolist())
    renamed = [dataclasses.replace(rows[node], parent=place) for node, place in places.items() if node in rows and place in with_children]
    return tuple(sorted(renamed, key=lambda row: row.parent))
