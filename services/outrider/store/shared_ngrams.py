"""Other answers as guesses: a first level in memory that answers at once, a thread that fills it, and another that shares it.

Whoever steps the target asks the first level, and hands over questions and whole answers through bounded queues; it never waits, and what
finds no room is dropped. One thread computes keys and fills memory; what is shared with others goes on to a thread of its own
(exchange.py), so that whatever happens to it or to the store costs the answers of other processes and none of this one's. Without a store
the first level is all there is. Must not know sessions, requests or Redis.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass

from outrider.store.contract import NgramStore
from outrider.store.exchange import MAX_WAITING, Exchange
from outrider.store.memory import MemoryNgrams
from outrider.store.ngram_keys import NGRAM_LENS, NgramKeys
from outrider.store.session_texts import FoundCounts, SessionTexts, Want
from outrider.types.identity import ModelIdentity
from outrider.types.tree import IntArray

_LOG = logging.getLogger(__name__)
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
    None: nothing is. Counters may be read from any thread; num_learnt: answers that memory has taken, num_unlearnt: that found no room."""

    def __init__(self, store: NgramStore | None = None, memory: MemoryNgrams | None = None) -> None:
        self.store = store
        self.memory = memory or MemoryNgrams()
        self.exchange = None if store is None else Exchange(store, self.memory)
        self.found = FoundCounts()
        self.num_learnt = self.num_unlearnt = 0
        self._queue: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="shared n-grams", daemon=True)

    @property
    def num_published(self) -> int:
        """Answers that the store has."""
        return 0 if self.exchange is None else self.exchange.num_published

    @property
    def num_dropped(self) -> int:
        """Answers that were not published, or not whole."""
        return self.num_unlearnt + (0 if self.exchange is None else self.exchange.num_lost + self.exchange.num_refused)

    def start(self) -> None:
        """Start the threads; the store is not waited for."""
        self._thread.start()
        if self.exchange is not None:
            self.exchange.start()

    def stop(self, timeout_s: float) -> None:
        """Learn what waits and publish it, if that takes no longer, and end the threads; a store that hangs is left to itself."""
        until_s = time.monotonic() + timeout_s
        if self._thread.ident is not None:
            self._queue.put(None)
            self._thread.join(timeout_s)
        if self.exchange is not None:
            self.exchange.stop(max(0.0, until_s - time.monotonic()))

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
            self.num_unlearnt += 1
        else:
            self._queue.put(Answer(keys, tokens, begin))

    def _ask(self, want: Want) -> None:
        if self.exchange is not None:
            self.exchange.ask(want)

    # --- the thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (answer := self._queue.get()) is not None:
                self._learn(answer)
        except Exception:  # noqa: BLE001 -- the thread's edge: without it guesses are fewer, and nothing else changes
            _LOG.exception("answers are not shared any more")

    def _learn(self, answer: Answer) -> None:
        tokens = answer.tokens.tolist()
        entries = answer.keys.entries(tokens, answer.begin, len(tokens))
        self.memory.observe(entries)
        self.num_learnt += 1
        if self.exchange is not None:
            self.exchange.publish(entries)
