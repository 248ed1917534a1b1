"""What of the guesses a round verifies: the chain in order, however many side branches came before or between, and however few rows."""

from __future__ import annotations

import pytest

from outrider.session.guess_tree import GuessTree
from outrider.session.merged_tree import MergedTree, merge_trees
from outrider.types.tree import ROOT

CHAIN = [7, 8, 9, 4]


def hedged_tree() -> GuessTree:
    """0(7) -> 1(8) -> 4(9) -> 7(4), with side branches 2 -> 3 beside the first and 5 -> 6 beside the second."""
    tree = GuessTree(1, 10, width=1)
    tree.append([7, 8, 1, 2, 9, 3, 5, 4], [ROOT, 0, ROOT, 2, 1, 0, 5, 4])
    return tree


@pytest.mark.parametrize("max_nodes", range(6))
def test_few_rows_verify_the_first_guesses_of_the_chain(max_nodes: int) -> None:
    merged = merge_trees([hedged_tree()], max_nodes, 32, frozenset())
    tree = merged.tree
    assert tree.tokens.tolist() == CHAIN[:max_nodes]
    assert tree.parents.tolist() == list(range(-1, min(max_nodes, 4) - 1))
    assert set(merged.places) <= {ROOT, 0, 1, 4, 7}
    assert merged.num_main == tree.num_nodes


def test_a_side_branch_is_verified_once_the_truth_has_taken_it() -> None:
    guesses = hedged_tree()
    assert guesses.advance(7)
    assert guesses.advance(3)
    tree = merge_trees([guesses], 8, 32, frozenset()).tree
    assert tree.tokens.tolist() == [5]


def test_a_second_drafter_brings_its_own_chain() -> None:
    other = GuessTree(4, 12)
    other.append([1, 6], [ROOT, 0])
    ahead = GuessTree(1, 12, width=1)
    ahead.append([5, 1, 2], [ROOT, ROOT, 1])
    tree = merge_trees([ahead, other], 8, 32, frozenset()).tree
    assert tree.tokens.tolist() == [5, 1, 6], "what one hedges, another may guess"


@pytest.mark.parametrize("num_true", range(len(CHAIN) + 1))
@pytest.mark.parametrize("stop_ids", [frozenset[int](), frozenset({8}), frozenset({4, 7})])
def test_a_chain_is_clipped_as_it_is_among_others(num_true: int, stop_ids: frozenset[int]) -> None:
    chain = GuessTree(1, 10)
    chain.append(CHAIN, [ROOT, 0, 1, 2])
    for token in CHAIN[:num_true]:
        assert chain.advance(token)
    silent = GuessTree(2, 10 + num_true)
    for max_nodes in range(6):
        for max_depth in range(6):
            alone = merge_trees([chain], max_nodes, max_depth, stop_ids)
            beside = merge_trees([chain, silent], max_nodes, max_depth, stop_ids)
            assert alone.tree.tokens.tolist() == beside.tree.tokens.tolist()
            assert alone.tree.parents.tolist() == beside.tree.parents.tolist()
            assert alone.places == beside.places
            assert alone.num_main == beside.num_main == alone.tree.num_nodes
            assert alone.depth == beside.depth == alone.tree.num_nodes


def test_levels_are_those_of_the_longest_way() -> None:
    assert [merge_trees([hedged_tree()], most, 32, frozenset()).depth for most in range(6)] == [0, 1, 2, 3, 4, 4]
    short = GuessTree(1, 10)
    short.append([7, 8, 9, 8, 5], [ROOT, 0, 0, 1, ROOT])
    merged = merge_trees([short], 8, 32, frozenset())
    assert (merged.depth, merged.tree.num_nodes) == (3, 5)


def paths_of(merged: MergedTree) -> list[list[int]]:
    """For each verified node the tokens on the way to it."""
    paths: list[list[int]] = []
    for token, parent in zip(merged.tree.tokens.tolist(), merged.tree.parents.tolist(), strict=True):
        paths.append([*(paths[parent] if parent != ROOT else []), token])
    return paths


def test_side_nodes_come_behind_the_chain_the_shallowest_first() -> None:
    sides = [[1], [1, 2], [7, 3], [7, 3, 5]]
    for most in range(6):
        merged = merge_trees([hedged_tree()], 4, 32, frozenset(), most)
        assert merged.num_main == 4
        shallow_first = sorted(sides, key=len)
        assert paths_of(merged)[4:] == shallow_first[:most]


def test_a_branch_is_entered_only_beside_a_guess_that_is_verified_and_above_a_depth_that_is_allowed() -> None:
    one = merge_trees([hedged_tree()], 1, 32, frozenset(), 8)
    assert paths_of(one) == [[7], [1], [1, 2]], "beside 8, which is not verified, is no place"
    assert merge_trees([hedged_tree()], 0, 32, frozenset(), 8).tree.num_nodes == 0
    assert paths_of(merge_trees([hedged_tree()], 4, 1, frozenset(), 8)) == [[7], [1]]


def test_nothing_is_verified_below_an_end_on_a_branch_either() -> None:
    assert paths_of(merge_trees([hedged_tree()], 4, 32, frozenset({1}), 8))[4:] == [[1], [7, 3], [7, 3, 5]]


def test_a_path_enters_one_branch_only() -> None:
    """A branch of a branch: 0(7), beside it 1(4) -> 2(5), beside that 3(6)."""
    guesses = GuessTree(1, 10, width=1)
    guesses.append([7, 4, 5, 6], [ROOT, ROOT, 1, 1])
    assert guesses.side_depths() == (0, 1)
    assert paths_of(merge_trees([guesses], 8, 32, frozenset(), 8)) == [[7], [4], [4, 5]]
    assert guesses.advance(4)
    assert guesses.side_depths() == (0,), "now it is a branch of the chain"
    assert paths_of(merge_trees([guesses], 8, 32, frozenset(), 8)) == [[5], [6]]


def test_a_path_says_where_it_enters_a_branch() -> None:
    merged = merge_trees([hedged_tree()], 4, 32, frozenset(), 8)
    by_path = {tuple(path): node for node, path in enumerate(paths_of(merged))}
    along = [by_path[7,], by_path[7, 3], by_path[7, 3, 5]]
    assert merged.side_at(along) == 1
    assert merged.side_at(along[:1]) is None
    assert merged.side_at([]) is None


def test_what_one_drafter_hedges_and_another_guesses_is_a_guess() -> None:
    other = GuessTree(4, 10)
    other.append([1, 2], [ROOT, 0])
    merged = merge_trees([hedged_tree(), other], 8, 32, frozenset(), 8)
    assert merged.num_main == 6
    assert merged.side_at([node for node, path in enumerate(paths_of(merged)) if path in ([1], [1, 2])]) is None
    assert sorted(paths_of(merged)[6:]) == [[7, 3], [7, 3, 5]]
