"""The first level and the thread behind it: what one verifier answered another guesses, per tenant, and nobody ever waits for a store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from fakes import TableEngine, TruthTable
from fakes_redis import WAIT_S, until
from outrider.session.shared_lookup import END_LEN
from outrider.store.contract import CONTINUATION_LEN, Continuation, Entry
from outrider.store.exchange import MAX_WAITING, MAX_WAITING_ENTRIES, Exchange
from outrider.store.memory import MemoryNgrams
from outrider.store.ngram_keys import NgramKeys
from outrider.store.session_texts import ASK_EVERY, ASK_SELDOM, FoundCounts, SessionTexts, Want
from outrider.store.shared_ngrams import SharedNgrams
from outrider.store.text_chase import MAX_HOPS, TextChase

TABLE = TruthTable(vocab_size=1000)
IDENTITY = TableEngine(TABLE).identity
PROMPT = list(range(10, 30))
TEXT = PROMPT + TABLE.answer(PROMPT, 120, frozenset())


class CountingStore(MemoryNgrams):
    """How many batches were looked up; held: look-ups wait for this while it is clear, as for a server that hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.num_batches = 0
        self.asked: list[bytes] = []
        self.held = threading.Event()
        self.held.set()
        self.is_closed = False

    def lookup(self, keys: Sequence[bytes]) -> list[Continuation]:
        assert self.held.wait(WAIT_S)
        self.num_batches += 1
        self.asked += keys
        return super().lookup(keys)

    def close(self) -> None:
        self.is_closed = True


class LosingStore(CountingStore):
    def observe(self, entries: Sequence[Entry]) -> bool:
        return False


class BrokenStore(CountingStore):
    def lookup(self, keys: Sequence[bytes]) -> list[Continuation]:
        raise RuntimeError("a bug")


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def shared(store: CountingStore) -> Iterator[SharedNgrams]:
    made = SharedNgrams(store)
    made.start()
    yield made
    store.held.set()
    made.stop(WAIT_S)
    assert store.is_closed


def keys(shared: SharedNgrams, tenant: str = "") -> NgramKeys:
    return shared.keys(tenant, "", IDENTITY)


def learn(shared: SharedNgrams, tenant: str = "", text: list[int] = TEXT) -> None:
    shared.learn(keys(shared, tenant), np.asarray(text, np.int32), len(PROMPT))


def find(shared: SharedNgrams, at: int, tenant: str = "") -> tuple[int, Sequence[int]]:
    return shared.texts(keys(shared, tenant)).find(TEXT[max(0, at - END_LEN) : at])


# --- one process -------------------------------------------------------------------------------------------------------------


def test_what_was_learnt_is_found_at_every_place_of_the_answer(shared: SharedNgrams) -> None:
    learn(shared)
    until(lambda: shared.num_published == 1)
    for at in range(len(PROMPT), len(TEXT)):
        assert find(shared, at) == (END_LEN, tuple(TEXT[at : at + CONTINUATION_LEN]))
    assert find(shared, len(PROMPT) - 1)[0] == 0, "prompts are not learnt"
    assert find(shared, len(PROMPT), tenant="other") == (0, ())
    assert shared.found.num_hits == len(TEXT) - len(PROMPT)
    assert shared.found.num_misses == 2


def test_without_a_store_a_process_shares_with_itself() -> None:
    shared = SharedNgrams()
    shared.start()
    learn(shared)
    until(lambda: find(shared, len(PROMPT))[0])
    shared.stop(WAIT_S)
    assert shared.num_learnt == 1
    assert shared.num_dropped == 0


def test_what_waits_is_published_before_the_end(store: CountingStore) -> None:
    shared = SharedNgrams(store)
    shared.start()
    learn(shared)
    shared.stop(WAIT_S)
    assert shared.num_published == 1
    assert store.lookup([keys(shared).at_end(PROMPT)[0][1]]) == [tuple(TEXT[20:36])]


def test_ending_one_that_never_began_is_nothing() -> None:
    SharedNgrams().stop(0.0)


# --- through a store ---------------------------------------------------------------------------------------------------------


def test_another_process_fetches_the_whole_answer_for_one_question(shared: SharedNgrams, store: CountingStore) -> None:
    learn(shared)
    until(lambda: shared.num_published == 1)
    other = SharedNgrams(store)
    other.start()
    assert find(other, len(PROMPT)) == (0, ()), "it is asked for, not waited for"
    until(lambda: find(other, len(TEXT) - 1)[0])
    for at in range(len(PROMPT), len(TEXT)):
        match_len, followed = find(other, at)
        assert match_len == END_LEN
        assert list(followed) == TEXT[at : at + len(followed)]
        assert len(followed) >= min(CONTINUATION_LEN, len(TEXT) - at)
    other.stop(WAIT_S)


def test_another_tenant_fetches_nothing(shared: SharedNgrams, store: CountingStore) -> None:
    learn(shared, "a")
    until(lambda: shared.num_published == 1)
    other = SharedNgrams(store)
    other.start()
    find(other, len(PROMPT), "b")
    until(lambda: store.num_batches)
    other.stop(WAIT_S)
    assert len(other.memory) == 0


def test_a_chase_is_bounded_also_where_texts_run_in_circles(store: CountingStore) -> None:
    circle = [1, 2, 3, 4] * 10
    store.observe(keys(SharedNgrams()).entries(circle, 16, 24))
    memory = MemoryNgrams()
    TextChase(store, memory, [Want(keys(SharedNgrams()), tuple(circle[:16]))]).run()
    assert store.num_batches == MAX_HOPS
    assert 0 < len(memory) <= 2 * MAX_HOPS * CONTINUATION_LEN


def test_what_many_samples_want_is_fetched_once(store: CountingStore) -> None:
    own, memory = keys(SharedNgrams()), MemoryNgrams()
    store.observe(own.entries(TEXT, len(PROMPT), len(TEXT)))

    def chase(num_wants: int, tenant: str = "") -> int:
        """Keys that were asked for."""
        store.asked.clear()
        TextChase(store, memory, [Want(keys(SharedNgrams(), tenant), tuple(PROMPT[-END_LEN:])) for _ in range(num_wants)]).run()
        return len(store.asked)

    num_asked = chase(64)
    assert num_asked == len(set(store.asked)) > len(TEXT[len(PROMPT) :]) / CONTINUATION_LEN
    assert chase(64) == 0, "it came since"
    assert chase(2, "other") == 2, "its two ends; what is known is another's"


def test_ids_that_the_vocabulary_has_not_are_nothing(store: CountingStore) -> None:
    own = keys(SharedNgrams())
    store.observe([(own.at_end(PROMPT)[0][1], (5, TABLE.vocab_size)), (own.at_end(PROMPT)[1][1], (7,))])
    memory = MemoryNgrams()
    chase = TextChase(store, memory, [Want(own, tuple(PROMPT[-END_LEN:]))])
    chase.run()
    assert chase.num_invalid == 1
    assert memory.lookup([own.at_end(PROMPT)[0][1]]) == [(7,)], "the shorter end has a usable one"


# --- nobody waits ------------------------------------------------------------------------------------------------------------


def hang(shared: SharedNgrams, store: CountingStore) -> Exchange:
    """Whoever asks the store waits for it from now on."""
    assert shared.exchange is not None
    store.held.clear()
    find(shared, 40)
    until(lambda: exchange_of(shared)._queue.qsize() == 0)
    return shared.exchange


def exchange_of(shared: SharedNgrams) -> Exchange:
    assert shared.exchange is not None
    return shared.exchange


def test_a_store_that_hangs_holds_up_nobody_and_fills_nothing_without_bound(shared: SharedNgrams, store: CountingStore) -> None:
    exchange = hang(shared, store)
    begin_s = time.monotonic()
    for number in range(2 * MAX_WAITING):
        learn(shared)
        find(shared, 40 + number % 50, "of whom nothing is known")
    assert time.monotonic() - begin_s < WAIT_S
    until(lambda: shared.num_learnt + shared.num_unlearnt == 2 * MAX_WAITING)
    assert exchange._queue.qsize() == MAX_WAITING
    assert shared.num_dropped + exchange.num_unasked == 3 * MAX_WAITING
    assert min(shared.num_dropped, exchange.num_unasked) > 0


def test_what_a_process_answers_it_knows_while_a_store_hangs(shared: SharedNgrams, store: CountingStore) -> None:
    hang(shared, store)
    learn(shared)
    until(lambda: find(shared, len(PROMPT))[0] == END_LEN)
    assert shared.num_published == 0


def test_entries_that_wait_for_a_store_are_bounded_however_long_answers_are() -> None:
    exchange, own = Exchange(CountingStore(), MemoryNgrams()), keys(SharedNgrams())
    entries = own.entries(TEXT, len(PROMPT), len(PROMPT) + 1)[:1]
    exchange.publish(entries * MAX_WAITING_ENTRIES)
    exchange.publish(entries)
    assert exchange.num_lost == 1
    exchange.start()
    until(lambda: exchange.num_published == 1)
    until(lambda: exchange._num_taken == MAX_WAITING_ENTRIES)
    exchange.publish(entries)
    exchange.stop(WAIT_S)
    assert (exchange.num_published, exchange.num_lost) == (2, 1)


def test_answers_that_a_store_does_not_take_are_counted_and_still_known_here() -> None:
    shared = SharedNgrams(LosingStore())
    shared.start()
    learn(shared)
    until(lambda: shared.num_dropped == 1)
    assert find(shared, len(PROMPT))[0] == END_LEN
    shared.stop(WAIT_S)


def test_a_thread_that_fails_costs_the_sharing_only(caplog: pytest.LogCaptureFixture) -> None:
    store = BrokenStore()
    shared = SharedNgrams(store)
    shared.start()
    find(shared, 40)
    until(lambda: store.is_closed)
    assert "not shared with other verifiers any more" in caplog.text
    learn(shared)
    until(lambda: find(shared, len(PROMPT))[0] == END_LEN)
    shared.stop(WAIT_S)
    assert shared.num_dropped == 1


def test_stopping_does_not_wait_for_a_store_that_hangs(shared: SharedNgrams, store: CountingStore) -> None:
    store.held.clear()
    find(shared, 40)
    begin_s = time.monotonic()
    shared.stop(0.05)
    assert time.monotonic() - begin_s < WAIT_S / 2


def test_a_text_known_nowhere_asks_ever_less_often() -> None:
    asked: list[int] = []
    texts = SessionTexts(keys(SharedNgrams()), MemoryNgrams(), FoundCounts(), lambda want: asked.append(at))
    for at in range(1000):
        texts.find([at, at, at])
    gaps = np.diff(asked)
    assert asked[0] == 0
    assert gaps[:3].tolist() == [ASK_EVERY, 2 * ASK_EVERY, 4 * ASK_EVERY]
    assert set(gaps[6:]) == {ASK_SELDOM}
