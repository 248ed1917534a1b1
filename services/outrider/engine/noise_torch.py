"""The noise field of outrider.noise.field in torch, bit for bit, on any device.

Torch has no unsigned 64-bit arithmetic worth the name, so bits travel as int64: sums and products wrap, and logical shifts mask the
sign's copies. The logarithm mirrors outrider.noise.exact_log operation by operation; nothing here may be fused (no addcmul, no
alpha=, no compile) or the last bit goes. Must not know logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.noise.exact_log import (
    EXPONENT_BIAS,
    EXPONENT_SHIFT,
    LN2_HIGH,
    LN2_LOW,
    MANTISSA_MASK,
    ONE_BITS,
    SERIES,
    SQRT_TWO,
)
from outrider.noise.field import (
    MIX_FACTOR_1,
    MIX_FACTOR_2,
    MIX_SHIFT_1,
    MIX_SHIFT_2,
    MIX_SHIFT_3,
    POSITION_STEP,
    TOKEN_STEP,
    UNIFORM_SHIFT,
    UNIFORM_UNIT,
)


def signed64(value: int) -> int:
    """The int64 with the same bits as an unsigned 64-bit value."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def mix64(values: Tensor) -> Tensor:
    """The field's avalanche on int64 bits; returns a new tensor of the same shape."""
    mixed = (values ^ _shift_right(values, MIX_SHIFT_1)) * signed64(MIX_FACTOR_1)
    mixed = (mixed ^ _shift_right(mixed, MIX_SHIFT_2)) * signed64(MIX_FACTOR_2)
    return mixed ^ _shift_right(mixed, MIX_SHIFT_3)


def position_subkeys(keys: Tensor, positions: Tensor) -> Tensor:
    """int64 subkeys of positions under keys (int64 bits), broadcast."""
    return mix64(keys + (positions + 1) * signed64(POSITION_STEP))


def token_bits(subkeys: Tensor, tokens: Tensor) -> Tensor:
    """int64 bits of tokens under subkeys, broadcast."""
    return mix64(subkeys + (tokens + 1) * signed64(TOKEN_STEP))


def bits(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """int64 whose bits are those of outrider.noise.field.bits; int64 arguments, broadcast."""
    return token_bits(position_subkeys(keys, positions), tokens)


def uniform_of(noise_bits: Tensor) -> Tensor:
    """float64 in (0, 1) from the top 52 bits."""
    return (_shift_right(noise_bits, UNIFORM_SHIFT).to(torch.float64) + 0.5) * UNIFORM_UNIT


def gumbel_of(noise_bits: Tensor) -> Tensor:
    """Standard Gumbel float32 of the field's bits."""
    return (-natural_log(-natural_log(uniform_of(noise_bits)))).to(torch.float32)


def gumbel(keys: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Standard Gumbel float32 at each (key, position, token); int64 arguments, broadcast."""
    return gumbel_of(bits(keys, positions, tokens))


def natural_log(x: Tensor) -> Tensor:
    """log(x) elementwise for positive, normal, finite float64, equal to outrider.noise.exact_log in every bit."""
    pattern = x.view(torch.int64)
    exponent = (pattern >> EXPONENT_SHIFT) - EXPONENT_BIAS
    mantissa = ((pattern & MANTISSA_MASK) | ONE_BITS).view(torch.float64)
    large = mantissa > SQRT_TWO
    mantissa = torch.where(large, mantissa * 0.5, mantissa)
    scale = torch.where(large, exponent + 1, exponent).to(torch.float64)
    fraction = mantissa - 1.0
    s = fraction / (fraction + 2.0)
    z = s * s
    series = torch.full_like(z, SERIES[-1])
    for coefficient in reversed(SERIES[:-1]):
        series = series * z
        series = series + coefficient
    series = series * z
    correction = s * (fraction - series)
    low = scale * LN2_LOW
    return scale * LN2_HIGH + (fraction - (correction - low))


def _shift_right(values: Tensor, shift: int) -> Tensor:
    return (values >> shift) & ((1 << (64 - shift)) - 1)
