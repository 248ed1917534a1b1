"""The store of one process: a bounded table, the entry that was not asked for longest goes first. From any thread, in microseconds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from outrider.store.contract import NOTHING, Continuation, Entry, StoreCounts

MAX_ENTRIES = 1 << 17  # about 50 MB when full


class MemoryNgrams:
    """NgramStore in a dictionary. max_entries: at least 1."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        assert max_entries >= 1
        self.counts = StoreCounts(is_connected=True)
        self._max_entries = max_entries
        self._entries: OrderedDict[bytes, Continuation] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, keys: Sequence[bytes]) -> list[Continuation]:
        """See NgramStore."""
        with self._lock:
            return [self._found(key) for key in keys]

    def observe(self, entries: Sequence[Entry]) -> bool:
        """See NgramStore; the lock is held for one entry at a time, for whoever steps the target looks up meanwhile."""
        for key, followed in entries:
            with self._lock:
                self._entries[key] = followed
                self._entries.move_to_end(key)
                if len(self._entries) > self._max_entries:
                    self._entries.popitem(last=False)
        return True

    def tend(self) -> float | None:
        """Nothing is to be done."""
        return None

    def close(self) -> None:
        """Nothing is held outside."""

    def _found(self, key: bytes) -> Continuation:
        followed = self._entries.get(key)
        if followed is None:
            return NOTHING
        self._entries.move_to_end(key)
        return followed
