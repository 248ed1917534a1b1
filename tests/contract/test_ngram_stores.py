"""Every store of n-grams: what was observed is found, the newest wins, and it is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes_redis import WAIT_S, redis_server
from outrider.store.contract import CONTINUATION_LEN, NOTHING, NgramStore
from outrider.store.memory import MemoryNgrams
from outrider.store.ngram_keys import NgramKeys
from outrider.store.redis_store import RedisNgrams

KEYS = NgramKeys("tenant", "vocabulary", 1000)
LONG = tuple(range(CONTINUATION_LEN))


def key(number: int) -> bytes:
    return KEYS.at_end([number])[0][1]


@pytest.fixture(scope="module", params=["memory", "redis"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NgramStore]:
    if request.param == "memory":
        yield MemoryNgrams()
        return
    with redis_server(Path(tmp_path_factory.mktemp("redis"))) as server:
        redis = RedisNgrams(server.url, answer_timeout_s=WAIT_S)
        yield redis
        redis.close()


def test_what_was_observed_is_found_and_nothing_else(store: NgramStore) -> None:
    assert store.lookup([key(1), key(2)]) == [NOTHING, NOTHING]
    assert store.observe([(key(1), LONG), (key(3), (7,))])
    assert store.lookup([key(3), key(2), key(1)]) == [(7,), NOTHING, LONG]


def test_the_newest_wins(store: NgramStore) -> None:
    assert store.observe([(key(1), (1, 2)), (key(1), (3,))])
    assert store.lookup([key(1)]) == [(3,)]


def test_many_at_once(store: NgramStore) -> None:
    assert store.observe([(key(number), (number,)) for number in range(900)])
    found = store.lookup([key(number) for number in range(900)])
    assert all(followed in ((number,), NOTHING) for number, followed in enumerate(found))
    assert sum(followed is not NOTHING for followed in found) >= 895, "two keys may have one slot"


def test_nothing_asked_nothing_answered(store: NgramStore) -> None:
    assert store.observe([])
    assert store.lookup([]) == []


def test_it_is_connected_and_nothing_failed(store: NgramStore) -> None:
    store.tend()
    assert store.counts.is_connected
    assert (store.counts.num_failures, store.counts.num_refused, store.counts.num_invalid) == (0, 0, 0)
