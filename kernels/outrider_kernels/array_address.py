"""Where an array's numbers lie, for structures that hold addresses.

Must not know what the numbers are.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy.typing as npt


def address_of(array: npt.NDArray[Any]) -> int:
    """Of a writable array in C order, of at least one number; whoever keeps the address keeps the array.

    `array.ctypes.data`, which takes any array, takes several times as long: where its code has left the caches, 20 us of a small step.
    Raises TypeError or ValueError for an array of another kind.
    """
    numbers: Any = array  # numpy's stubs do not say that arrays are buffers
    return ctypes.addressof(ctypes.c_char.from_buffer(numbers))
