"""The guess tree against a naive model: a list of paths."""

from __future__ import annotations

import random

import pytest

from outrider.errors import ProtocolViolation
from outrider.session.guess_tree import GuessTree
from outrider.types.tree import MAX_TREE_NODES, ROOT


def held(tree: GuessTree) -> dict[str, object]:
    """All that a tree remembers; a chain has no tables of its nodes."""
    return {name: getattr(tree, name, None) for name in GuessTree.__slots__}


def sample_tree() -> GuessTree:
    """base 10:  0(a) -> 1(b) -> 3(d);  0 -> 2(c);  4(e) beside 0."""
    tree = GuessTree(tree_id=1, base=10)
    tree.append([7, 8, 9, 8, 5], [ROOT, 0, 0, 1, ROOT])
    return tree


def test_advancing_keeps_indices_and_forgets_siblings() -> None:
    tree = sample_tree()
    assert tree.live_nodes() == [0, 1, 2, 3, 4]
    assert tree.advance(7)
    assert tree.root_len == 11
    assert tree.live_nodes() == [1, 2, 3]
    assert tree.live_depth() == 2
    subtree, kept = tree.subtree(max_nodes=8, max_depth=8)
    assert kept == [1, 2, 3]
    assert subtree.tokens.tolist() == [8, 9, 8]
    assert subtree.parents.tolist() == [ROOT, ROOT, 0]


def test_later_children_begin_side_branches_until_the_truth_takes_one() -> None:
    """width 1:  0(a) -> 1(b) -> 3(d);  0 -> 2(c) -> 5(f) -> 6(g);  5 -> 7(h);  4(e) beside 0."""
    tree = GuessTree(tree_id=1, base=10, width=1)
    tree.append([7, 8, 9, 8, 5, 6, 4, 3], [ROOT, 0, 0, 1, ROOT, 2, 5, 5])
    assert tree.main_nodes() == [0, 1, 3]
    assert tree.live_nodes() == list(range(8))
    assert tree.advance(7)
    assert tree.main_nodes() == [1, 3]
    assert tree.advance(9)
    assert tree.main_nodes() == [5, 6], "what was a side branch is the chain now, and 7 still lies beside it"
    assert tree.is_side(7)
    assert tree.is_side_of(tree.root, 0)


def test_a_contradiction_is_reported_and_moves_nothing() -> None:
    tree = sample_tree()
    assert not tree.advance(99)
    assert tree.root == ROOT
    assert tree.root_len == 10


def test_bounds_cut_whole_branches() -> None:
    tree = sample_tree()
    by_depth, kept = tree.subtree(max_nodes=8, max_depth=1)
    assert kept == [0, 4]
    assert by_depth.parents.tolist() == [ROOT, ROOT]
    by_nodes, kept = tree.subtree(max_nodes=2, max_depth=8)
    assert kept == [0, 1]
    assert by_nodes.parents.tolist() == [ROOT, 0]


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [([1], [0]), ([1], [-2]), ([1, 1], [ROOT, ROOT]), ([1, 2], [ROOT]), ([1], [5])],
)
def test_a_malformed_tail_is_refused(tokens: list[int], parents: list[int]) -> None:
    with pytest.raises(ProtocolViolation):
        GuessTree(1, 0).append(tokens, parents)


def test_a_tree_is_bounded() -> None:
    tree = GuessTree(1, 0)
    tree.append(list(range(MAX_TREE_NODES)), [ROOT] * MAX_TREE_NODES)
    with pytest.raises(ProtocolViolation):
        tree.append([MAX_TREE_NODES], [ROOT])


@pytest.mark.parametrize("seed", range(20))
def test_random_trees_agree_with_a_set_of_paths(seed: int) -> None:
    rng = random.Random(seed)
    tree = GuessTree(1, 3)
    paths: list[tuple[int, ...]] = []
    for _ in range(60):
        parent = rng.randrange(ROOT, tree.num_nodes)
        token = rng.randrange(4)
        before = () if parent == ROOT else paths[parent]
        if (*before, token) in paths:
            with pytest.raises(ProtocolViolation):
                tree.append([token], [parent])
            continue
        tree.append([token], [parent])
        paths.append((*before, token))
    truth: tuple[int, ...] = ()
    for _ in range(6):
        token = rng.randrange(4)
        expected = (*truth, token) in paths
        assert tree.advance(token) == expected
        if not expected:
            break
        truth = (*truth, token)
        below = [path for path in paths if path[: len(truth)] == truth and len(path) > len(truth)]
        assert [paths[node] for node in tree.live_nodes()] == below
        assert tree.live_depth() == max((len(path) - len(truth) for path in below), default=0)
        assert tree.root_len == 3 + len(truth)


def test_levels_of_new_nodes_are_counted_once_and_side_branches_not_at_all() -> None:
    chain = GuessTree(1, 10)
    chain.append([7, 8, 9], [ROOT, 0, 1])
    assert (chain.is_chain, chain.num_levels(0), chain.num_levels(2), chain.num_levels(3)) == (True, 3, 1, 0)
    tree = sample_tree()
    assert (tree.is_chain, tree.num_levels(0), tree.num_levels(2), tree.num_levels(4)) == (False, 3, 3, 1)
    hedged = GuessTree(1, 10, width=1)
    hedged.append([7, 8, 1, 2], [ROOT, 0, ROOT, 2])
    assert (hedged.is_chain, hedged.num_levels(0), hedged.num_levels(2)) == (False, 2, 0)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("lens", [(5,), (2, 3), (1, 4), (4, 1), (3, 3, 3)])
def test_a_chain_added_at_once_is_the_chain_added_node_by_node(lens: tuple[int, ...], width: int) -> None:
    together, one_by_one = GuessTree(tree_id=1, base=10, width=width), GuessTree(tree_id=1, base=10, width=width)
    for num in lens:
        first = together.num_nodes
        tokens, parents = [20 + first + at for at in range(num)], [first - 1 + at for at in range(num)]
        together.append(tokens, parents)
        for token, parent in zip(tokens, parents, strict=True):
            one_by_one.append([token], [parent])
        assert together.advance(tokens[0]) == one_by_one.advance(tokens[0])
    for tree in (together, one_by_one):
        tree.append([7, 8, 9], [ROOT, 1, 1])  # side branches, where the chain has first children
    assert held(together) == held(one_by_one)
    assert not together.is_chain


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("truth", [(), (20,), (20, 21), (20, 21, 22, 23), (20, 21, 22, 23, 24), (20, 9), (9,), (20, 21, 7)])
@pytest.mark.parametrize("num_known", [0, 1])
def test_following_many_tokens_is_following_one_by_one(truth: tuple[int, ...], branches: bool, width: int, num_known: int) -> None:
    at_once, one_by_one = GuessTree(1, 10, width=width), GuessTree(1, 10, width=width)
    for tree in (at_once, one_by_one):
        tree.append([20, 21, 22, 23], [ROOT, 0, 1, 2])
        if branches:
            tree.append([7, 8], [1, 4])
        tree.follow([20, 21][:num_known])
    path: list[int] = []
    for token in truth[num_known:]:
        if not one_by_one.advance(token):
            break
        path.append(one_by_one.root)
    assert list(at_once.follow(truth[num_known:])) == path
    assert held(at_once) == held(one_by_one)
    nodes = at_once.main_nodes()
    assert at_once.main_size() == (len(nodes), len({at_once.depth(node) for node in nodes}))


def test_a_chain_answers_as_a_tree_does() -> None:
    chain, tree = GuessTree(1, 10), GuessTree(1, 10)
    for each in (chain, tree):
        each.append([20, 21, 22], [ROOT, 0, 1])
    tree.append([9], [ROOT])
    for parent in range(ROOT, 3):
        assert chain.first_child(parent) == tree.first_child(parent)
        assert [chain.child(parent, token) for token in (20, 21, 22)] == [tree.child(parent, token) for token in (20, 21, 22)]
    assert not any(chain.is_side_of(node, ROOT) for node in range(3))
    for each in (chain, tree):
        assert list(each.follow([20, 21, 7])) == [0, 1]
        assert (each.root_len, each.live_depth(), each.main_size()) == (12, 1, (1, 1))
        assert [each.depth(node) for node in range(3)] == [0, 1, 2]
        assert each.subtree(8, 8)[1] == [2]
        assert each.subtree(8, 0)[1] == []
    with pytest.raises(ProtocolViolation, match="repeats token 21"):
        chain.append([21], [0])
