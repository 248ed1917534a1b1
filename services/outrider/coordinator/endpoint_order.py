"""The order in which replicas that are equally good are taken: by a digest of the endpoint, so that it is the same in every process,
whatever order they joined in, and compares as a number. Must not know what is equally good."""

from __future__ import annotations

import hashlib

_DIGEST_BYTES = 8


def order_of(endpoint: str) -> int:
    """In [0, 2**64)."""
    return int.from_bytes(hashlib.blake2b(endpoint.encode(), digest_size=_DIGEST_BYTES).digest(), "big")
