"""The addressed noise field in Triton: the same bits and the same Gumbel values as the library's numpy definition (docs/noise.md).

Counters are unsigned 64-bit and wrap. The logarithm is a fixed tree of float64 operations, each rounded by itself, so whoever launches
a kernel that uses it must pass NO_FUSION: a fused multiply-add changes last bits. The constants repeat those of the definition, for
this package imports no other of ours; tests hold them together. Must not know logits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NO_FUSION = {"enable_fp_fusion": False}
BLOCK_TOKENS = 256

_POSITION_STEP = tl.constexpr(0xD1342543DE82EF95)
_TOKEN_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_FACTOR_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_FACTOR_2 = tl.constexpr(0x94D049BB133111EB)
_UNIFORM_UNIT = tl.constexpr(2.0**-52)
_MANTISSA_MASK = tl.constexpr((1 << 52) - 1)
_ONE_BITS = tl.constexpr(1023 << 52)
_SQRT_TWO = tl.constexpr(float.fromhex("0x1.6a09e667f3bcdp+0"))
_LN2_HIGH = tl.constexpr(float.fromhex("0x1.62e42fefa0000p-1"))
_LN2_LOW = tl.constexpr(float.fromhex("0x1.cf79abc9e3b3ap-40"))
_LAST_TERM = tl.constexpr(11)


def gumbel(keys: Tensor, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The field at each (key, position, token): int64 [n] bits and float32 [n] Gumbel values. All arguments int64 [n], keys as bits."""
    bits = torch.empty_like(keys)
    values = torch.empty(keys.shape, dtype=torch.float32, device=keys.device)
    grid = (triton.cdiv(keys.numel(), BLOCK_TOKENS),)
    _gumbel_kernel[grid](keys, positions, tokens, bits, values, keys.numel(), BLOCK_TOKENS=BLOCK_TOKENS, **NO_FUSION)
    return bits, values


@triton.jit
def mix64(values: tl.tensor) -> tl.tensor:
    """The field's avalanche on uint64."""
    mixed = (values ^ (values >> 30)) * _MIX_FACTOR_1
    mixed = (mixed ^ (mixed >> 27)) * _MIX_FACTOR_2
    return mixed ^ (mixed >> 31)


@triton.jit
def position_subkey(key: tl.tensor, position: tl.tensor) -> tl.tensor:
    """uint64 subkey of a position under a key (int64 bits)."""
    return mix64(key.to(tl.uint64, bitcast=True) + (position + 1).to(tl.uint64) * _POSITION_STEP)


@triton.jit
def token_bits(subkey: tl.tensor, token: tl.tensor) -> tl.tensor:
    """uint64 bits of tokens (int64) under a subkey."""
    return mix64(subkey + (token + 1).to(tl.uint64) * _TOKEN_STEP)


@triton.jit
def natural_log(x: tl.tensor) -> tl.tensor:
    """log(x) for positive, normal, finite float64, equal to the definition in every bit when nothing is fused."""
    pattern = x.to(tl.int64, bitcast=True)
    exponent = (pattern >> 52) - 1023
    mantissa = ((pattern & _MANTISSA_MASK) | _ONE_BITS).to(tl.float64, bitcast=True)
    large = mantissa > _SQRT_TWO
    mantissa = tl.where(large, mantissa * 0.5, mantissa)
    scale = tl.where(large, exponent + 1, exponent).to(tl.float64)
    fraction = mantissa - 1.0
    s = fraction / (fraction + 2.0)
    z = s * s
    series = z * 0.0 + 2.0 / (2 * _LAST_TERM + 1)
    for term in tl.static_range(1, _LAST_TERM):
        series = series * z
        series = series + 2.0 / (2 * (_LAST_TERM - term) + 1)
    series = series * z
    correction = s * (fraction - series)
    low = scale * _LN2_LOW
    return scale * _LN2_HIGH + (fraction - (correction - low))


@triton.jit
def uniform_of(noise_bits: tl.tensor) -> tl.tensor:
    """float64 strictly inside (0, 1), exact, of uint64 bits."""
    return ((noise_bits >> 12).to(tl.float64) + 0.5) * _UNIFORM_UNIT


@triton.jit
def gumbel_of(noise_bits: tl.tensor) -> tl.tensor:
    """Standard Gumbel float32 of uint64 bits."""
    exponential = natural_log(uniform_of(noise_bits)) * -1.0
    return (natural_log(exponential) * -1.0).to(tl.float32)


@triton.jit
def _gumbel_kernel(
    keys: tl.tensor, positions: tl.tensor, tokens: tl.tensor, bits_out: tl.tensor, values_out: tl.tensor, num_values: tl.tensor,
    BLOCK_TOKENS: tl.constexpr,
) -> None:  # fmt: skip
    """A block of addresses."""
    index = tl.program_id(0) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    real = index < num_values
    subkey = position_subkey(tl.load(keys + index, mask=real, other=0), tl.load(positions + index, mask=real, other=0))
    bits = token_bits(subkey, tl.load(tokens + index, mask=real, other=0))
    tl.store(bits_out + index, bits.to(tl.int64, bitcast=True), mask=real)
    tl.store(values_out + index, gumbel_of(bits), mask=real)
