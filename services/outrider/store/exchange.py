"""The thread between a process' memory of other answers and the store that it shares: it asks, it publishes, and waits for nobody else.

What it is to do waits in a bounded queue, and what finds no room there is dropped. A store that is slow, hangs or breaks holds up what is
exchanged, and nothing of what a process knows by itself. Must not know sessions, requests or Redis.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence

from outrider.store.contract import Entry, NgramStore
from outrider.store.session_texts import Want
from outrider.store.text_chase import TextChase

_LOG = logging.getLogger(__name__)
MAX_WAITING = 256  # questions and answers in the queue
MAX_WAITING_ENTRIES = 1 << 17  # of the answers among them together: as many as memory keeps


class Exchange:
    """Use: `start`, then `ask` from one thread and `publish` from one, in the end `stop`. Questions go first. Counters may be read from any
    thread; num_published: answers that the store has, num_lost: those that found no room, num_refused: those that the store did not take
    whole, num_unasked: questions that found no room, num_invalid: fetched continuations of another vocabulary."""

    def __init__(self, store: NgramStore, memory: NgramStore) -> None:
        self.store = store
        self.num_published = self.num_lost = self.num_refused = self.num_unasked = self.num_invalid = 0
        self._memory = memory
        self._queue: queue.SimpleQueue[Want | Sequence[Entry] | None] = queue.SimpleQueue()
        self._num_put = self._num_taken = 0  # entries; each is written by one thread
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="shared n-grams: exchange", daemon=True)

    def start(self) -> None:
        """Start the thread; the store is not waited for."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Publish what waits, if that takes no longer, and end the thread; a store that hangs is left to itself."""
        if self._thread.ident is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)

    def ask(self, want: Want) -> None:
        """Put into memory what the store knows of it; returns at once."""
        if self._has_room:
            self._queue.put(want)
        else:
            self.num_unasked += 1

    def publish(self, entries: Sequence[Entry]) -> None:
        """A whole answer; returns at once."""
        if self._has_room and self._num_put - self._num_taken + len(entries) <= MAX_WAITING_ENTRIES:
            self._num_put += len(entries)
            self._queue.put(entries)
        else:
            self.num_lost += 1

    @property
    def _has_room(self) -> bool:
        return not self._is_over and self._queue.qsize() < MAX_WAITING

    # --- the thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception:  # noqa: BLE001 -- the thread's edge: without it guesses are fewer, and nothing else changes
            _LOG.exception("n-grams are not shared with other verifiers any more")
        finally:
            self._is_over = True
            self.store.close()

    def _turn(self) -> bool:
        """Wait for something to do and do all of it, or what the store wants to do by itself; False: it is over."""
        items = self._arrivals(self.store.tend())
        wants = [item for item in items if isinstance(item, Want)]
        if wants:
            chase = TextChase(self.store, self._memory, wants)
            chase.run()
            self.num_invalid += chase.num_invalid
        for item in items:
            if item is not None and not isinstance(item, Want):
                self._publish(item)
        return None not in items

    def _arrivals(self, timeout_s: float | None) -> list[Want | Sequence[Entry] | None]:
        """Everything in the queue, at least one; nothing when the time is over."""
        items: list[Want | Sequence[Entry] | None] = []
        try:
            items.append(self._queue.get(timeout=timeout_s))
            while len(items) < MAX_WAITING:
                items.append(self._queue.get_nowait())
        except queue.Empty:
            return items
        return items

    def _publish(self, entries: Sequence[Entry]) -> None:
        if self.store.observe(entries):
            self.num_published += 1
        else:
            self.num_refused += 1
        self._num_taken += len(entries)
