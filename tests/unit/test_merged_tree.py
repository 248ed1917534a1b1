"""What of the guesses a round verifies: the chain in order, however many side branches came before or between, and however few rows."""

from __future__ import annotations

import pytest

from outrider.session.guess_tree import GuessTree
from outrider.session.merged_tree import merge_trees
from outrider.types.tree import ROOT

CHAIN = [7, 8, 9, 4]


def hedged_tree() -> GuessTree:
    """0(7) -> 1(8) -> 4(9) -> 7(4), with side branches 2 -> 3 beside the first and 5 -> 6 beside the second."""
    tree = GuessTree(1, 10, width=1)
    tree.append([7, 8, 1, 2, 9, 3, 5, 4], [ROOT, 0, ROOT, 2, 1, 0, 5, 4])
    return tree


@pytest.mark.parametrize("max_nodes", range(6))
def test_few_rows_verify_the_first_guesses_of_the_chain(max_nodes: int) -> None:
    tree, places = merge_trees([hedged_tree()], max_nodes, 32, frozenset())
    assert tree.tokens.tolist() == CHAIN[:max_nodes]
    assert tree.parents.tolist() == list(range(-1, min(max_nodes, 4) - 1))
    assert set(places) <= {ROOT, 0, 1, 4, 7}


def test_a_side_branch_is_verified_once_the_truth_has_taken_it() -> None:
    guesses = hedged_tree()
    assert guesses.advance(7)
    assert guesses.advance(3)
    tree, _ = merge_trees([guesses], 8, 32, frozenset())
    assert tree.tokens.tolist() == [5]


def test_a_second_drafter_brings_its_own_chain() -> None:
    other = GuessTree(4, 12)
    other.append([1, 6], [ROOT, 0])
    ahead = GuessTree(1, 12, width=1)
    ahead.append([5, 1, 2], [ROOT, ROOT, 1])
    tree, _ = merge_trees([ahead, other], 8, 32, frozenset())
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
            alone, places = merge_trees([chain], max_nodes, max_depth, stop_ids)
            beside, same_places = merge_trees([chain, silent], max_nodes, max_depth, stop_ids)
            assert alone.tokens.tolist() == beside.tokens.tolist()
            assert alone.parents.tolist() == beside.parents.tolist()
            assert places == same_places
