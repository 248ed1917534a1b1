"""Arrays that begin at a cache line's border, where numpy's begin anywhere: a vector of 512 bits across two lines costs two loads.

Must not know what is kept in them.
"""

from __future__ import annotations

from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt

LINE_LEN = 64  # bytes

Scalar = TypeVar("Scalar", bound=np.generic)


def zeros_on_lines(shape: tuple[int, ...], dtype: type[Scalar]) -> npt.NDArray[Scalar]:
    """Zeros in C order, the first at an address that is a multiple of LINE_LEN."""
    num_bytes = prod(shape) * np.dtype(dtype).itemsize
    room = np.zeros(num_bytes + LINE_LEN, np.uint8)
    begin = -room.ctypes.data % LINE_LEN
    return room[begin : begin + num_bytes].view(dtype).reshape(shape)


def copy_on_lines(values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """The same values in C order, at such an address."""
    copy = zeros_on_lines(values.shape, values.dtype.type)
    copy[...] = values
    return copy
