"""The store that verifiers share: a table of a fixed number of slots in Redis (or Valkey), each entry with a time to live.

One thread uses it, which nobody waits for. Every wait for the server is bounded, and so are all waits of a batch together; the first
failure closes the connection and opens the breaker, and until that lets it through again everything is answered as unknown, at once. What
is read is checked as if an enemy had written it, and no more of it is asked for than an entry has. Commands are written here and sent by
redis-py's connections: through its methods each took five times as long, two for every token of every answer, and the interpreter is the
engine thread's as well. Must not know tenants, sessions or who looks up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from outrider.store.breaker import Breaker
from outrider.store.contract import NOTHING, Continuation, Entry, StoreCounts
from outrider.store.packed import MAX_PACKED_LEN, BadEntry, pack, unpack

_LOG = logging.getLogger(__name__)
PREFIX = b"outrider:ngram:1:"  # the number changes with whatever entries look like
NUM_SLOTS = 1 << 20  # entries at most, of all verifiers together: some 200 MB; a new entry takes the place of the one in its slot
TTL_S = 24 * 3600
CONNECT_TIMEOUT_S = 0.5
ANSWER_TIMEOUT_S = 0.25
BATCH_TIMEOUT_S = 1.0  # for all answers of a batch: a server that says a byte now and then holds up nothing for hours
PING_EVERY_S = 5.0  # without anything else to ask: `is_connected` is wrong for as long at most
MAX_BATCH = 256  # commands of one pipeline
RETURN_EVERY_S = 5.0  # to the address, while who answers there may not write: after a failover it leads to another, and the old one stays
CALM_S = 60.0  # without a refusal, after which the log has the next one: a cluster's node refuses some of every few commands
# redis-py passes on what the socket and the parser raise: garbage in place of the protocol is a ValueError of some kind, or a table that
# has lists for keys, or larger or deeper than anything can be.
_FAILURES = (redis.RedisError, OSError, ValueError, TypeError, MemoryError, RecursionError)


def _bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


# A slot's length and name, and what is kept there likewise; one byte more than an entry has shows a longer value, and no value can make us
# read more.
_SET = b"*5\r\n" + _bulk(b"SET") + b"$%d\r\n%b\r\n$%d\r\n%b\r\n" + _bulk(b"EX") + _bulk(b"%d" % TTL_S)
_GETRANGE = b"*4\r\n" + _bulk(b"GETRANGE") + b"$%d\r\n%b\r\n" + _bulk(b"0") + _bulk(b"%d" % MAX_PACKED_LEN)
_PING = b"*1\r\n" + _bulk(b"PING")


def slot_of(key: bytes) -> bytes:
    """The name under which Redis keeps the entry of a key."""
    return PREFIX + b"%x" % (int.from_bytes(key[:8], "little") % NUM_SLOTS)


class RedisNgrams:
    """NgramStore in Redis. answer_timeout_s: bound of each wait for it. clock: seconds that only grow."""

    def __init__(
        self,
        url: str,
        breaker: Breaker | None = None,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Does not connect. url: redis://, rediss:// or unix://. Raises ValueError for another and for options that make no connection, in
        a sentence that shows nothing of the URL but an option's name."""
        self.counts = StoreCounts()
        self._name = _address(url)
        self._breaker = breaker or Breaker()
        self._clock = clock
        self._asked_s = clock()
        self._is_told = False  # whether the log says how it is
        self._refuses = False
        self._refused_s = 0.0
        self._returned_s = clock() - RETURN_EVERY_S
        self._pool = _pool(url, answer_timeout_s)
        self._batch_timeout_s = max(answer_timeout_s, BATCH_TIMEOUT_S)

    def lookup(self, keys: Sequence[bytes]) -> list[Continuation]:
        """See NgramStore."""
        return [followed for begin in range(0, len(keys), MAX_BATCH) for followed in self._looked_up(keys[begin : begin + MAX_BATCH])]

    def observe(self, entries: Sequence[Entry]) -> bool:
        """See NgramStore; what follows a failure is not tried."""
        return all(self._stored(entries[begin : begin + MAX_BATCH]) for begin in range(0, len(entries), MAX_BATCH))

    def tend(self) -> float:
        """Try a server that failed again, once its pause is over, and now and then one that nobody asks: it may be gone. One that refuses
        to be pinged (the user may not, or its disk is full) is there."""
        if self._breaker.is_open or not self._is_told or self._idle_s() >= PING_EVERY_S:
            self._try([_PING])
        return self._breaker.wait_s if self._breaker.is_open else max(0.0, PING_EVERY_S - self._idle_s())

    def _idle_s(self) -> float:
        """Since it was last asked for anything."""
        return self._clock() - self._asked_s

    def close(self) -> None:
        """Close the connection; it is not said to be there any more."""
        self.counts.is_connected = False
        self._pool.disconnect()

    def _looked_up(self, keys: Sequence[bytes]) -> list[Continuation]:
        answers = self._try([_GETRANGE % (len(slot), slot) for slot in map(slot_of, keys)])
        self._count_refused(answers)
        if len(answers) != len(keys):
            return [NOTHING] * len(keys)
        return [self._checked(key, answer) for key, answer in zip(keys, answers, strict=True)]

    def _stored(self, entries: Sequence[Entry]) -> bool:
        commands: list[bytes] = []
        for key, followed in entries:
            slot, packed = slot_of(key), pack(key, followed)
            commands.append(_SET % (len(slot), slot, len(packed), packed))
        answers = self._try(commands)
        self._count_refused(answers)
        self._leave_replica(answers)
        return answers == [b"OK"] * len(entries)

    def _leave_replica(self, answers: Sequence[object]) -> None:
        """Connect anew, now and then, where a primary was that is a replica now."""
        if any(isinstance(answer, redis.ReadOnlyError) for answer in answers) and self._clock() - self._returned_s >= RETURN_EVERY_S:
            self._returned_s = self._clock()
            self._pool.disconnect()

    def _count_refused(self, answers: Sequence[object]) -> None:
        """Of these; one line for the first of them, and one once there were none for a while."""
        refusals = [answer for answer in answers if _is_refusal(answer)]
        self.counts.num_refused += len(refusals)
        now_s = self._clock()
        if refusals:
            if not self._refuses:
                reason = f"{type(refusals[0]).__name__}: {refusals[0]}"
                _LOG.warning("Redis at %s refuses %d of %d commands (%s)", self._name, len(refusals), len(answers), reason)
            self._refuses, self._refused_s = True, now_s
        elif answers and self._refuses and now_s - self._refused_s >= CALM_S:
            self._refuses = False
            _LOG.warning("Redis at %s refuses nothing any more", self._name)

    def _checked(self, key: bytes, answer: object) -> Continuation:
        if _is_refusal(answer):
            return NOTHING
        try:
            return unpack(key, answer) or NOTHING
        except BadEntry:
            self.counts.num_invalid += 1
            return NOTHING

    def _try(self, commands: Sequence[bytes]) -> list[object]:
        """What the server answered to each, refusals among it; [] where it did not, or is not to be asked yet."""
        if not self._breaker.allows:
            return []
        self._asked_s = self._clock()
        try:
            answers = self._asked(commands)
        except _FAILURES as error:
            self.counts.num_failures += 1
            self._breaker.failed()
            self._pool.disconnect()  # what an abandoned question would still be answered must not answer the next one
            self._tell(connected=False, how=f"{type(error).__name__}: {error}")
            return []
        self._breaker.succeeded()
        self._tell(connected=True, how="")
        return answers

    def _asked(self, commands: Sequence[bytes]) -> list[object]:
        connection: Any = self._pool.get_connection()
        try:
            connection.send_packed_command([b"".join(commands)])
            until_s = self._clock() + self._batch_timeout_s
            return [self._answer(connection, until_s) for _ in commands]
        finally:
            self._pool.release(connection)

    def _answer(self, connection: Any, until_s: float) -> object:
        if self._clock() > until_s:
            raise redis.TimeoutError(f"the answers to a batch took more than {self._batch_timeout_s:g} s")
        try:
            return connection.read_response()
        except redis.ResponseError as refusal:
            return refusal

    def _tell(self, *, connected: bool, how: str) -> None:
        """One line for each change."""
        if self._is_told and connected == self.counts.is_connected:
            return
        self._is_told, self.counts.is_connected = True, connected
        if connected:
            _LOG.info("n-grams are shared through Redis at %s", self._name)
        else:
            _LOG.warning("n-grams are not shared until Redis at %s is back (%s); answers go on without", self._name, how)


def _pool(url: str, answer_timeout_s: float) -> redis.ConnectionPool:
    """Of one connection, which is made once for the trial, unconnected: redis-py looks at a URL's options when it makes one, and that would
    be in the thread, long after anybody reads what a start says."""
    options: dict[str, Any] = {"socket_timeout": answer_timeout_s, "socket_connect_timeout": CONNECT_TIMEOUT_S, "protocol": 2}
    try:
        pool = redis.ConnectionPool.from_url(url, max_connections=1, retry=Retry(NoBackoff(), 0), **options)
        encoder = pool.connection_class(**pool.connection_kwargs).encoder
        is_plain = encoder.encode("GET") == b"GET" and not encoder.decode_responses
    except (TypeError, ValueError, LookupError, redis.RedisError) as error:
        named = [name for name in parse_qs(urlsplit(url).query) if f"'{name}'" in str(error)]
        problem = (
            f"has an option {named[0]!r} that the package redis does not take there" if named else "is none that the package redis takes"
        )
        raise ValueError(problem) from error
    if not is_plain:
        raise ValueError("must have neither of the options 'decode_responses' and 'encoding': entries are no text")
    return pool


def _is_refusal(answer: object) -> bool:
    """Whether a server would not do what it was asked, in place of telling that a value is of another type than ours."""
    return isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE")


def _address(url: str) -> str:
    """Where a URL leads, without what it may hold of passwords."""
    parts = urlsplit(url)
    return parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"
