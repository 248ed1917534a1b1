"""The nodes of one sequence whose KV is present but not committed, and who descends from whom.

Knows indices, parents, tokens, depths and the ancestor relation, as arrays ready to become masks. Must not know slots, tensors or
which nodes will be accepted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.types.tree import ROOT, IntArray

BoolArray = npt.NDArray[np.bool_]


class LiveTree:
    """Nodes [0, len) in the order they were fed; parents precede children.

    tokens, parents, depths: int32 [len]. ancestry: bool [len, len], row i marks i and its ancestors.
    """

    def __init__(self, max_nodes: int) -> None:
        self._max_nodes = max_nodes
        self._num = 0
        self._tokens = np.empty(max_nodes, np.int32)
        self._parents = np.empty(max_nodes, np.int32)
        self._depths = np.empty(max_nodes, np.int32)
        self._ancestry = np.zeros((max_nodes, max_nodes), np.bool_)
        self._places = np.arange(max_nodes, dtype=np.int32)

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

    def add(self, tokens: IntArray, parents: IntArray) -> None:
        """Append nodes; parents must be checked (each in [-1, its own index)) and fit the room."""
        begin, count = self._num, len(tokens)
        self._tokens[begin : begin + count] = tokens
        self._parents[begin : begin + count] = parents
        above = parents.tolist()
        self._num += count
        if begin == 0 and above == list(range(ROOT, count - 1)):
            self._descend(count)
            return
        for index, parent in enumerate(above, begin):
            row = self._ancestry[index]
            if parent == ROOT:
                row[:] = False
                self._depths[index] = 0
            else:
                row[:] = self._ancestry[parent]
                self._depths[index] = self._depths[parent] + 1
            row[index] = True

    def _descend(self, count: int) -> None:
        """The first `count` nodes are a chain: what most trees are, in a few array operations."""
        places = self._places[:count]
        self._depths[:count] = places
        self._ancestry[:count] = False
        np.greater_equal.outer(places, places, out=self._ancestry[:count, :count])

    def path_to(self, node: int) -> list[int]:
        """Indices from a child of the root down to the node; empty for ROOT."""
        return [] if node == ROOT else np.flatnonzero(self._ancestry[node, : self._num]).tolist()

    def is_path(self, path: tuple[int, ...]) -> bool:
        """Whether the nodes run from a child of the root downwards, each the child of the one before."""
        above, parents = ROOT, self.parents.tolist()
        for node in path:
            if not 0 <= node < self._num or parents[node] != above:
                return False
            above = node
        return True

    def survivors(self, path: tuple[int, ...]) -> list[int]:
        """Old indices of the proper descendants of the path's last node (of the root: all nodes), ascending."""
        if not path:
            return list(range(self._num))
        below = self.ancestry[:, path[-1]].copy()
        below[path[-1]] = False
        return np.flatnonzero(below).tolist()

    def keep(self, survivors: list[int]) -> None:
        """Reduce the tree to the survivors; those whose parent does not survive become children of the root."""
        new_index = {old: new for new, old in enumerate(survivors)}
        tokens = self._tokens[survivors]
        parents = np.asarray([new_index.get(int(self._parents[old]), ROOT) for old in survivors], np.int32)
        self._num = 0
        self.add(tokens, parents)

    def shrink(self, length: int) -> None:
        """Forget the newest nodes until `length` are left."""
        assert 0 <= length <= self._num
        self._num = length

    def clear(self) -> None:
        """Forget every node."""
        self._num = 0
