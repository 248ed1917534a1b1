"""Compaction in Triton, interpreted on the CPU, against the plain one: overlaps, swaps, odd sizes, every element size.

Run: pytest tests/kernels/test_triton_compact.py
"""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from fakes_kernel_places import PLACES, KernelPlace, kernel_place
from outrider_kernels.compact import compact
from outrider_kernels.interpreted_process import InterpretedProcessDied

KERNEL = "outrider_kernels.triton_compact"
NUM_SLOTS = 40
PATH_SEEDS = range(12)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> KernelPlace:
    """Interpreted, and on a card where there is one."""
    return kernel_place(request.param)


def pools() -> list[Tensor]:
    """Two layers of one shape, and two of others; dim 40 and 5 leave columns masked."""
    generator = torch.Generator().manual_seed(7)
    shapes = [(2, 3, NUM_SLOTS, 40), (2, 3, NUM_SLOTS, 40), (2, 1, NUM_SLOTS, 64), (1, NUM_SLOTS, 5)]
    dtypes = [torch.bfloat16, torch.bfloat16, torch.float32, torch.float64]
    return [torch.randn(shape, generator=generator).to(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


def accepted_path(seed: int) -> tuple[list[int], list[int]]:
    """Ascending slots of a path, moved down to where committed tokens live."""
    chance = random.Random(seed)
    base = chance.randrange(8)
    source = sorted(chance.sample(range(base, NUM_SLOTS), chance.randrange(1, 17)))
    return source, list(range(base, base + len(source)))


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(one.view(torch.uint8), other.view(torch.uint8)) for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize("seed", PATH_SEEDS)
def test_an_accepted_path_arrives_bit_for_bit(place: KernelPlace, seed: int) -> None:
    source, destination = accepted_path(seed)
    expected = pools()
    compact(expected, source, destination)
    got = place.arguments_after(KERNEL, "compact", pools(), source, destination)[0]
    assert same(got, expected)
    assert same(expected, pools()) == (source == destination)


@pytest.mark.parametrize("permutation", [[1, 0], [1, 2, 0], [3, 2, 1, 0], [*range(1, NUM_SLOTS), 0]])
def test_slots_that_change_places_are_read_before_they_are_written(place: KernelPlace, permutation: list[int]) -> None:
    slots = list(range(len(permutation)))
    expected, row_by_row = pools(), pools()
    compact(expected, permutation, slots)
    got = place.arguments_after(KERNEL, "compact", pools(), permutation, slots)[0]
    assert same(got, expected)
    for pool in row_by_row:
        for origin, target in zip(permutation, slots, strict=True):
            pool[..., target, :] = pool[..., origin, :].clone()
    assert not same(row_by_row, expected)  # what this test would see of a kernel that does not wait


def test_the_number_of_moved_rows_is_told(place: KernelPlace) -> None:
    assert place.call(KERNEL, "compact", pools(), [3, 4, 9], [3, 4, 5]) == 1
    assert place.call(KERNEL, "compact", pools(), [3, 4], [3, 4]) == 0


def test_more_rows_than_a_tile_holds_are_refused(place: KernelPlace) -> None:
    wide = [torch.zeros(1, 2000, 1)]
    with pytest.raises((InterpretedProcessDied, ValueError), match="600 rows"):
        place.call(KERNEL, "compact", wide, list(range(1000, 1600)), list(range(600)))
