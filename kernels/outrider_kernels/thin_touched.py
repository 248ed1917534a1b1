"""The logits of a sequence that biases and penalties change before its picks, as compiled picks read them (thin/touched.c).

Whoever counts tokens owns the arrays, and says when they have grown. Must not know how tokens are counted, or picks.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from outrider_kernels.array_address import address_of

UNSEEN = -1  # the count of a token that stands in neither prompt nor output


class _Touched(ctypes.Structure):
    """thin_touched of thin/thin.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ids", "counts", "biases")),
        ("length", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("repetition", "frequency", "presence")),
        ("origin", ctypes.c_void_p),
    )


class ThinTouched:
    """repetition (1 is off), frequency, presence (0 is off): as in outrider_kernels.processed_logits. address: of the structure, for as
    long as this lives."""

    def __init__(self, repetition: float, frequency: float, presence: float) -> None:
        self._touched = _Touched(repetition=repetition, frequency=frequency, presence=presence)
        self._kept: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float64]] | None = None
        self.address = self._touched.origin = ctypes.addressof(self._touched)

    def lie_in(self, ids: npt.NDArray[np.int32], counts: npt.NDArray[np.int32], biases: npt.NDArray[np.float64]) -> None:
        """From now on the tokens are in these, which are kept: distinct ids; how often each is in the output, UNSEEN where it is biased
        only; and biases."""
        self._kept = ids, counts, biases
        self._touched.ids, self._touched.counts, self._touched.biases = (address_of(part) for part in self._kept)

    def hold(self, length: int) -> None:
        """So many of their first entries are real."""
        self._touched.length = length
