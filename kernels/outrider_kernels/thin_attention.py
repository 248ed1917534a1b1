"""Attention of a step's few rows over a paged cache, from projected heads to what they attend to, compiled (thin/attention.c).

One call a layer turns queries and keys to their positions (with Qwen3's norm first, where there is one), stores keys and values, and
attends. Keys are read in place, run by run. A row's bits depend on what it sees alone. The definition is the pair of
`paged_tree_attention.reference_paged_tree_attention` and the rotation before it; the tests compare with the torch forward. Must not know
models, sequences or positions' meaning.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider_kernels.array_address import address_of
from outrider_kernels.thin_team import ThinTeam

MAX_HEAD_DIM = 256
HEAD_DIM_MULTIPLE = 8

_NO_TAIL = 0, 0

_FloatArray = npt.NDArray[np.float32]
PoolArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
_LongArray = npt.NDArray[np.int64]


class _Layer(ctypes.Structure):
    """thin_layer of thin/attention.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("heads", "attended", "pool", "rotations", "qk_scale")),
        *((name, ctypes.c_int64) for name in ("num_heads", "num_kv_heads", "dim", "num_slots", "holds_halves")),
        ("scaling", ctypes.c_float),
        ("epsilon", ctypes.c_float),
    )


@dataclass(frozen=True, slots=True)
class RowKeys:
    """One sequence's rows [begin, end) and the keys they read. runs: pool ranges in logical order. tail_mask: float32 [rows, tail]; several
    may have the same."""

    begin: int
    end: int
    runs: tuple[tuple[int, int], ...]
    tail_mask: _FloatArray | None


class ThinStep:
    """Which rows of a step read which keys; the same for all layers with one window. address: of a thin_step of thin/thin.h."""

    def __init__(self, positions: _LongArray, slots: _LongArray, sequences: Sequence[RowKeys]) -> None:
        """positions, slots: int64 [rows], writable and in C order, at least one."""
        # all structures are 64-bit fields all through, addresses among them
        runs = array("q", [edge for keys in sequences for run in keys.runs for edge in run])
        masks = {id(mask): np.ascontiguousarray(mask, np.float32) for keys in sequences if (mask := keys.tail_mask) is not None}
        tails = {place: (address_of(mask), mask.shape[1]) for place, mask in masks.items()}
        next_run, _ = runs.buffer_info()
        fields: list[int] = []  # a list grows several times as fast as an array
        for keys in sequences:
            num_keys = 0
            for begin, end in keys.runs:
                num_keys += end - begin
            tail = _NO_TAIL if keys.tail_mask is None else tails[id(keys.tail_mask)]
            fields += (keys.begin, keys.end, next_run, len(keys.runs), num_keys, *tail)
            next_run += len(keys.runs) * 2 * runs.itemsize
        table = array("q", fields)
        table_address, _ = table.buffer_info()
        step = array("q", (address_of(positions), address_of(slots), table_address, len(positions), len(sequences)))
        self._kept = (positions, slots, runs, masks, table, step)  # the structures hold addresses only
        self.address, _ = step.buffer_info()


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """qk_scale: float32 [num_heads + num_kv_heads, dim], the weight of the norm of queries and keys times sqrt(dim); None: no norm."""

    num_heads: int
    num_kv_heads: int
    dim: int
    epsilon: float
    qk_scale: _FloatArray | None = None


def serves_heads_of(dim: int) -> bool:
    """Whether heads of this length can be attended to here."""
    return dim % HEAD_DIM_MULTIPLE == 0 and dim <= MAX_HEAD_DIM


class ThinAttention:
    """One layer's attention between buffers: `run(step)` reads the heads of the step's rows and writes what they attend to."""

    def __init__(
        self, team: ThinTeam, sizes: HeadSizes, heads: _FloatArray, attended: _FloatArray, pool: PoolArray, rotations: _FloatArray
    ) -> None:
        """heads: [most, (num_heads + 2 num_kv_heads) * dim]: queries, keys, values, rotary partners neighbours. attended: [most,
        num_heads * dim]. pool: [2, num_kv_heads, num_slots, dim], float32, or uint16: the bits of bfloat16, to which keys and values are
        rounded as they are stored, and as which all rows see them, those of the same step too. rotations: [positions, dim]: cosine and
        sine of each pair. All are kept. Raises ValueError when something does not fit."""
        num_all = sizes.num_heads + 2 * sizes.num_kv_heads
        arrays = (heads, attended, pool, rotations, *(() if sizes.qk_scale is None else (sizes.qk_scale,)))
        holds_halves = pool.dtype == np.uint16
        if any(not array.flags.c_contiguous or (array.dtype != np.float32 and not (array is pool and holds_halves)) for array in arrays):
            raise ValueError("thin attention works on float32 arrays in C order, and a pool of those or of bfloat16's bits")
        fits = heads.shape[1] == num_all * sizes.dim and attended.shape == (len(heads), sizes.num_heads * sizes.dim)
        if not fits or pool.shape[:2] != (2, sizes.num_kv_heads) or pool.shape[3] != sizes.dim or rotations.shape[1] != sizes.dim:
            raise ValueError(f"heads {heads.shape}, attended {attended.shape}, pool {pool.shape} do not fit {sizes}")
        if not serves_heads_of(sizes.dim) or sizes.num_heads % sizes.num_kv_heads:
            raise ValueError(f"{sizes} is not served: dim must be a multiple of {HEAD_DIM_MULTIPLE}, at most {MAX_HEAD_DIM}")
        self._kept = (team, sizes, arrays)
        self._layer = _Layer(
            heads.ctypes.data,
            attended.ctypes.data,
            pool.ctypes.data,
            rotations.ctypes.data,
            None if sizes.qk_scale is None else sizes.qk_scale.ctypes.data,
            sizes.num_heads,
            sizes.num_kv_heads,
            sizes.dim,
            pool.shape[2],
            holds_halves,
            sizes.dim**-0.5,
            sizes.epsilon * sizes.dim,
        )
        self.address = ctypes.addressof(self._layer)
        self._function, self._team = team.library.thin_attention, team.handle

    def run(self, step: ThinStep) -> None:
        """Turn, store, attend."""
        self._function(self._team, self.address, step.address)
