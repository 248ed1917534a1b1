"""The walk of coupled acceptance over any tree, chains among them, beside one that looks at each child of each node."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.pick_walk import walk_picks
from outrider.types.tree import ROOT, Verdict

NUM_IDS = 2  # few, so that picks are often guessed


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Tokens and parents of a trie, half of them chains."""
    num = draw(st.integers(0, 6))
    if draw(st.booleans()):
        return [draw(st.integers(0, NUM_IDS - 1)) for _ in range(num)], list(range(ROOT, num - 1))
    nodes = dict[tuple[int, int], None]()  # by parent and token: no child is there twice
    for _ in range(num):
        nodes[draw(st.integers(ROOT, len(nodes) - 1)), draw(st.integers(0, NUM_IDS - 1))] = None
    return [token for _, token in nodes], [parent for parent, _ in nodes]


def walked(tokens: list[int], parents: list[int], picks: list[int]) -> Verdict:
    """Node by node."""
    path, here = list[int](), ROOT
    while True:
        right = [node for node, parent in enumerate(parents) if parent == here and tokens[node] == picks[here + 1]]
        if not right:
            return Verdict(tuple(path), picks[here + 1], bonus=here not in parents)
        here = right[0]
        path.append(here)


@settings(max_examples=500)
@given(tree=trees(), data=st.data())
def test_it_follows_the_picks_as_far_as_they_were_guessed(tree: tuple[list[int], list[int]], data: st.DataObject) -> None:
    tokens, parents = tree
    picks = data.draw(st.lists(st.integers(0, NUM_IDS - 1), min_size=len(tokens) + 1, max_size=len(tokens) + 1))
    found = walk_picks(np.array(tokens, np.int32), np.array(parents, np.int32), np.array(picks, np.int32))
    assert found == walked(tokens, parents, picks)
