"""Rows, weights, matrices in every packing that is here, and products, for tests of thin products that round their rows.

Knows of one rounding, by blocks, which two of them share.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from outrider_kernels.int8_weight import Int8Weight
from outrider_kernels.thin_matrix import ThinMatrix
from outrider_kernels.thin_product import RowNorm, ThinProduct
from outrider_kernels.thin_team import ThinTeam, multiplies_bfloat16, multiplies_bytes, multiplies_fixed16, multiplies_float16

FloatArray = npt.NDArray[np.float32]

_ROUNDING = {  # and whether it can be here
    "pairs": multiplies_bfloat16(),
    "quads": multiplies_bytes(),
    "float16": multiplies_float16(),
    "fixed16": multiplies_fixed16(),
    "fixed8": multiplies_fixed16(),
}
ROUNDING = [packing for packing, can_be in _ROUNDING.items() if can_be]
PACKINGS = ["floats", "halves", "bytes", *ROUNDING]
BLOCK = 32  # inputs that share a scale, as in thin/fixed16.c


def some_rows(num_rows: int, inputs: int, seed: int = 1) -> FloatArray:
    """Rows of very different sizes."""
    generator = np.random.default_rng(seed)
    sizes = np.exp(3.0 * generator.standard_normal((num_rows, 1)))
    return (generator.standard_normal((num_rows, inputs)) * sizes).astype(np.float32)


def weights(inputs: int, outputs: int, seed: int = 0) -> FloatArray:
    """bfloat16 numbers, columns of different sizes."""
    generator = np.random.default_rng(seed)
    weight = generator.standard_normal((outputs, inputs)) * np.exp(2.0 * generator.standard_normal((outputs, 1)))
    return bfloat16(weight.astype(np.float32))


def bfloat16(values: FloatArray) -> FloatArray:
    """Rounded to such numbers."""
    return cast(FloatArray, torch.from_numpy(values).bfloat16().float().numpy())


def with_outliers(num_rows: int, inputs: int, outlier: float) -> FloatArray:
    """Rows as they come, three of whose inputs are so many times the others, as activations of trained models have."""
    rows = np.random.default_rng(1).standard_normal((num_rows, inputs)).astype(np.float32)
    rows[:, np.array([7, 500, 901]) % inputs] *= outlier
    return rows


def packed(weight: FloatArray, packing: str) -> ThinMatrix:
    """The matrix in one of PACKINGS, or what is left of it there. weight: [outputs, inputs]."""
    match packing:
        case "pairs":
            return ThinMatrix.pack_pairs(weight)
        case "float16":
            return ThinMatrix.pack_float16(weight)
        case "fixed16":
            return ThinMatrix.pack_fixed16(weight)
        case "bytes" | "quads" | "fixed8":
            int8 = Int8Weight.of(torch.from_numpy(weight))
            pack = {"bytes": ThinMatrix.pack_int8, "quads": ThinMatrix.pack_quads, "fixed8": ThinMatrix.pack_fixed8}[packing]
            return pack(int8.values.numpy(), int8.scale.numpy())
        case "halves":
            return ThinMatrix.pack((weight.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32))
        case _:
            return ThinMatrix.pack(weight)


def sums_by_blocks(rows: FloatArray, numbers: npt.NDArray[np.int64], most: float) -> FloatArray:
    """What thin/fixed16.c says it does, but for the columns' scales. numbers: [outputs, inputs], whole. most: what a block's largest
    becomes. Sums of a block are exact; a long double holds a product of two floats and its sum with a third."""
    most_of = np.float32(most)
    sums = np.zeros((len(rows), len(numbers)), np.float32)
    for begin in range(0, rows.shape[1], BLOCK):
        block = rows[:, begin : begin + BLOCK]
        largest = np.abs(block).max(axis=1, keepdims=True)
        factor = np.divide(most_of, largest, out=np.zeros_like(largest), where=largest > 0)
        found = (np.rint(block * factor).astype(np.int64) @ numbers[:, begin : begin + BLOCK].T).astype(np.float32)
        sums = (found.astype(np.longdouble) * (largest / most_of) + sums).astype(np.float32)
    return sums


def product(
    matrix: ThinMatrix, rows: FloatArray, *, threads: int = 1, bias: FloatArray | None = None, norm: RowNorm | None = None
) -> FloatArray:
    """Of rows and matrix, into a new array."""
    out = np.full((len(rows), matrix.num_outputs), np.nan, np.float32)
    ThinProduct(ThinTeam(threads), matrix, rows, out, bias=bias, norm=norm).run(len(rows))
    return out
