"""Who reads first when several sequences that begin alike are read at the same time: the others wait and take its blocks over.

Samples of one request arrive together; each would read the whole prompt, for blocks can be shared only once they are read. A sequence that
waits loses nothing: together they would have read no faster. Pure; for the verifier's scheduler and the model drafter. Must not know
engines or sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from outrider.types.tree import IntArray


@dataclass(frozen=True, slots=True)
class Prefill:
    """A sequence whose prompt is not read to its end. tokens: int32, all of it; cached_len of them are cached.

    begun: it was fed, so that it takes no more blocks over.
    """

    tokens: IntArray
    cached_len: int
    begun: bool
    tenant: str = ""


def waiting(prefills: Mapping[int, Prefill], block_len: int) -> set[int]:
    """Of sequences that are all to be fed now, in order of arrival, those that had better wait for another to be read."""
    order = sorted(prefills, key=lambda sequence: not prefills[sequence].begun)  # stable: who has begun, then who came first
    late: set[int] = set()
    for place, sequence in enumerate(order):
        own = prefills[sequence]
        if not own.begun and any(_brings(prefills[other], own, block_len) for other in order[:place]):
            late.add(sequence)
    return late


def _brings(other: Prefill, own: Prefill, block_len: int) -> bool:
    """Whether blocks of `other` will continue what `own` has."""
    if other.tenant != own.tenant:
        return False
    most = (min(len(other.tokens), len(own.tokens)) - 1) // block_len * block_len
    first = own.cached_len + block_len  # one block more would be worth it
    return first <= most and bool(np.array_equal(other.tokens[:first], own.tokens[:first]))
