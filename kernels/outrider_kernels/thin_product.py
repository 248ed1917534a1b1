"""Products of few rows with a matrix that was packed once: numpy arrays in and out, a compiled C file in between.

A row's bits depend on the row and the matrix alone (thin/product.c, quads.c, float16.c, fixed16.c, fixed16_wide.c, tiles.c). Definition:
`reference_product`, for int8 of the dequantised weights, where rows are rounded too of what both are rounded to. Must not know models,
batches or how a matrix was packed (thin_matrix.py). Source: the register tiles of Goto & van de Geijn, ACM TOMS 34(3), 2008.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from outrider_kernels.cache_lines import zeros_on_lines
from outrider_kernels.thin_matrix import PANEL, PanelFormat, ThinMatrix
from outrider_kernels.thin_team import ThinTeam, multiplies_bfloat16, multiplies_bytes, multiplies_fixed16, multiplies_float16

_FloatArray = npt.NDArray[np.float32]
_IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RowNorm:
    """RMSNorm of the rows before the product. scale: float32 [inputs]."""

    scale: _FloatArray
    epsilon: float


def reference_product(rows: _FloatArray, weight: _FloatArray, norm: RowNorm | None = None) -> _FloatArray:
    """[rows, outputs] in fp64, rounded once. rows: [rows, inputs]; weight: [outputs, inputs]."""
    wide = rows.astype(np.float64)
    if norm is not None:
        wide *= norm.scale / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + norm.epsilon)
    return (wide @ weight.astype(np.float64).T).astype(np.float32)


def _check_processor(matrix: ThinMatrix) -> None:
    """Raises ValueError where this one does not multiply what the matrix is packed as."""
    match matrix.format:
        case PanelFormat.PAIRS:
            numbers, can_be = "bfloat16 numbers", multiplies_bfloat16()
        case PanelFormat.QUADS:
            numbers, can_be = "bytes", multiplies_bytes()
        case PanelFormat.FLOAT16:
            numbers, can_be = "float16 numbers", multiplies_float16()
        case PanelFormat.FIXED16 | PanelFormat.FIXED8:
            numbers, can_be = "whole numbers of 16 bits", multiplies_fixed16()
        case _:
            return
    if not can_be:
        raise ValueError(f"this processor does not multiply {numbers}; pack the matrix for float32 rows")


class _Call(ctypes.Structure):
    """thin_call of thin/thin.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "panels", "column_scale", "bias", "scale", "normed", "rounded", "out", "listed")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs", "num_listed")),
        ("epsilon", ctypes.c_float),
        ("format", ctypes.c_int32),
        ("adds", ctypes.c_int32),
        ("is_streamed", ctypes.c_int32),
    )


class ThinProduct:
    """A product between two buffers, set up once: `run(n)` is out[:n] = rows[:n] @ weight.T + bias, or += of it."""

    def __init__(
        self,
        team: ThinTeam,
        matrix: ThinMatrix,
        rows: _FloatArray,
        out: _FloatArray,
        *,
        bias: _FloatArray | None = None,
        norm: RowNorm | None = None,
        adds: bool = False,
    ) -> None:
        """rows: [most, inputs]; out: [most, outputs]; both C order and kept. Raises ValueError when something does not fit."""
        arrays = [rows, out, *(() if bias is None else (bias,)), *(() if norm is None else (norm.scale,))]
        if any(array.dtype != np.float32 or not array.flags.c_contiguous for array in arrays):
            raise ValueError("a thin product works on float32 arrays in C order")
        _check_processor(matrix)
        if rows.shape[1] != matrix.num_inputs or out.shape != (len(rows), matrix.num_outputs):
            raise ValueError(f"{rows.shape} times a matrix of {matrix.num_inputs} x {matrix.num_outputs} is not {out.shape}")
        if (bias is not None and bias.shape != out.shape[1:]) or (norm is not None and norm.scale.shape != rows.shape[1:]):
            raise ValueError("bias and scale need a value for each column")
        normed = None if norm is None else zeros_on_lines(rows.shape, np.float32)
        rounded = zeros_on_lines((len(rows), matrix.rounded_len), np.uint32) if matrix.rounded_len else None
        self._matrix, self._kept = matrix, (team, arrays, normed, rounded)  # the structure below holds addresses only
        self._rows, self._rounds_only = rows, norm is None and matrix.format is PanelFormat.PAIRS
        self._most = len(rows)
        self._call = _Call(
            rows.ctypes.data,
            matrix.panels.ctypes.data,
            None if matrix.column_scale is None else matrix.column_scale.ctypes.data,
            None if bias is None else bias.ctypes.data,
            None if norm is None else norm.scale.ctypes.data,
            None if normed is None else normed.ctypes.data,
            None if rounded is None else rounded.ctypes.data,
            out.ctypes.data,
            None,
            matrix.num_inputs,
            matrix.num_outputs,
            0,
            0.0 if norm is None else norm.epsilon,
            matrix.format,
            adds,
            False,
        )
        self.address = ctypes.addressof(self._call)
        self._function, self._team = team.library.thin_product_once, team.handle

    def takes_halves_of(self, rows: _FloatArray) -> int | None:
        """Where who makes these rows is to put them as bfloat16 from now on, each from an even place on; they are rounded no more here.
        None where floats are taken as before. Raises ValueError when they are not the product's rows."""
        if rows is not self._rows:
            raise ValueError("these are not the rows of the product")
        if not self._rounds_only:
            return None
        self._call.x = None
        return cast(int, self._call.rounded)

    def limit_to(self, panels: _IntArray) -> None:
        """From now on only these panels of PANEL columns are computed, and `out` keeps whatever it holds in the others. panels: int32,
        ascending, kept. Not while a product runs. Raises ValueError where they are no panels of the matrix."""
        num_panels = -(-self._call.outputs // PANEL)
        if panels.dtype != np.int32 or not panels.flags.c_contiguous or not len(panels):
            raise ValueError("panels are listed in an int32 array in C order, at least one of them")
        if panels[0] < 0 or panels[-1] >= num_panels or (np.diff(panels) <= 0).any():
            raise ValueError(f"panels are to ascend within [0, {num_panels})")
        self._listed = panels  # the structure holds its address only
        self._call.listed, self._call.num_listed = panels.ctypes.data, len(panels)

    @property
    def read_bytes(self) -> int:
        """Of the matrix, what a product reads: all, or the panels that it is limited to."""
        whole, num_panels = self._matrix.num_bytes, -(-self._call.outputs // PANEL)
        return whole * self._call.num_listed // num_panels if self._call.listed else whole

    def stream(self) -> None:
        """From now on the matrix is taken to come from memory, as a part of more than a cache keeps: the same bits, fetched otherwise."""
        self._call.is_streamed = True

    def run(self, num_rows: int) -> None:
        """The first num_rows rows, at most as many as the buffers have."""
        assert num_rows <= self._most
        self._function(self._team, self.address, num_rows)
