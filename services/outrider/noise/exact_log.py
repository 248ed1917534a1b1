"""A natural logarithm whose bits are the same everywhere, because it is made of IEEE basic operations alone.

Library logarithms differ in the last bit between numpy, torch, and machines; a tree of +, -, *, / in a fixed order does not, as
long as no multiply and add are fused (each is its own array operation here and in the torch twin, which mirrors this file).
Method: x = 2^e * m with m in [sqrt(1/2), sqrt(2)); with f = m - 1 (exact) and s = f / (2 + f),
log m = 2 atanh(s) = f - s * (f - S(s^2)), S(z) = 2 z (1/3 + z/5 + z^2/7 + ...). Error below 1 ulp (measured; docs/noise.md).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray64 = npt.NDArray[np.float64]

EXPONENT_SHIFT = 52
EXPONENT_BIAS = 1023
MANTISSA_MASK = (1 << 52) - 1
ONE_BITS = EXPONENT_BIAS << EXPONENT_SHIFT
SQRT_TWO = float.fromhex("0x1.6a09e667f3bcdp+0")
# ln 2 in two parts; the first has enough trailing zeros that its product with any exponent is exact.
LN2_HIGH = float.fromhex("0x1.62e42fefa0000p-1")
LN2_LOW = float.fromhex("0x1.cf79abc9e3b3ap-40")
# 2/3, 2/5, ...: s^2 <= 0.0295, so the first omitted term is below 2^-60 of the result.
SERIES = tuple(2.0 / (2 * k + 1) for k in range(1, 12))


def natural_log(x: FloatArray64) -> FloatArray64:
    """log(x) elementwise for positive, normal, finite float64."""
    pattern = x.view(np.int64)
    exponent = (pattern >> EXPONENT_SHIFT) - EXPONENT_BIAS
    mantissa = ((pattern & MANTISSA_MASK) | ONE_BITS).view(np.float64)
    large = mantissa > SQRT_TWO
    mantissa = np.where(large, mantissa * 0.5, mantissa)
    scale = np.where(large, exponent + 1, exponent).astype(np.float64)
    fraction = mantissa - 1.0
    s = fraction / (fraction + 2.0)
    z = s * s
    series = np.full_like(z, SERIES[-1])
    for coefficient in reversed(SERIES[:-1]):
        series = series * z
        series = series + coefficient
    series = series * z
    correction = s * (fraction - series)
    low = scale * LN2_LOW
    return scale * LN2_HIGH + (fraction - (correction - low))
