"""One drafter's guess tree as both sides keep it: nodes only ever appended, the root moving down as the truth arrives.

Knows positions and tokens. Must not know frames, engines or why a guess was made. A tree is fixed at `base`; node indices are stable
for its life, so that a commit which follows the tree costs no renumbering (docs/architecture.md section 3).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from outrider.errors import ProtocolViolation
from outrider.types.tree import MAX_TREE_NODES, ROOT, DraftTree


class GuessTree:
    """A growing trie over the tokens from position `base` on, and where the truth stands in it.

    root: the node the truth has reached, ROOT when it still stands before base; root_len: tokens it had there. is_chain: each node is the
    child of the one before it, as in most trees; then there are no side branches, node i is at depth i, and nothing has to be looked up.
    Bounded by MAX_TREE_NODES nodes.
    width: children of a node that are guesses; later ones begin side branches (hedges), which wait for the truth to come their way.
    """

    __slots__ = (  # made for each draft that begins anew, and read many times a round
        "_children",
        "_depths",
        "_firsts",
        "_num_children",
        "_sides",
        "base",
        "is_chain",
        "parents",
        "root",
        "root_len",
        "tokens",
        "tree_id",
        "width",
    )

    # Of a tree that is no chain any more: a chain has none of these.
    _depths: list[int]
    _sides: list[int]  # side branches entered on the way to each node
    _num_children: dict[int, int]
    _firsts: dict[int, int]
    _children: dict[tuple[int, int], int]

    def __init__(self, tree_id: int, base: int, width: int = MAX_TREE_NODES) -> None:
        self.tree_id = tree_id
        self.base = base
        self.width = width
        self.root = ROOT
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.root_len = base
        self.is_chain = True

    @property
    def num_nodes(self) -> int:
        """Nodes ever appended, live or not."""
        return len(self.tokens)

    def depth(self, node: int) -> int:
        """Depth of a node, 0 for children of the first root; its position is base + depth."""
        return node if self.is_chain else self._depths[node]

    def child(self, parent: int, token: int) -> int | None:
        """The child of a node (or of ROOT) with this token, if it was guessed."""
        if not self.is_chain:
            return self._children.get((parent, token))
        node = parent + 1
        return node if node < len(self.tokens) and self.tokens[node] == token else None

    def append(self, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Add nodes; raises ProtocolViolation on a parent that does not exist, a duplicate child or too many nodes."""
        first, num = len(self.tokens), len(tokens)
        if num != len(parents):
            raise ProtocolViolation(f"tail has {num} tokens but {len(parents)} parents")
        if first + num > MAX_TREE_NODES:
            raise ProtocolViolation(f"tree would have {first + num} nodes, at most {MAX_TREE_NODES}")
        if self.is_chain and [*parents] == [*range(first - 1, first + num - 1)]:  # as most tails are: without a look at each
            self.tokens += tokens
            self.parents += parents
            return
        if self.is_chain:
            self._end_chain()
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True), first):
            if not ROOT <= parent < node:
                raise ProtocolViolation(f"node {node} names parent {parent}, which does not exist")
            if (parent, token) in self._children:
                raise ProtocolViolation(f"node {node} repeats token {token} under parent {parent}")
            self._append(node, int(token), int(parent))

    def _end_chain(self) -> None:
        """From now on nodes may have any parents, and are looked up."""
        self.is_chain = False
        nodes = range(len(self.tokens))
        self._depths = [*nodes]
        self._sides = [0] * len(self.tokens)
        self._num_children = dict.fromkeys(self.parents, 1)
        self._firsts = dict(zip(self.parents, nodes, strict=True))
        self._children = dict(zip(zip(self.parents, self.tokens, strict=True), nodes, strict=True))

    def _append(self, node: int, token: int, parent: int) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        rank = self._num_children.get(parent, 0)
        self._num_children[parent] = rank + 1
        if rank == 0:
            self._firsts[parent] = node
        depth, num_sides = (0, 0) if parent == ROOT else (self._depths[parent] + 1, self._sides[parent])
        self._depths.append(depth)
        self._sides.append(num_sides + (rank >= self.width))
        self._children[parent, token] = node

    def advance(self, token: int) -> bool:
        """Move the root along a committed token; False when the tree contradicts it (the tree is then useless)."""
        node = self.child(self.root, token)
        if node is None:
            return False
        self.root = node
        self.root_len += 1
        return True

    def follow(self, tokens: Sequence[int]) -> Sequence[int]:
        """Move the root along committed tokens as far as they were guessed: the nodes on the way."""
        if not self.is_chain:
            return [self.root for _ in itertools.takewhile(self.advance, tokens)]
        first = end = self.root + 1
        for guess, token in zip(self.tokens[first : first + len(tokens)], tokens, strict=False):
            if guess != token:
                break
            end += 1
        self.root = end - 1
        self.root_len = self.base + end
        return range(first, end)

    def live_nodes(self) -> list[int]:
        """Descendants of the root, in index order."""
        if self.is_chain:
            return list(range(self.root + 1, len(self.tokens)))
        live: set[int] = set()
        nodes: list[int] = []
        first = self.root + 1
        for node in range(first, self.num_nodes):
            parent = self.parents[node]
            if parent == self.root or parent in live:
                live.add(node)
                nodes.append(node)
        return nodes

    def is_side(self, node: int) -> bool:
        """Whether the way from the root to this live node enters a side branch."""
        return self.is_side_of(node, self.root)

    def is_side_of(self, node: int, above: int) -> bool:
        """Whether the way from `above` (a node or ROOT) down to this node enters a side branch."""
        return not self.is_chain and self._sides[node] > (0 if above == ROOT else self._sides[above])

    def main_nodes(self) -> list[int]:
        """Live nodes outside side branches, in index order."""
        if self.is_chain:
            return self.live_nodes()
        if self.width > 1:
            return [node for node in self.live_nodes() if not self.is_side(node)]
        nodes: list[int] = []
        node = self._firsts.get(self.root)
        while node is not None:
            nodes.append(node)
            node = self._firsts.get(node)
        return nodes

    def first_child(self, parent: int) -> int | None:
        """The guess below a node (or ROOT), None where nothing is guessed; its siblings may begin side branches."""
        if not self.is_chain:
            return self._firsts.get(parent)
        return parent + 1 if parent + 1 < len(self.tokens) else None

    def main_size(self) -> tuple[int, int]:
        """Live nodes outside side branches, and the levels that they lie on."""
        if self.is_chain:
            num_live = len(self.tokens) - 1 - self.root
            return num_live, num_live
        nodes, start = self.main_nodes(), self.root_len - self.base
        if self.width == 1:  # one below the other
            return len(nodes), len(nodes)
        return len(nodes), max(map(self.depth, nodes), default=start - 1) - start + 1

    def side_nodes(self) -> list[int]:
        """Live nodes on side branches that begin beside a guess of the main nodes, in index order; not on branches of branches."""
        if self.is_chain:
            return []
        sides, entered = self._sides, 1 + self._num_entered
        return [node for node in self.live_nodes() if sides[node] == entered]

    def side_depths(self) -> tuple[int, ...]:
        """For each of side_nodes the levels of guesses before it, ascending: 0 directly below the truth."""
        if self.is_chain:
            return ()
        start = self.root_len - self.base
        return tuple(sorted(self._depths[node] - start for node in self.side_nodes()))

    def num_levels(self, first: int) -> int:
        """Levels that nodes from index `first` on lie on, side branches left out."""
        if self.is_chain:
            return len(self.tokens) - first
        sides, num_entered = self._sides, self._num_entered
        return len({self._depths[node] for node in range(first, len(self.tokens)) if sides[node] <= num_entered})

    @property
    def _num_entered(self) -> int:
        """Side branches on the way to the root, of a tree that is no chain."""
        return 0 if self.root == ROOT else self._sides[self.root]

    def live_depth(self) -> int:
        """Levels of live nodes below the root; 0 when nothing is guessed beyond the truth."""
        nodes = self.live_nodes()
        if not nodes:
            return 0
        start = self.root_len - self.base
        return max(map(self.depth, nodes)) - start + 1

    def subtree(self, max_nodes: int, max_depth: int) -> tuple[DraftTree, list[int]]:
        """The live nodes as a tree relative to the root, earliest guessed first, and their indices in this tree.

        Nodes deeper than max_depth levels or beyond max_nodes are left out (a left-out node takes its descendants with it,
        since indices ascend along every path).
        """
        start = self.root_len - self.base
        kept: list[int] = []
        place: dict[int, int] = {self.root: ROOT}
        parents: list[int] = []
        for node in self.live_nodes():
            if len(kept) == max_nodes:
                break
            parent = place.get(self.parents[node])
            if parent is None or self.depth(node) - start >= max_depth:
                continue
            place[node] = len(kept)
            kept.append(node)
            parents.append(parent)
        tokens = np.asarray([self.tokens[node] for node in kept], np.int32)
        return DraftTree(tokens, np.asarray(parents, np.int32)), kept
