"""Compaction of cache rows against a plain copy, overlaps and all.

Run: pytest tests/kernels/test_compact.py
"""

from __future__ import annotations

import random

import pytest
import torch

from outrider_kernels.compact import compact, moves


@pytest.mark.parametrize("seed", range(40))
def test_overlapping_moves_read_before_they_write(seed: int) -> None:
    chance = random.Random(seed)
    source, base = sorted(chance.sample(range(16), chance.randrange(13))), chance.randrange(5)
    destination = list(range(base, base + len(source)))
    pools = [torch.randn(2, 3, 24, 5), torch.randn(1, 1, 24, 8).bfloat16()]
    expected = [pool.clone() for pool in pools]
    for pool, before in zip(expected, pools, strict=True):
        for origin, target in zip(source, destination, strict=True):
            pool[..., target, :] = before[..., origin, :]
    moved = compact(pools, source, destination)
    assert moved == sum(origin != target for origin, target in zip(source, destination, strict=True))
    assert all(torch.equal(pool, want) for pool, want in zip(pools, expected, strict=True))


def test_a_chain_moves_nothing() -> None:
    assert moves([7, 8, 9], [7, 8, 9]) == ([], [])
    assert compact([torch.zeros(2, 1, 4, 2)], [1, 2], [1, 2]) == 0
