"""Other answers as guesses: a first level in memory that answers at once, and a thread that fills it and shares it through a store.

Whoever steps the target asks the first level, and hands over questions and whole answers through a bounded queue; it never waits, and what
finds no room is dropped. The thread computes keys, asks the store, and publishes in batches, questions first. Without a store the first
level is all there is. Whatever happens to the thread or the store costs speed only. Must not know sessions, requests or Redis.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass

from outrider.store.contract import NgramStore
from outrider.store.memory import MemoryNgrams
from outrider.store.ngram_keys import NGRAM_LENS, NgramKeys
from outrider.store.session_texts import FoundCounts, SessionTexts, Want
from outrider.store.text_chase import TextChase
from outrider.types.identity import ModelIdentity
from outrider.types.tree import IntArray

_LOG = logging.getLogger(__name__)
MAX_WAITING = 256  # questions and answers in the queue
MAX_LEARNED_LEN = 4096  # tokens of one answer
CONTEXT_LEN = max(NGRAM_LENS)  # tokens before an answer that its first entries need


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, behind the end of its prompt. tokens: int32; begin: of the answer in them."""

    keys: NgramKeys
    tokens: IntArray
    begin: int


class SharedNgrams:
    """Use: `start`, then from the thread that steps the target `keys`, `texts` and `learn`, in the end `stop`. store: shared with others;
    None: nothing is. Counters may be read from any thread; num_learnt: answers that memory has taken, num_published: of them those that the
    store has; num_dropped: answers that were not published, num_unasked: questions that found
    no room, num_invalid: fetched continuations of another vocabulary."""

    def __init__(self, store: NgramStore | None = None, memory: MemoryNgrams | None = None) -> None:
        self.store = store
        self.memory = memory or MemoryNgrams()
        self.found = FoundCounts()
        self.num_learnt = self.num_published = self.num_dropped = self.num_unasked = self.num_invalid = 0
        self._queue: queue.SimpleQueue[Want | Answer | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="shared n-grams", daemon=True)

    def start(self) -> None:
        """Start the thread; the store is not waited for."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Publish what waits, if that takes no longer, and end the thread; a store that hangs is left to itself."""
        if self._thread.ident is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)

    def keys(self, tenant: str, adapter: str, identity: ModelIdentity) -> NgramKeys:
        """Of a tenant's texts in this vocabulary."""
        return NgramKeys(tenant, identity.vocab_hash, identity.vocab_size, adapter)

    def texts(self, keys: NgramKeys) -> SessionTexts:
        """What one session may take its guesses from."""
        return SessionTexts(keys, self.memory, self.found, self._ask)

    def learn(self, keys: NgramKeys, tokens: IntArray, begin: int) -> None:
        """An answer has ended: tokens from CONTEXT_LEN before it on, as far as there are any; begin: where it begins in them. At most
        MAX_LEARNED_LEN of the answer."""
        if self._queue.qsize() >= MAX_WAITING:
            self.num_dropped += 1
        else:
            self._queue.put(Answer(keys, tokens, begin))

    def _ask(self, want: Want) -> None:
        if self.store is None:
            return
        if self._queue.qsize() >= MAX_WAITING:
            self.num_unasked += 1
        else:
            self._queue.put(want)

    # --- the thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception:  # noqa: BLE001 -- the thread's edge: without it guesses are fewer, and nothing else changes
            _LOG.exception("n-grams are not shared any more")
        finally:
            if self.store is not None:
                self.store.close()

    def _turn(self) -> bool:
        """Wait for something to do and do all of it, or what the store wants to do by itself; False: it is over."""
        timeout_s = None if self.store is None else self.store.tend()
        items = self._arrivals(timeout_s)
        wants = [item for item in items if isinstance(item, Want)]
        if wants and self.store is not None:
            chase = TextChase(self.store, self.memory, wants)
            chase.run()
            self.num_invalid += chase.num_invalid
        for item in items:
            if isinstance(item, Answer):
                self._publish(item)
        return None not in items

    def _arrivals(self, timeout_s: float | None) -> list[Want | Answer | None]:
        """Everything in the queue, at least one; nothing when the time is over."""
        items: list[Want | Answer | None] = []
        try:
            items.append(self._queue.get(timeout=timeout_s))
            while len(items) < MAX_WAITING:
                items.append(self._queue.get_nowait())
        except queue.Empty:
            return items
        return items

    def _publish(self, answer: Answer) -> None:
        tokens = answer.tokens.tolist()
        entries = answer.keys.entries(tokens, answer.begin, len(tokens))
        self.memory.observe(entries)
        self.num_learnt += 1
        if self.store is None:
            return
        if self.store.observe(entries):
            self.num_published += 1
        else:
            self.num_dropped += 1
