"""What lies between a layer's products in Triton, interpreted on the CPU and on a card where there is one, against its definitions: odd
sizes, every dtype; kernels that are broken must be caught by the same comparisons.

Run: pytest tests/kernels/test_triton_pieces.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fakes_broken_kernel import broken_kernel
from fakes_kernel_places import INTERPRETED, PLACES, KernelPlace, kernel_place
from mostly_slow import crossed
from outrider_kernels.decoder_pieces import (
    HeadLayout,
    HeadNorm,
    KeyPlaces,
    reference_add_norm,
    reference_gate,
    reference_rotate_and_store,
)

ADD_NORM, GATE, ROTATE = (f"outrider_kernels.triton_{name}" for name in ("add_norm", "gate", "rotate"))
TOLERANCES = {torch.float32: 3e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}  # of numbers about 1: two units in the last place of 16 bits
DTYPES = tuple(TOLERANCES)
EPSILON = 1e-5


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> KernelPlace:
    """Interpreted, and on a card where there is one."""
    return kernel_place(request.param)


def numbers(*shape: int, dtype: torch.dtype, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def largest(left: Tensor, right: Tensor) -> float:
    assert left.shape == right.shape
    assert left.dtype == right.dtype
    return float((left.double() - right.double()).abs().max())


def add_norm_error(place: KernelPlace, rows: int, hidden: int, dtype: torch.dtype, kernel: str = ADD_NORM) -> float:
    weight, states, added = (
        numbers(*shape, dtype=dtype, seed=seed) for seed, shape in enumerate([(hidden,), (rows, hidden), (rows, hidden)])
    )
    error = 0.0
    for more in (None, added):
        expected_states = states.clone()
        expected = reference_add_norm(expected_states, more, weight, EPSILON)
        got_states = place.arguments_after(kernel, "add_norm", states.clone(), more, weight, EPSILON)[0]
        got = place.call(kernel, "add_norm", states.clone(), more, weight, EPSILON)
        error = max(error, largest(got, expected), largest(got_states, expected_states))
    return error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 64), (5, 96), (3, 1000)])
def test_sums_and_norms_are_those_of_the_definition(place: KernelPlace, rows: int, hidden: int, dtype: torch.dtype) -> None:
    assert add_norm_error(place, rows, hidden, dtype) <= 4 * TOLERANCES[dtype]  # numbers up to 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "mlp"), [(1, 64), (4, 1100)])
def test_gates_are_those_of_the_definition(place: KernelPlace, rows: int, mlp: int, dtype: torch.dtype) -> None:
    gate_up = numbers(rows, 2 * mlp, dtype=dtype)
    assert largest(place.call(GATE, "gate", gate_up), reference_gate(gate_up)) <= 4 * TOLERANCES[dtype]


def rotate_error(place: KernelPlace, layout: HeadLayout, dtype: torch.dtype, has_norm: bool, kernel: str = ROTATE) -> float:
    rows, num_slots = 4, 9
    joined = numbers(rows, (layout.num_rotated + layout.num_kv_heads) * layout.head_dim, dtype=dtype)
    angles = torch.rand(20, layout.head_dim // 2, generator=torch.Generator().manual_seed(2)) * 6
    rotations = torch.stack([angles.cos(), angles.sin()], dim=-1)
    positions, slots = torch.tensor([0, 7, 19, 7]), torch.tensor([8, 0, 3, 5])
    weight = numbers(layout.num_rotated, layout.head_dim, dtype=dtype, seed=3)
    norm = HeadNorm(weight, EPSILON) if has_norm else None

    def fresh() -> KeyPlaces:
        keys, values = numbers(2, layout.num_kv_heads, num_slots, layout.head_dim, dtype=dtype, seed=4)
        return KeyPlaces(keys, values, slots)

    expected_places = fresh()
    expected = reference_rotate_and_store(joined, layout, rotations, positions, expected_places, norm)
    arguments: tuple[Any, ...] = (joined, layout, rotations, positions, fresh(), norm)
    got = place.call(kernel, "rotate_and_store", *arguments)
    got_places = place.arguments_after(kernel, "rotate_and_store", *arguments)[4]
    return max(largest(got, expected), largest(got_places.keys, expected_places.keys), largest(got_places.values, expected_places.values))


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize(("layout", "dtype"), crossed([HeadLayout(4, 4, 64), HeadLayout(6, 2, 80), HeadLayout(3, 1, 16)], DTYPES))
def test_rotations_and_places_are_those_of_the_definition(
    place: KernelPlace, layout: HeadLayout, has_norm: bool, dtype: torch.dtype
) -> None:
    assert rotate_error(place, layout, dtype, has_norm) <= 4 * TOLERANCES[dtype]


ROTATE_MUTANTS = [
    ("first * cosine - second * sine", "first * cosine + second * sine"),
    ("(head - NUM_HEADS) * head_stride + slot", "head * head_stride // NUM_HEADS + slot"),
    ("rotations + position * HEAD_DIM", "rotations + row * HEAD_DIM"),
    ("/ HEAD_DIM + epsilon", "/ TILE_PAIRS + epsilon"),
    ("keys + (head - NUM_HEADS) * head_stride + slot * slot_stride", "keys + (head - NUM_HEADS) * head_stride + row * slot_stride"),
]
ADD_NORM_MUTANTS = [
    ("/ HIDDEN_LEN + epsilon", "/ TILE_LEN + epsilon"),
    ("        row = rounded.to(tl.float32)\n", ""),
    ("tl.store(states + begin + column, rounded, mask=real)", "tl.store(out + begin + column, rounded, mask=real)"),
]


@pytest.mark.parametrize("mutation", ROTATE_MUTANTS)
def test_a_broken_rotation_is_caught(mutation: tuple[str, str], tmp_path: Path) -> None:
    kernel = broken_kernel("triton_rotate", mutation, tmp_path)
    assert rotate_error(kernel_place(INTERPRETED), HeadLayout(6, 2, 80), torch.float32, True, kernel) > 0.05


@pytest.mark.parametrize("mutation", ADD_NORM_MUTANTS)
def test_a_broken_norm_is_caught(mutation: tuple[str, str], tmp_path: Path) -> None:
    assert add_norm_error(kernel_place(INTERPRETED), 3, 1000, torch.float32, broken_kernel("triton_add_norm", mutation, tmp_path)) > 0.01


def test_a_broken_gate_is_caught(tmp_path: Path) -> None:
    kernel = broken_kernel("triton_gate", ("gate_up + row * 2 * MLP_LEN + MLP_LEN", "gate_up + row * MLP_LEN + MLP_LEN"), tmp_path)
    gate_up = numbers(4, 2200, dtype=torch.float32)
    assert largest(kernel_place(INTERPRETED).call(kernel, "gate", gate_up), reference_gate(gate_up)) > 0.1
