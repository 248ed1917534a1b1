"""Products of few rows with a matrix that was packed once: numpy arrays in and out, a compiled C file in between.

A general product rearranges the matrix on every call, which for few rows costs as much as the arithmetic; this one never does. Weights that
are bfloat16 numbers, as checkpoints mostly are, stay so in memory: each is the very float it stands for, at half the bytes, and bytes are
what a thin product waits for. So do weights that were made int8 (int8_weight.py), at a quarter. Where the processor multiplies bfloat16
numbers itself, rows may be rounded to bfloat16 as well (`pack_pairs`): many rows then take half the time, and get other bits. Where it
multiplies bytes, int8 weights may meet rows that are rounded to whole numbers of 16 bits (`pack_quads`): half the bytes of pairs and, for
one row, half the time, where a guess is enough. A row's bits depend on the row and the matrix alone (thin/product.c, thin/quads.c).
Definition: `reference_product`, for int8 of the dequantised weights, for pairs and quads of what rows and weights are rounded to. Must not
know models or batches. Source: the register tiles and packed panels of Goto & van de Geijn, ACM TOMS 34(3), 2008.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from outrider_kernels.cache_lines import copy_on_lines, zeros_on_lines
from outrider_kernels.thin_team import ThinTeam, multiplies_bfloat16, multiplies_bytes

PANEL = 16  # columns, as in thin/product.c
_LANES = 8
_QUAD = 4
_QUAD_OFFSET = 128  # by which values lie higher, as in thin/quads.c
_ROW_TAIL = 4  # numbers behind the digits of a row, as there
MOST_QUAD_INPUTS = 131072  # so many products of a digit and a value, at most 128 * 127 each, stay within 32 bits; on the way sums may wrap

_FloatArray = npt.NDArray[np.float32]


class PanelFormat(IntEnum):
    """How weights lie in panels, as in thin/product.c: float32, bfloat16 bits, int8 with a scale for each column, bfloat16 bits of two
    inputs in a number, for rows that are rounded to bfloat16 too, or int8 of four inputs in a number, for rows rounded to 16 bits."""

    FLOATS = 0
    HALVES = 1
    BYTES = 2
    PAIRS = 3
    QUADS = 4


_FORMATS = {
    np.dtype(np.float32): PanelFormat.FLOATS,
    np.dtype(np.uint16): PanelFormat.HALVES,
    np.dtype(np.int8): PanelFormat.BYTES,
    np.dtype(np.uint32): PanelFormat.PAIRS,
    np.dtype(np.uint8): PanelFormat.QUADS,
}


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


@dataclass(frozen=True, slots=True)
class ThinMatrix:
    """A packed matrix. panels: [panels, inputs, PANEL], float32, or uint16 when every weight is a bfloat16 number, or int8; or uint32
    [panels, pairs of inputs, PANEL], bfloat16 numbers for rows that are rounded too; or uint8 [panels, quads of inputs, PANEL, 4], int8
    values 128 higher.

    column_scale: float32 [outputs], what a column's int8 values are multiples of; None for float types.
    """

    panels: npt.NDArray[Any]
    num_inputs: int
    num_outputs: int
    column_scale: _FloatArray | None = None

    @property
    def format(self) -> PanelFormat:
        """How the weights are kept."""
        return _FORMATS[self.panels.dtype]

    @property
    def is_half(self) -> bool:
        """Whether the weights are kept as bfloat16."""
        return self.format is PanelFormat.HALVES

    @property
    def num_bytes(self) -> int:
        """Of memory."""
        return self.panels.nbytes + (0 if self.column_scale is None else self.column_scale.nbytes)

    def unpacked(self) -> _FloatArray:
        """float32 [inputs, outputs], as the products read it; of int8 the dequantised weights. A new array."""
        panels, size = self.panels, PANEL
        match self.format:
            case PanelFormat.HALVES:
                columns = panels.reshape(*panels.shape[:2], _LANES, 2).swapaxes(2, 3).reshape(panels.shape)
                values = (columns.astype(np.uint32) << np.uint32(16)).view(np.float32)
            case PanelFormat.PAIRS:
                pairs = np.stack([panels << np.uint32(16), panels & np.uint32(0xFFFF0000)], axis=2)
                values = pairs.view(np.float32).reshape(len(panels), -1, size)[:, : self.num_inputs]
            case PanelFormat.QUADS:
                columns = panels.swapaxes(2, 3).reshape(len(panels), -1, size)[:, : self.num_inputs]
                values = columns.astype(np.float32) - np.float32(_QUAD_OFFSET)
            case _:
                values = panels.astype(np.float32)
        matrix = values.transpose(1, 0, 2).reshape(self.num_inputs, -1)[:, : self.num_outputs]
        return np.ascontiguousarray(matrix if self.column_scale is None else matrix * self.column_scale)

    @staticmethod
    def pack(weight: _FloatArray) -> ThinMatrix:
        """weight: float32 [outputs, inputs]."""
        num_outputs, num_inputs = weight.shape
        bits = np.ascontiguousarray(weight).view(np.uint32)
        if (bits & np.uint32(0xFFFF)).any():
            return ThinMatrix(copy_on_lines(_panels(weight)), num_inputs, num_outputs)
        panels = _panels((bits >> np.uint32(16)).astype(np.uint16))
        # column n and column n + _LANES are neighbours: one load gives both
        pairs = panels.reshape(len(panels), num_inputs, 2, _LANES).swapaxes(2, 3)
        return ThinMatrix(copy_on_lines(pairs).reshape(panels.shape), num_inputs, num_outputs)

    @staticmethod
    def pack_pairs(weight: _FloatArray) -> ThinMatrix:
        """The matrix rounded to bfloat16, two inputs a number, for rows that are rounded too. weight: float32 [outputs, inputs]."""
        num_outputs, num_inputs = weight.shape
        even = np.zeros((num_outputs, num_inputs + num_inputs % 2), np.float32)
        even[:, :num_inputs] = weight
        pairs = _bfloat16_bits(even).view(np.uint32)  # [outputs, pairs], the first of a pair in the lower half
        return ThinMatrix(copy_on_lines(_panels(pairs)), num_inputs, num_outputs)

    @staticmethod
    def pack_int8(values: npt.NDArray[np.int8], scale: _FloatArray) -> ThinMatrix:
        """The matrix values * scale[:, None]. values: [outputs, inputs]; scale: [outputs]. Raises ValueError when they do not fit."""
        _check_scale(values, scale)
        num_outputs, num_inputs = values.shape
        return ThinMatrix(copy_on_lines(_panels(values)), num_inputs, num_outputs, np.ascontiguousarray(scale))

    @staticmethod
    def pack_quads(values: npt.NDArray[np.int8], scale: _FloatArray) -> ThinMatrix:
        """As `pack_int8`, for rows that are rounded to 16 bits: of at most MOST_QUAD_INPUTS inputs, else ValueError."""
        _check_scale(values, scale)
        num_outputs, num_inputs = values.shape
        if num_inputs > MOST_QUAD_INPUTS:
            raise ValueError(f"sums over {num_inputs} inputs may leave 32 bits; at most {MOST_QUAD_INPUTS} can be")
        higher = np.full((num_outputs, -(-num_inputs // _QUAD) * _QUAD), _QUAD_OFFSET, np.uint8)
        higher[:, :num_inputs] = (values.astype(np.int16) + _QUAD_OFFSET).astype(np.uint8)
        quads = _panels(higher.view(np.uint32))  # [outputs, quads], the first of a quad in the lowest byte
        panels = copy_on_lines(quads)
        return ThinMatrix(panels.view(np.uint8).reshape(*panels.shape, _QUAD), num_inputs, num_outputs, np.ascontiguousarray(scale))


def _check_scale(values: npt.NDArray[np.int8], scale: _FloatArray) -> None:
    if values.dtype != np.int8 or scale.dtype != np.float32 or scale.shape != values.shape[:1]:
        raise ValueError(f"int8 values need a float32 scale for each output, not {scale.dtype} {scale.shape}")


def _bfloat16_bits(values: _FloatArray) -> npt.NDArray[np.uint16]:
    """Rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def _panels(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[panels, inputs, PANEL] of [outputs, inputs], with zeros behind the last output; a view."""
    num_outputs, num_inputs = weight.shape
    num_panels = -(-num_outputs // PANEL)
    padded = np.zeros((num_panels * PANEL, num_inputs), weight.dtype)
    padded[:num_outputs] = weight
    return padded.reshape(num_panels, PANEL, num_inputs).transpose(0, 2, 1)


def _room_for_rounded(matrix: ThinMatrix, num_rows: int) -> npt.NDArray[np.uint32] | None:
    """Where rows lie as the matrix's format wants them, if not as they are."""
    match matrix.format:
        case PanelFormat.PAIRS:
            return zeros_on_lines((num_rows, -(-matrix.num_inputs // 2)), np.uint32)
        case PanelFormat.QUADS:
            return zeros_on_lines((num_rows, 2 * -(-matrix.num_inputs // _QUAD) + _ROW_TAIL), np.uint32)
        case _:
            return None


class _Call(ctypes.Structure):
    """thin_call of thin/thin.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "panels", "column_scale", "bias", "scale", "normed", "rounded", "out")),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
        ("format", ctypes.c_int32),
        ("adds", ctypes.c_int32),
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
        if matrix.format is PanelFormat.PAIRS and not multiplies_bfloat16():
            raise ValueError("this processor does not multiply bfloat16 numbers; pack the matrix for float32 rows")
        if matrix.format is PanelFormat.QUADS and not multiplies_bytes():
            raise ValueError("this processor does not multiply bytes; pack the matrix for float32 rows")
        if rows.shape[1] != matrix.num_inputs or out.shape != (len(rows), matrix.num_outputs):
            raise ValueError(f"{rows.shape} times a matrix of {matrix.num_inputs} x {matrix.num_outputs} is not {out.shape}")
        if (bias is not None and bias.shape != out.shape[1:]) or (norm is not None and norm.scale.shape != rows.shape[1:]):
            raise ValueError("bias and scale need a value for each column")
        normed = None if norm is None else zeros_on_lines(rows.shape, np.float32)
        rounded = _room_for_rounded(matrix, len(rows))
        self._kept = (team, matrix, arrays, normed, rounded)  # the structure below holds addresses only
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
            matrix.num_inputs,
            matrix.num_outputs,
            0.0 if norm is None else norm.epsilon,
            matrix.format,
            adds,
        )
        self.address = ctypes.addressof(self._call)
        self._function, self._team = team.library.thin_product, team.handle

    def takes_halves_of(self, rows: _FloatArray) -> int | None:
        """Where who makes these rows is to put them as bfloat16 from now on, each from an even place on; they are rounded no more here.
        None where floats are taken as before. Raises ValueError when they are not the product's rows."""
        if rows is not self._rows:
            raise ValueError("these are not the rows of the product")
        if not self._rounds_only:
            return None
        self._call.x = None
        return cast(int, self._call.rounded)

    def run(self, num_rows: int) -> None:
        """The first num_rows rows, at most as many as the buffers have."""
        assert num_rows <= self._most
        self._function(self._team, self.address, num_rows)
