"""The noise field: bits, uniforms and Gumbel values addressed by (key, position, token), numpy side.

A counter-based generator: subkey = mix(key + (position + 1) * P), bits = mix(subkey + (token + 1) * G), where mix is the 64-bit
finaliser of SplitMix64 (Steele, Lea, Flood 2014) and P, G are odd. Nothing is drawn, so order, batch and machine do not matter.
The uniform uses the top 52 bits, centred, hence lies strictly inside (0, 1); Gumbel = -log(-log u) in float64 by
`exact_log`, rounded once to float32. Must not know logits. outrider.engine.noise_torch is its bit-identical twin.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.noise.exact_log import FloatArray64, natural_log

BitsArray = npt.NDArray[np.uint64]
Float32Array = npt.NDArray[np.float32]

POSITION_STEP = 0xD1342543DE82EF95
TOKEN_STEP = 0x9E3779B97F4A7C15
MIX_SHIFT_1, MIX_SHIFT_2, MIX_SHIFT_3 = 30, 27, 31
MIX_FACTOR_1, MIX_FACTOR_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
UNIFORM_SHIFT = 12
UNIFORM_UNIT = 2.0**-52
MAX_GUMBEL = 36.75  # just above -log(-log(1 - 2^-53)), the largest value the field can take
_MASK64 = (1 << 64) - 1


def mix64(values: BitsArray) -> BitsArray:
    """A bijection of uint64 that avalanches; wraps silently. Returns a new array of the same shape."""
    mixed = values ^ (values >> np.uint64(MIX_SHIFT_1))
    mixed *= np.uint64(MIX_FACTOR_1)
    mixed ^= mixed >> np.uint64(MIX_SHIFT_2)
    mixed *= np.uint64(MIX_FACTOR_2)
    mixed ^= mixed >> np.uint64(MIX_SHIFT_3)
    return mixed


def position_subkeys(keys: npt.ArrayLike, positions: npt.ArrayLike) -> BitsArray:
    """uint64 subkeys of absolute 0-based positions; keys (unsigned 64 bits) and positions broadcast, at least one-dimensional."""
    counters = np.atleast_1d(np.asarray(positions)).astype(np.uint64) + np.uint64(1)
    return mix64(np.atleast_1d(np.asarray(keys, np.uint64)) + counters * np.uint64(POSITION_STEP))


def token_bits(subkeys: BitsArray, tokens: npt.ArrayLike) -> BitsArray:
    """uint64 bits of tokens under subkeys (broadcast)."""
    counters = np.atleast_1d(np.asarray(tokens)).astype(np.uint64) + np.uint64(1)
    return mix64(subkeys + counters * np.uint64(TOKEN_STEP))


def bits(keys: npt.ArrayLike, positions: npt.ArrayLike, tokens: npt.ArrayLike) -> BitsArray:
    """The field's 64 random bits at each (key, position, token); arguments broadcast, the result is at least one-dimensional."""
    return token_bits(position_subkeys(keys, positions), tokens)


def uniform_of(noise_bits: BitsArray) -> FloatArray64:
    """float64 in (0, 1), symmetric about 1/2, from the top 52 bits."""
    return ((noise_bits >> np.uint64(UNIFORM_SHIFT)).astype(np.float64) + 0.5) * UNIFORM_UNIT


def gumbel_of(noise_bits: BitsArray) -> Float32Array:
    """Standard Gumbel float32 of the field's bits, the canonical values every pick is defined by."""
    return (-natural_log(-natural_log(uniform_of(noise_bits)))).astype(np.float32)


def gumbel(keys: npt.ArrayLike, positions: npt.ArrayLike, tokens: npt.ArrayLike) -> Float32Array:
    """Standard Gumbel float32 at each (key, position, token); arguments broadcast, the result is at least one-dimensional."""
    return gumbel_of(bits(keys, positions, tokens))


def uniform(key: int, position: int, ordinal: int = 0) -> float:
    """One uniform in (0, 1) for a test at a position; ordinal tells tests of one position apart (it takes the token's place)."""
    return uniform_at(position_subkey(key, position), ordinal)


def position_subkey(key: int, position: int) -> int:
    """`position_subkeys` of one position, in plain integers: for a few values cheaper than arrays."""
    return _mix_scalar(key + (position + 1) * POSITION_STEP)


def uniform_at(subkey: int, token: int) -> float:
    """`uniform_of(token_bits(...))` of one token, in plain integers."""
    noise_bits = _mix_scalar(subkey + (token + 1) * TOKEN_STEP)
    return ((noise_bits >> UNIFORM_SHIFT) + 0.5) * UNIFORM_UNIT


def _mix_scalar(value: int) -> int:
    value &= _MASK64
    value = ((value ^ (value >> MIX_SHIFT_1)) * MIX_FACTOR_1) & _MASK64
    value = ((value ^ (value >> MIX_SHIFT_2)) * MIX_FACTOR_2) & _MASK64
    return value ^ (value >> MIX_SHIFT_3)
