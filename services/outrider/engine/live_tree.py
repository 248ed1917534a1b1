"""The nodes of one sequence whose KV is present but not committed, and who descends from whom.

Knows indices, parents, tokens, depths and the ancestor relation, as arrays ready to become masks. Most trees are chains all their life, and
what relates the nodes of a chain is known before there are any. Must not know slots, tensors or which nodes will be accepted.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from outrider.types.tree import ROOT, IntArray

BoolArray = npt.NDArray[np.bool_]

_CHAIN_LENGTHS_KEPT = 16  # a process has a few: as many as there are bounds of trees in use


class LiveTree:
    """Nodes [0, len) in the order they were fed; parents precede children.

    tokens, parents, depths: int32 [len]. ancestry: bool [len, len], row i marks i and its ancestors. is_chain: each node is the child of
    the one before it, the first of the root; then the last three are not to be written to.
    """

    def __init__(self, max_nodes: int) -> None:
        self._max_nodes = max_nodes
        self._num = 0
        self._tokens = np.empty(max_nodes, np.int32)
        self._become_chain()

    def __len__(self) -> int:
        return self._num

    @property
    def tokens(self) -> IntArray:
        """Token of each node."""
        return self._tokens[: self._num]

    @property
    def parents(self) -> IntArray:
        """Parent of each node, ROOT for children of the newest committed token."""
        return self._parents[: self._num]

    @property
    def depths(self) -> IntArray:
        """0 for children of the root."""
        return self._depths[: self._num]

    @property
    def ancestry(self) -> BoolArray:
        """Row i marks node i and all its ancestors."""
        return self._ancestry[: self._num, : self._num]

    @property
    def room(self) -> int:
        """Nodes that still fit."""
        return self._max_nodes - self._num

    def extend(self, tokens: IntArray) -> None:
        """Append nodes, each the child of the one before it; of a chain only, and they must fit the room."""
        assert self.is_chain
        end = self._num + len(tokens)
        self._tokens[self._num : end] = tokens
        self._num = end

    def extend_below(self, parent: int, tokens: IntArray) -> None:
        """Append nodes, the first the child of this one (ROOT: of the root), each other of the one before it; they must fit the room."""
        if self.is_chain and parent == self._num - 1:
            self.extend(tokens)
        elif len(tokens):
            self.add(tokens, np.array([parent, *range(self._num, self._num + len(tokens) - 1)], np.int32))

    def depth_below(self, node: int) -> int:
        """Of a child of this node; 0 below ROOT."""
        return 0 if node == ROOT else int(self._depths[node]) + 1

    def add(self, tokens: IntArray, parents: IntArray) -> None:
        """Append nodes; parents must be checked (each in [-1, its own index)) and fit the room."""
        begin, count = self._num, len(tokens)
        above = parents.tolist()
        if self.is_chain and above == list(range(begin - 1, begin + count - 1)):
            self.extend(tokens)
            return
        self._branch_out()
        self._tokens[begin : begin + count] = tokens
        self._parents[begin : begin + count] = parents
        self._num += count
        for index, parent in enumerate(above, begin):
            row = self._ancestry[index]
            if parent == ROOT:
                row[:] = False
                self._depths[index] = 0
            else:
                row[:] = self._ancestry[parent]
                self._depths[index] = self._depths[parent] + 1
            row[index] = True

    def _become_chain(self) -> None:
        self.is_chain, self._chain_len = True, self._max_nodes
        self._parents, self._depths, self._ancestry = _chain_of(self._max_nodes)

    def _branch_out(self) -> None:
        """From now on the relations are the tree's own."""
        if self.is_chain:
            self.is_chain, self._chain_len = False, self._num
            self._parents, self._depths, self._ancestry = self._parents.copy(), self._depths.copy(), self._ancestry.copy()

    def path_to(self, node: int) -> list[int]:
        """Indices from a child of the root down to the node; empty for ROOT."""
        return [] if node == ROOT else np.flatnonzero(self._ancestry[node, : self._num]).tolist()

    def tokens_to(self, node: int) -> IntArray:
        """Those of the path to the node, int32."""
        return self.tokens[self.path_to(node)]

    def is_path(self, path: tuple[int, ...]) -> bool:
        """Whether the nodes run from a child of the root downwards, each the child of the one before."""
        if self.is_chain:
            return len(path) <= self._num and path == tuple(range(len(path)))
        above, parents = ROOT, self.parents.tolist()
        for node in path:
            if not 0 <= node < self._num or parents[node] != above:
                return False
            above = node
        return True

    def survivors(self, path: tuple[int, ...]) -> list[int]:
        """Old indices of the proper descendants of the path's last node (of the root: all nodes), ascending."""
        if self.is_chain or not path:
            return list(range(len(path), self._num))
        below = self.ancestry[:, path[-1]].copy()
        below[path[-1]] = False
        return np.flatnonzero(below).tolist()

    def keep(self, survivors: list[int]) -> None:
        """Reduce the tree to the survivors; those whose parent does not survive become children of the root."""
        if self.is_chain:  # what stays is its end
            end, self._num = self._num, 0
            self.extend(self._tokens[end - len(survivors) : end].copy())
            return
        tokens = self._tokens[survivors]
        new_index = {old: new for new, old in enumerate(survivors)}
        parents = np.asarray([new_index.get(int(self._parents[old]), ROOT) for old in survivors], np.int32)
        self.clear()
        self.add(tokens, parents)

    def shrink(self, length: int) -> None:
        """Forget the newest nodes until `length` are left."""
        assert 0 <= length <= self._num
        self._num = length
        if length <= self._chain_len and not self.is_chain:
            self._become_chain()

    def clear(self) -> None:
        """Forget every node."""
        self.shrink(0)


@lru_cache(maxsize=_CHAIN_LENGTHS_KEPT)
def _chain_of(num_nodes: int) -> tuple[IntArray, IntArray, BoolArray]:
    """Parents, depths and ancestry of a chain; shared, and not to be written to."""
    depths = np.arange(num_nodes, dtype=np.int32)
    parents = depths - np.int32(1)
    ancestry = np.tri(num_nodes, dtype=np.bool_)
    for array in (depths, parents, ancestry):
        array.setflags(write=False)
    return parents, depths, ancestry
