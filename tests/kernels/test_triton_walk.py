"""The walk of picks through trees in Triton, interpreted on the CPU, against the plain walk, over ragged batches.

Run: pytest tests/kernels/test_triton_walk.py
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

import outrider_kernels
from fakes_kernel_places import INTERPRETED, PLACES, KernelPlace, kernel_place
from outrider.engine.pick_walk import walk_picks
from outrider.types.tree import IntArray, Verdict
from outrider_kernels.pick_rows import Walks

WALK = "outrider_kernels.triton_pick_walk"
SIZES = [1, 0, 15, 16, 17, 40, 3, 64, 2, 33]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> KernelPlace:
    """Interpreted, and on a card where there is one."""
    return kernel_place(request.param)


def tree(num_nodes: int, chance: random.Random) -> tuple[IntArray, IntArray, IntArray]:
    """Tokens and parents of a trie over few tokens, and picks that follow it often."""
    tokens: list[int] = []
    parents: list[int] = []
    taken: set[tuple[int, int]] = set()
    while len(tokens) < num_nodes:
        edge = (chance.randrange(max(-1, len(tokens) - 4), max(1, len(tokens))) if tokens else -1, chance.randrange(6))
        if edge not in taken:
            taken.add(edge)
            parents.append(edge[0])
            tokens.append(edge[1])
    picks = [chance.choice([token for parent, token in taken if parent == node] or [9]) for node in range(-1, num_nodes)]
    picks = [pick if chance.random() < 0.9 else 8 for pick in picks]
    return np.array(tokens, np.int32), np.array(parents, np.int32), np.array(picks, np.int32)


def walked(place: KernelPlace, seed: int, module: str = WALK) -> tuple[list[Verdict], list[Verdict]]:
    """What the kernel and the plain walk make of a batch."""
    chance = random.Random(seed)
    trees = [tree(size, chance) for size in SIZES]
    tokens, parents, picks = (torch.from_numpy(np.concatenate(part)) for part in zip(*trees, strict=True))
    begins = torch.tensor([0, *np.cumsum(SIZES).tolist()], dtype=torch.int32)
    walks: Walks = place.call(module, "walk_picks", tokens, parents, picks, begins, max(SIZES) + 2)
    paths, lens = walks.paths, walks.path_lens.tolist()
    got = [
        Verdict(tuple(path[:length].tolist()), int(token), bonus=bool(leaf))
        for path, length, token, leaf in zip(paths, lens, walks.emitted, walks.bonus, strict=True)
    ]
    assert all((path[length:] == -1).all() for path, length in zip(paths, lens, strict=True))
    return got, [walk_picks(*one) for one in trees]


@pytest.mark.parametrize("seed", range(6))
def test_every_sequence_walks_as_it_would_alone(place: KernelPlace, seed: int) -> None:
    got, expected = walked(place, seed)
    assert got == expected
    assert max(len(verdict.path) for verdict in expected) > 2


MUTANTS = [
    ("(parent == here) & (token == picked), node, -1), axis=0)\n    while", "token == picked, node, -1), axis=0)\n    while"),
    ("own_picks + here + 1", "own_picks + here"),
    ("picks + begin + sequence", "picks + begin"),
    ("1 - has_children", "has_children"),
]


@pytest.mark.parametrize("mutation", MUTANTS)
def test_a_broken_walk_is_caught(mutation: tuple[str, str], tmp_path: Path) -> None:
    place = kernel_place(INTERPRETED)
    source = (Path(outrider_kernels.__path__[0]) / "triton_pick_walk.py").read_text(encoding="utf-8")
    assert source.count(mutation[0]) == 1
    path = tmp_path / f"broken_walk_{MUTANTS.index(mutation)}.py"
    path.write_text(source.replace(*mutation), encoding="utf-8")
    got, expected = walked(place, 0, str(path))
    assert got != expected
