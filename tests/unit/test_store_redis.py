"""Redis that is not there, hangs, is killed, comes back empty, refuses, or answers garbage: nothing is raised, and little is waited."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fakes_redis import HOST, WAIT_S, redis_server, strange_server, until
from outrider.store.breaker import Breaker
from outrider.store.contract import NOTHING
from outrider.store.ngram_keys import NgramKeys
from outrider.store.packed import MAX_PACKED_LEN
from outrider.store.redis_store import ANSWER_TIMEOUT_S, CALM_S, NUM_SLOTS, PING_EVERY_S, RETURN_EVERY_S, TTL_S, RedisNgrams, slot_of
from outrider.store.shared_ngrams import SharedNgrams
from outrider_bench.chaos.redis_server import RedisServer
from outrider_bench.loopback import free_address

KEY = NgramKeys("", "v", 100).at_end([1, 2, 3])[0][1]
OTHER = NgramKeys("", "v", 100).at_end([4])[0][1]
ENTRY = (KEY, (5, 6, 7))
GARBAGE = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x00\xff\xfe\r\n" * 3,
    b"$-7\r\n",
    b":NaN\r\n",
    b"$99999999999\r\n",
    b"*1\r\n$3\r\nabc",
    b"%1\r\n*1\r\n:1\r\n:2\r\n",
    b"\r\n",
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as running:
        yield running


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisNgrams]:
    """A patient one: what a busy machine takes its time for is no failure."""
    made = RedisNgrams(server.url, answer_timeout_s=WAIT_S)
    yield made
    made.close()


def found_again(store: RedisNgrams) -> bool:
    store.tend()
    return store.observe([ENTRY]) and store.lookup([KEY]) == [ENTRY[1]]


def is_back(store: RedisNgrams) -> bool:
    store.tend()
    return store.counts.is_connected


def test_a_server_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    store = RedisNgrams(f"redis://user:secret@{free_address(HOST)}/0")
    with caplog.at_level(logging.INFO):
        for _ in range(50):
            assert store.lookup([KEY, OTHER]) == [NOTHING, NOTHING]
            assert not store.observe([ENTRY])
    assert not store.counts.is_connected
    assert 1 <= store.counts.num_failures < 10, "the breaker lets few through"
    assert len(caplog.records) == 1, "one line for a change, not for a failure"
    assert "secret" not in caplog.text


def test_a_server_that_is_killed_and_comes_back_empty(server: RedisServer, store: RedisNgrams, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert found_again(store)
        server.kill()
        assert store.lookup([KEY]) == [NOTHING]
        assert not store.observe([ENTRY])
        assert store.tend() < PING_EVERY_S, "it wants to try again"
        server.start()
        until(lambda: is_back(store))
        assert store.lookup([KEY]) == [NOTHING], "it knows nothing"
        assert found_again(store)
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO"]


def test_a_server_that_is_lost_while_nobody_asks_is_missed(server: RedisServer) -> None:
    now = [100.0]
    store = RedisNgrams(server.url, answer_timeout_s=WAIT_S, clock=lambda: now[0])
    assert store.tend() == PING_EVERY_S
    now[0] += PING_EVERY_S - 1.0
    assert store.observe([ENTRY])
    now[0] += PING_EVERY_S - 1.0
    server.kill()
    assert store.tend() == 1.0, "it was asked lately"
    assert store.counts.is_connected
    now[0] += 1.0
    store.tend()
    assert not store.counts.is_connected
    server.start()
    until(lambda: is_back(store))
    store.close()


def test_the_thread_that_shares_asks_an_idle_server_by_itself(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.store.redis_store.PING_EVERY_S", 0.05)
    shared = SharedNgrams(RedisNgrams(server.url, answer_timeout_s=WAIT_S))
    store = shared.store
    assert store is not None
    shared.start()
    until(lambda: store.counts.is_connected)
    server.kill()
    until(lambda: not store.counts.is_connected)
    server.start()
    until(lambda: store.counts.is_connected)
    shared.stop(WAIT_S)
    assert not store.counts.is_connected, "it is closed"


def test_a_server_that_hangs_costs_one_bounded_wait(server: RedisServer) -> None:
    store = RedisNgrams(server.url)
    until(lambda: found_again(store))
    server.pause()
    begin_s = time.monotonic()
    assert store.lookup([KEY]) == [NOTHING]
    first_s = time.monotonic() - begin_s
    assert ANSWER_TIMEOUT_S <= first_s < 20 * ANSWER_TIMEOUT_S
    num_failures = store.counts.num_failures
    assert store.lookup([KEY]) == [NOTHING]
    assert store.counts.num_failures == num_failures, "while the breaker is open nobody waits"
    server.go_on()
    until(lambda: found_again(store))
    store.close()


def test_late_answers_are_not_taken_for_those_of_other_questions(server: RedisServer) -> None:
    store = RedisNgrams(server.url, Breaker(luck=lambda: 0.0))
    until(lambda: store.observe([ENTRY, (OTHER, (9,))]))
    for _ in range(3):
        server.pause()
        assert store.lookup([KEY]) == [NOTHING]
        server.go_on()
        until(lambda: is_back(store) and store.lookup([OTHER]) == [(9,)])
        assert store.lookup([KEY, OTHER]) in ([ENTRY[1], (9,)], [NOTHING, NOTHING])
    store.close()


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_instead_of_the_protocol(garbage: bytes) -> None:
    with strange_server(lambda asked: garbage) as url:
        store = RedisNgrams(url, Breaker(luck=lambda: 0.0))
        begin_s = time.monotonic()
        assert store.lookup([KEY]) == [NOTHING]
        assert not store.observe([ENTRY])
        assert store.counts.num_failures >= 1
        assert time.monotonic() - begin_s < 20 * ANSWER_TIMEOUT_S
        store.close()


def test_a_listener_that_says_nothing() -> None:
    with strange_server(lambda asked: b"") as url:
        store = RedisNgrams(url)
        assert store.lookup([KEY]) == [NOTHING]
        assert store.counts.num_failures == 1
        store.close()


def test_answers_that_never_come_to_an_end_are_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """Each comes in time, all together do not."""
    seconds = itertools.count(step=0.9 * WAIT_S)
    with strange_server(lambda asked: b"+OK\r\n" * asked.count(b"\r\nSET")) as url:
        store = RedisNgrams(url, answer_timeout_s=WAIT_S, clock=lambda: next(seconds))
        assert store.observe([ENTRY])
        assert not store.observe([ENTRY, (OTHER, (9,)), (OTHER, (8,))])
        assert not store.counts.is_connected
        assert "the answers to a batch took more than" in caplog.text
        store.close()


@pytest.mark.parametrize("answer", [b"$-1\r\n", b":1\r\n", b"*0\r\n", b"+QUEUED\r\n"])
def test_what_a_server_does_not_say_it_stored_is_not_stored(answer: bytes) -> None:
    with strange_server(lambda asked: answer * asked.count(b"\r\nSET")) as url:
        store = RedisNgrams(url, answer_timeout_s=WAIT_S)
        assert not store.observe([ENTRY])
        assert store.counts.num_failures == 0
        store.close()


@pytest.mark.parametrize("value", [b"x", b"x" * (MAX_PACKED_LEN + 1), KEY + b"\xff\xff\xff\xff", b"y" * 5_000_000])
def test_values_that_are_no_entries_are_nothing(server: RedisServer, store: RedisNgrams, value: bytes) -> None:
    with redis.Redis.from_url(server.url, protocol=2) as client:
        client.set(slot_of(KEY), value)
        before = client.info("stats")["total_net_output_bytes"]
        assert store.lookup([KEY]) == [NOTHING]
        assert client.info("stats")["total_net_output_bytes"] - before < 50_000, "no more is read than an entry has"
    assert store.counts.num_invalid == 1
    assert store.counts.is_connected
    assert found_again(store)


def test_a_server_that_wants_a_password_is_one_that_does_not_answer(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    with redis.Redis.from_url(server.url, protocol=2) as client:
        client.config_set("requirepass", "secret")
    store = RedisNgrams(server.url.replace("//", "//:wrong-one@"), answer_timeout_s=WAIT_S)
    assert store.lookup([KEY]) == [NOTHING]
    assert not store.counts.is_connected
    assert "wrong-one" not in caplog.text
    store.close()
    store = RedisNgrams(server.url.replace("//", "//:secret@"), answer_timeout_s=WAIT_S)
    assert found_again(store)
    store.close()


def test_a_user_who_may_read_and_write_entries_and_nothing_else_may_share_them(server: RedisServer) -> None:
    """Not even be pinged: as a server refuses everybody whose disk is full."""
    with redis.Redis.from_url(server.url, protocol=2) as client:
        client.execute_command("ACL", "SETUSER", "bob", "on", ">pw", "~outrider:ngram:*", "+getrange", "+set")
    store = RedisNgrams(server.url.replace("//", "//bob:pw@"), answer_timeout_s=WAIT_S)
    assert store.tend() <= PING_EVERY_S
    assert found_again(store)
    assert (store.counts.num_failures, store.counts.num_refused, store.counts.is_connected) == (0, 0, True)
    store.close()


def test_a_slot_of_another_type_is_nothing(server: RedisServer, store: RedisNgrams) -> None:
    with redis.Redis.from_url(server.url, protocol=2) as client:
        client.rpush(slot_of(KEY), b"x")
    store.observe([(OTHER, (9,))])
    assert store.lookup([KEY, OTHER]) == [NOTHING, (9,)], "the others of the batch are answered"


def test_a_slot_that_another_key_took_is_nothing(server: RedisServer, store: RedisNgrams) -> None:
    other = KEY[:8] + bytes(8)
    assert slot_of(other) == slot_of(KEY)
    assert store.observe([ENTRY, (other, (1,))])
    assert store.lookup([KEY, other]) == [NOTHING, (1,)]
    with redis.Redis.from_url(server.url, protocol=2) as client:
        assert client.dbsize() == 1, "as many slots as there are bound the entries"
        assert 0 < client.ttl(slot_of(KEY)) <= TTL_S
    assert NUM_SLOTS == 1 << 20


def test_a_server_that_stores_nothing_still_answers(server: RedisServer, store: RedisNgrams, caplog: pytest.LogCaptureFixture) -> None:
    assert found_again(store)
    with redis.Redis.from_url(server.url, protocol=2) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        assert not store.observe([ENTRY, (OTHER, (9,))])
        assert not store.observe([ENTRY])
        assert store.lookup([KEY]) == [ENTRY[1]]
        assert store.counts.num_refused == 3
        assert sum("refuses 2 of 2 commands" in record.message for record in caplog.records) == 1
        client.config_set("maxmemory", 0)
    assert found_again(store)


def test_a_primary_that_became_a_replica_is_left_for_whoever_the_address_leads_to_now() -> None:
    num_connections, writer = 0, 2

    def answer(asked: bytes) -> bytes:
        nonlocal num_connections
        num_connections += asked.count(b"LIB-NAME")
        stored = b"+OK\r\n" if num_connections >= writer else b"-READONLY You can't write against a read only replica.\r\n"
        return b"+OK\r\n" * asked.count(b"SETINFO") + stored * asked.count(b"SET\r\n")

    now_s = 0.0
    with strange_server(answer) as url:
        store = RedisNgrams(url, answer_timeout_s=WAIT_S, clock=lambda: now_s)
        assert not store.observe([ENTRY])
        assert store.observe([ENTRY]), "over another connection"
        writer = 4
        store.close()
        for connections in (3, 3):
            assert not store.observe([ENTRY])
            assert num_connections == connections, "a replica is not left with every answer"
        now_s = RETURN_EVERY_S
        assert not store.observe([ENTRY])
        assert store.observe([ENTRY])
        assert store.counts.num_failures == 0
        store.close()


def test_a_node_of_a_cluster_refuses_what_lies_elsewhere_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """It has some of the entries; which, changes with every few commands."""
    caplog.set_level(logging.INFO)
    elsewhere = b"-MOVED 3999 127.0.0.1:6381\r\n"

    def answer(asked: bytes) -> bytes:
        reading = asked.count(b"GETRANGE")
        stored = asked.count(slot_of(KEY)) if not reading else 0
        return b"+OK\r\n" * (asked.count(b"SETINFO") + stored) + elsewhere * (reading + asked.count(b"SET\r\n") - stored)

    now_s = 0.0
    with strange_server(answer) as url:
        store = RedisNgrams(url, answer_timeout_s=WAIT_S, clock=lambda: now_s)
        for _ in range(3):
            assert not store.observe([(OTHER, (9,))])
            assert store.observe([ENTRY])
        assert store.lookup([KEY, OTHER]) == [NOTHING, NOTHING]
        assert (store.counts.num_refused, store.counts.num_invalid, store.counts.is_connected) == (5, 0, True)
        assert [record.message for record in caplog.records if "refuses" in record.message] == [
            f"Redis at {url.partition('//')[2]} refuses 1 of 1 commands (MovedError: 3999 127.0.0.1:6381)"
        ]
        now_s = CALM_S
        assert store.observe([ENTRY])
        assert "refuses nothing any more" in caplog.text
        store.close()
