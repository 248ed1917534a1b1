"""silu(gate) * up of a few rows between two buffers, compiled (thin/gate.c).

Must not know models. Source: Shazeer 2020 (GLU variants), SwiGLU.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from outrider_kernels.thin_product import ThinProduct
from outrider_kernels.thin_team import ThinTeam

_FloatArray = npt.NDArray[np.float32]


def reference_gate(gate_up: _FloatArray) -> _FloatArray:
    """The definition in fp64, rounded once. gate_up: [rows, 2 * length]; returns [rows, length]."""
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    with np.errstate(over="ignore"):
        return (gate / (1.0 + np.exp(-gate)) * up).astype(np.float32)


class _Call(ctypes.Structure):
    """thin_gate_call of thin/gate.c."""

    _fields_ = (("gate_up", ctypes.c_void_p), ("out", ctypes.c_void_p), ("halves", ctypes.c_void_p), ("length", ctypes.c_int64))


class ThinGate:
    """Set up once: `run(n)` gates the first n rows."""

    def __init__(self, team: ThinTeam, gate_up: _FloatArray, out: _FloatArray, into: ThinProduct | None = None) -> None:
        """gate_up: [most, 2 * length]; out: [most, length]; both kept. Raises ValueError when they are not such. into: the product
        that takes `out`, and nobody else does: where it would round the rows to bfloat16, they come to it so, and not to `out`."""
        if gate_up.shape != (len(out), 2 * out.shape[1]) or not (gate_up.flags.c_contiguous and out.flags.c_contiguous):
            raise ValueError(f"gates of shape {gate_up.shape} do not fit into {out.shape}, or are not in C order")
        if gate_up.dtype != np.float32 or out.dtype != np.float32:
            raise ValueError("a thin gate works on float32 arrays")
        halves = None if into is None else into.takes_halves_of(out)
        self._kept = (team, gate_up, out, into)  # the structure below holds addresses only
        self._call = _Call(gate_up.ctypes.data, out.ctypes.data, halves, out.shape[1])
        self.address = ctypes.addressof(self._call)
        self._function, self._team = team.library.thin_gate, team.handle

    def run(self, num_rows: int) -> None:
        """The first num_rows rows."""
        self._function(self._team, self.address, num_rows)
