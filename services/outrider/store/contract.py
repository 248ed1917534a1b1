"""The seam of stores of n-grams: which tokens followed, by a key that stands for the tokens before them and for who may see them.

What a store holds is a guess that the target verifies, so no answer depends on it: a store may forget, mix up or lose everything. Must not
know tenants, vocabularies or sessions: a key stands for them (ngram_keys.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

CONTINUATION_LEN = 16  # tokens of one entry at most
Continuation = tuple[int, ...]
Entry = tuple[bytes, Continuation]
NOTHING: Continuation = ()


@dataclass(slots=True)
class StoreCounts:
    """Written by the thread that uses the store, read by any. num_failures: attempts that found no server. num_refused: entries that a
    server would not store or look for. num_invalid: values that were no entries. is_connected: the newest attempt did not fail."""

    num_failures: int = 0
    num_refused: int = 0
    num_invalid: int = 0
    is_connected: bool = False


class NgramStore(Protocol):
    """Batched; each call is bounded in time, and on a failure answers as if nothing were known. Never raises for what is outside this
    process."""

    @property
    def counts(self) -> StoreCounts:
        """What became of it so far."""
        ...

    def lookup(self, keys: Sequence[bytes]) -> list[Continuation]:
        """What is known for each key, at most CONTINUATION_LEN ids, each at least 0; NOTHING where nothing is."""
        ...

    def observe(self, entries: Sequence[Entry]) -> bool:
        """Keep these; the newest of a key wins. Whether all were taken."""
        ...

    def tend(self) -> float | None:
        """What is to be done without being asked (a lost server is tried again, an idle one now and then); seconds until it is to be called
        next, None: never."""
        ...

    def close(self) -> None:
        """Nothing is asked any more."""
        ...
