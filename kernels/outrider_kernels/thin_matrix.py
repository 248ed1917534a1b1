"""A matrix that was packed once, in the form in which products of few rows read it fastest.

A general product rearranges the matrix on every call, which for few rows costs as much as the arithmetic; with these none does. Weights
that are bfloat16 numbers, as checkpoints mostly are, stay so in memory: each is the very float it stands for, at half the bytes, and bytes
are what a product of few rows waits for. So do weights that were made int8 (int8_weight.py), at a quarter. Where the processor multiplies
bfloat16 numbers itself, rows may be rounded to bfloat16 as well (`pack_pairs`): many rows then take half the time, and get other bits;
where it multiplies float16 numbers, rows may be rounded to those (`pack_float16`), and where whole numbers of 16 bits come quicker than
floats, to those (`pack_fixed16`). Where a guess is enough, int8 weights may meet such rows: rounded to 16 bits where the processor
multiplies bytes (`pack_quads`: half the bytes of pairs and, for one row, half the time), else by blocks
(`pack_fixed8`). Must not know products, models or batches. Source: the packed panels of Goto & van de Geijn, ACM TOMS 34(3), 2008.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from outrider_kernels.cache_lines import copy_on_lines, zeros_on_lines

PANEL = 16  # columns, as in thin/thin.h
_LANES = 8
_QUAD = 4
_QUAD_OFFSET = 128  # by which values lie higher, as in thin/quads.c
_DIGITS_TAIL = 4  # numbers behind the digits of a row, as there
_LINE = 16  # numbers of a cache line
_CROWDED = 256  # pairs: rows a multiple of so many apart would meet in a few places of a cache, as in thin/thin.h
_FLOAT16_TAIL = 16  # and behind the pairs of a row, which fill whole lines, as in thin/float16.c
MOST_QUAD_INPUTS = 131072  # so many products of a digit and a value, at most 128 * 127 each, stay within 32 bits; on the way sums may wrap
_FLOAT16_BITS = 9  # a column's largest weight is below 2 to it: in thin/float16.c 32 of them, times rows below 2, are to stay below 65,504
_FIXED16_BITS = 14  # and here, in thin/fixed16.c, 32 of them times 4,095 within 32 bits
_BLOCK = 32  # inputs of a row that share a scale, as there
_LEAST_EXPONENT = -126  # of a column's power of two: below it that were no normal float

_FloatArray = npt.NDArray[np.float32]


class PanelFormat(IntEnum):
    """How weights lie in panels, as in thin/thin.h: float32, bfloat16 bits, int8 with a scale for each column, bfloat16 bits of two
    inputs in a number, for rows that are rounded to bfloat16 too, int8 of four inputs in a number, for rows rounded to 16 bits, or float16
    of two inputs side by side with a power of two for each column, for rows rounded to float16, or int16 in the same order, for rows that
    are whole numbers by blocks, or int8 in that order with a scale for each column, for the same rows."""

    FLOATS = 0
    HALVES = 1
    BYTES = 2
    PAIRS = 3
    QUADS = 4
    FLOAT16 = 5
    FIXED16 = 6
    FIXED8 = 7


_FORMATS = {  # by type and dimensions of the panels
    (np.dtype(np.float32), 3): PanelFormat.FLOATS,
    (np.dtype(np.uint16), 3): PanelFormat.HALVES,
    (np.dtype(np.int8), 3): PanelFormat.BYTES,
    (np.dtype(np.uint32), 3): PanelFormat.PAIRS,
    (np.dtype(np.uint8), 4): PanelFormat.QUADS,
    (np.dtype(np.float16), 4): PanelFormat.FLOAT16,
    (np.dtype(np.int16), 4): PanelFormat.FIXED16,
    (np.dtype(np.int8), 4): PanelFormat.FIXED8,
}


@dataclass(frozen=True, slots=True)
class ThinMatrix:
    """A packed matrix. panels: [panels, inputs, PANEL], float32, or uint16 when every weight is a bfloat16 number, or int8; or uint32
    [panels, pairs of inputs, PANEL], bfloat16 numbers for rows that are rounded too; or uint8 [panels, quads of inputs, PANEL, 4], int8
    values 128 higher; or float16, int16 or int8 [panels, pairs of inputs, PANEL, 2].

    column_scale: float32 [outputs], what a column's values are multiples of; None for other float types than float16.
    """

    panels: npt.NDArray[Any]
    num_inputs: int
    num_outputs: int
    column_scale: _FloatArray | None = None

    @property
    def format(self) -> PanelFormat:
        """How the weights are kept."""
        return _FORMATS[self.panels.dtype, self.panels.ndim]

    @property
    def is_half(self) -> bool:
        """Whether the weights are kept as bfloat16."""
        return self.format is PanelFormat.HALVES

    @property
    def num_bytes(self) -> int:
        """Of memory."""
        return self.panels.nbytes + (0 if self.column_scale is None else self.column_scale.nbytes)

    @property
    def rounded_len(self) -> int:
        """uint32 numbers of a row that is rounded for it; 0 where rows are taken as they are."""
        match self.format:
            case PanelFormat.PAIRS:
                pairs = -(-self.num_inputs // 2)
                return pairs if pairs % _CROWDED else pairs + _LINE  # pairs_apart of thin/thin.h
            case PanelFormat.QUADS:
                return 2 * -(-self.num_inputs // _QUAD) + _DIGITS_TAIL
            case PanelFormat.FLOAT16:
                return -(-self.num_inputs // (2 * _FLOAT16_TAIL)) * _FLOAT16_TAIL + _FLOAT16_TAIL
            case PanelFormat.FIXED16 | PanelFormat.FIXED8:
                blocks = -(-self.num_inputs // _BLOCK)
                return blocks * _BLOCK // 2 + -(-blocks // _LINE) * _LINE
            case _:
                return 0

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
            case PanelFormat.FLOAT16 | PanelFormat.FIXED16 | PanelFormat.FIXED8:
                values = panels.swapaxes(2, 3).reshape(len(panels), -1, size)[:, : self.num_inputs].astype(np.float32)
            case _:
                values = panels.astype(np.float32)
        matrix = values.transpose(1, 0, 2).reshape(self.num_inputs, -1)[:, : self.num_outputs]
        return np.ascontiguousarray(matrix if self.column_scale is None else matrix * self.column_scale)

    @staticmethod
    def joined(parts: Sequence[ThinMatrix]) -> ThinMatrix:
        """The matrix that has these, at least one, one below the other. Raises ValueError where they have other inputs or forms than the
        first, or one but the last ends within a panel. Of floats and halves it is floats."""
        formats = {part.format for part in parts}
        if formats == {PanelFormat.FLOATS, PanelFormat.HALVES}:
            return ThinMatrix.joined([ThinMatrix._of_floats(part.unpacked().T) for part in parts])
        if len(formats) != 1 or len({part.num_inputs for part in parts}) != 1 or any(part.num_outputs % PANEL for part in parts[:-1]):
            raise ValueError("parts of a matrix have the same inputs and form, and all but the last end with a panel")
        first, num_outputs = parts[0], sum(part.num_outputs for part in parts)
        panels = zeros_on_lines((-(-num_outputs // PANEL), *first.panels.shape[1:]), first.panels.dtype.type)
        np.concatenate([part.panels for part in parts], out=panels)
        scales = [part.column_scale for part in parts if part.column_scale is not None]
        return ThinMatrix(panels, first.num_inputs, num_outputs, np.concatenate(scales) if scales else None)

    @staticmethod
    def _of_floats(weight: _FloatArray) -> ThinMatrix:
        return ThinMatrix(copy_on_lines(_panels(weight)), weight.shape[1], weight.shape[0])

    @staticmethod
    def pack(weight: _FloatArray) -> ThinMatrix:
        """weight: float32 [outputs, inputs]."""
        num_outputs, num_inputs = weight.shape
        bits = np.ascontiguousarray(weight).view(np.uint32)
        if (bits & np.uint32(0xFFFF)).any():
            return ThinMatrix._of_floats(weight)
        panels = _panels((bits >> np.uint32(16)).astype(np.uint16))
        # column n and column n + _LANES are neighbours: one load gives both
        pairs = panels.reshape(len(panels), num_inputs, 2, _LANES).swapaxes(2, 3)
        return ThinMatrix(copy_on_lines(pairs).reshape(panels.shape), num_inputs, num_outputs)

    @staticmethod
    def pack_pairs(weight: _FloatArray) -> ThinMatrix:
        """The matrix rounded to bfloat16, two inputs a number, for rows that are rounded too. weight: float32 [outputs, inputs]."""
        num_outputs, num_inputs = weight.shape
        pairs = _bfloat16_bits(_even(weight)).view(np.uint32)  # [outputs, pairs], the first of a pair in the lower half
        return ThinMatrix(copy_on_lines(_panels(pairs)), num_inputs, num_outputs)

    @staticmethod
    def pack_float16(weight: _FloatArray) -> ThinMatrix:
        """The matrix for rows that are rounded to float16. weight: float32 [outputs, inputs]. Each column times a power of two, so that its
        bfloat16 numbers are float16 numbers too: all but those below 2^-25 of its largest, which come as near as 2^-33 of that."""
        num_outputs, num_inputs = weight.shape
        exponents = _column_exponents(weight, _FLOAT16_BITS)
        numbers = _even(weight, np.ldexp(np.float32(1.0), -exponents)).astype(np.float16)
        panels = copy_on_lines(_panels(numbers.view(np.uint32)))  # [panels, pairs, PANEL], the first of a pair in the lower half
        scale = np.ldexp(np.float32(1.0), exponents)
        return ThinMatrix(panels.view(np.float16).reshape(*panels.shape, 2), num_inputs, num_outputs, scale)

    @staticmethod
    def pack_fixed16(weight: _FloatArray) -> ThinMatrix:
        """The matrix for rows that are rounded to whole numbers by blocks. weight: float32 [outputs, inputs]. Each column is rounded to
        multiples of a power of two, 2^-15 to 2^-14 of its largest; what has a weight that is no number is none at all."""
        num_outputs, num_inputs = weight.shape
        exponents = _column_exponents(weight, _FIXED16_BITS)
        is_finite = np.isfinite(np.abs(weight).max(axis=1))
        if not is_finite.all():
            weight = np.where(is_finite[:, None], weight, np.float32(0.0))
        even = _even(weight, np.ldexp(np.float32(1.0), -exponents))
        numbers = np.rint(even, out=even).astype(np.int16)
        panels = copy_on_lines(_panels(numbers.view(np.uint32)))  # [panels, pairs, PANEL], the first of a pair in the lower half
        scale = np.where(is_finite, np.ldexp(np.float32(1.0), exponents), np.float32(np.nan)).astype(np.float32)
        return ThinMatrix(panels.view(np.int16).reshape(*panels.shape, 2), num_inputs, num_outputs, scale)

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

    @staticmethod
    def pack_fixed8(values: npt.NDArray[np.int8], scale: _FloatArray) -> ThinMatrix:
        """As `pack_int8`, for rows that are rounded to whole numbers by blocks."""
        _check_scale(values, scale)
        num_outputs, num_inputs = values.shape
        even = np.zeros((num_outputs, num_inputs + num_inputs % 2), np.int8)
        even[:, :num_inputs] = values
        panels = copy_on_lines(_panels(even.view(np.uint16)))  # [panels, pairs, PANEL], the first of a pair in the lower byte
        return ThinMatrix(panels.view(np.int8).reshape(*panels.shape, 2), num_inputs, num_outputs, np.ascontiguousarray(scale))


def _check_scale(values: npt.NDArray[np.int8], scale: _FloatArray) -> None:
    if values.dtype != np.int8 or scale.dtype != np.float32 or scale.shape != values.shape[:1]:
        raise ValueError(f"int8 values need a float32 scale for each output, not {scale.dtype} {scale.shape}")


def _column_exponents(weight: _FloatArray, bits: int) -> npt.NDArray[np.int32]:
    """Of each output, the power of two that its largest weight is below 2^bits of, and at least half of that. [outputs]."""
    most = np.abs(weight).max(axis=1)
    _, exponents = np.frexp(np.where(np.isfinite(most), most, np.float32(1.0)))
    return np.maximum(exponents - np.int32(bits), np.int32(_LEAST_EXPONENT))


def _even(weight: _FloatArray, factors: _FloatArray | None = None) -> _FloatArray:
    """A copy with a zero behind an odd number of inputs, each output times its factor. weight: [outputs, inputs]; factors: [outputs]."""
    num_outputs, num_inputs = weight.shape
    even = np.zeros((num_outputs, num_inputs + num_inputs % 2), np.float32)
    if factors is None:
        even[:, :num_inputs] = weight
    else:
        np.multiply(weight, factors[:, None], out=even[:, :num_inputs])
    return even


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
