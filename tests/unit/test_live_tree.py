"""The nodes of a sequence: a chain laid out at once is what its nodes one by one make, whatever stood there before."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.engine.live_tree import LiveTree
from outrider.types.tree import ROOT, IntArray


def ids(*values: int) -> IntArray:
    return np.array(values, np.int32)


@pytest.mark.parametrize("num_nodes", [1, 2, 5, 8])
def test_a_chain_at_once_is_a_chain_by_its_nodes(num_nodes: int) -> None:
    at_once, one_by_one = LiveTree(8), LiveTree(8)
    for tree in (at_once, one_by_one):
        tree.add(ids(1, 2, 3, 4, 5, 6, 7, 8), ids(ROOT, ROOT, 0, 1, 2, 3, 4, 0))  # leaves its marks behind
        tree.clear()
    at_once.add(np.arange(num_nodes, dtype=np.int32), np.arange(-1, num_nodes - 1, dtype=np.int32))
    for node in range(num_nodes):
        one_by_one.add(ids(node), ids(node - 1))
    assert at_once.depths.tolist() == one_by_one.depths.tolist() == list(range(num_nodes))
    assert np.array_equal(at_once.ancestry, one_by_one.ancestry)
    assert at_once.path_to(num_nodes - 1) == list(range(num_nodes))


def test_nodes_below_a_chain_know_it() -> None:
    tree = LiveTree(8)
    tree.add(ids(1, 2, 3), ids(ROOT, 0, 1))
    tree.add(ids(4, 5), ids(0, ROOT))
    assert tree.depths.tolist() == [0, 1, 2, 1, 0]
    assert [tree.path_to(node) for node in (3, 4)] == [[0, 3], [4]]


def related(tree: LiveTree) -> list[object]:
    return [tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist(), tree.ancestry.tolist(), tree.is_chain]


def test_a_tree_that_forgets_its_branches_is_a_chain_again() -> None:
    tree, chain = LiveTree(8), LiveTree(8)
    for each in (tree, chain):
        each.add(ids(1, 2, 3), ids(ROOT, 0, 1))
    tree.add(ids(4, 5), ids(0, 3))
    assert not tree.is_chain
    tree.shrink(4)
    assert not tree.is_chain
    assert tree.parents.tolist() == [ROOT, 0, 1, 0]
    tree.shrink(3)
    assert related(tree) == related(chain)
    tree.extend(ids(6, 7))
    chain.add(ids(6, 7), ids(2, 3))
    assert related(tree) == related(chain)


def test_what_is_kept_of_a_chain_or_a_tree_is_the_same_below_a_path() -> None:
    chain, tree = LiveTree(8), LiveTree(8)
    for each in (chain, tree):
        each.add(ids(1, 2, 3, 4), ids(ROOT, 0, 1, 2))
    tree.add(ids(9), ids(ROOT))
    assert [each.is_path((0, 1)) for each in (chain, tree)] == [True, True]
    assert [each.is_path(path) for each in (chain, tree) for path in ((1,), (0, 2), (0, 1, 2, 3, 4))] == [False] * 6
    assert [each.survivors((0, 1)) for each in (chain, tree)] == [[2, 3], [2, 3]]
    for each in (chain, tree):
        each.keep(each.survivors((0, 1)))
    assert related(chain) == related(tree)
    assert chain.tokens.tolist() == [3, 4]


def test_one_trees_branches_are_not_anothers() -> None:
    tree, chain = LiveTree(6), LiveTree(6)
    tree.add(ids(1, 2), ids(ROOT, ROOT))
    chain.add(ids(1, 2, 3), ids(ROOT, 0, 1))
    assert chain.parents.tolist() == [ROOT, 0, 1]
    assert chain.ancestry.tolist() == np.tri(3, dtype=np.bool_).tolist()
    with pytest.raises(ValueError, match="read-only"):
        chain.parents[0] = 5
