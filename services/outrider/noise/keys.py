"""From a request's noise address to 64-bit keys, one for each purpose.

Purposes never share a key: PEARL's reference code reuses one uniform for two tests and so changes the distribution
(ALGORITHMS.md A.1). The byte layout below is frozen with NOISE_REVISION; docs/noise.md publishes test vectors.
Must not know what a key is used for beyond its purpose, nor tokens.
"""

from __future__ import annotations

import struct
from enum import Enum
from functools import lru_cache
from hashlib import blake2b

from outrider.types.sampling import NoiseAddress

_LAYOUT = struct.Struct("<QQQB")
_PERSON = b"outrider.noise.1"
_KEY_CACHE_SIZE = 4096


class Purpose(Enum):
    """What a stream of noise decides. The values are part of the frozen layout."""

    PICK = 1
    DRAFT = 2
    ACCEPT = 3
    RESIDUAL = 4


@lru_cache(maxsize=_KEY_CACHE_SIZE)
def derive_key(seed: int, sample_index: int, branch: int, purpose: Purpose) -> int:
    """The unsigned 64-bit key of one purpose of one sample; each number is an unsigned 64-bit integer (struct.error otherwise)."""
    layout = _LAYOUT.pack(seed, sample_index, branch, purpose.value)
    return int.from_bytes(blake2b(layout, digest_size=8, person=_PERSON).digest(), "little")


def key_of(address: NoiseAddress, purpose: Purpose) -> int:
    """`derive_key` of an address."""
    return derive_key(address.seed, address.sample_index, address.branch, purpose)
