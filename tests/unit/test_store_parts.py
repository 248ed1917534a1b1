"""The parts of the n-gram store: keys, packed entries, the bound of the memory, and when a server is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.store.breaker import CALM_S, FIRST_PAUSE_S, MAX_PAUSE_S, Breaker
from outrider.store.contract import CONTINUATION_LEN
from outrider.store.memory import MemoryNgrams
from outrider.store.ngram_keys import KEY_LEN, NGRAM_LENS, NgramKeys
from outrider.store.packed import MAX_PACKED_LEN, BadEntry, pack, unpack

TEXT = list(range(100, 140))
KEYS = NgramKeys("a", "v", 1000)
KEY = bytes(range(KEY_LEN))
ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=CONTINUATION_LEN)


# --- keys --------------------------------------------------------------------------------------------------------------------


def test_a_key_is_of_one_tenant_vocabulary_and_adapter() -> None:
    others = [KEYS, NgramKeys("b", "v", 1000), NgramKeys("a", "w", 1000), NgramKeys("a", "v", 1000, "x"), NgramKeys("", "av", 1000)]
    assert len({keys.at_end(TEXT)[0] for keys in others}) == len(others)
    assert NgramKeys("a", "v", 1000).at_end(TEXT) == KEYS.at_end(TEXT)


def test_the_ends_of_a_text_the_longest_first() -> None:
    assert [length for length, _ in KEYS.at_end(TEXT)] == list(NGRAM_LENS)
    assert [length for length, _ in KEYS.at_end(TEXT[:8])] == [8, 6]
    assert [length for length, _ in KEYS.at_end(TEXT[:4])] == [4], "a text shorter than a length counts whole, and once"
    assert KEYS.at_end([]) == []


def test_entries_are_found_by_the_ends_of_the_same_text() -> None:
    entries = dict(KEYS.entries(TEXT, 20, len(TEXT)))
    for at in range(20, len(TEXT)):
        for _, key in KEYS.at_end(TEXT[:at]):
            assert entries[key] == tuple(TEXT[at : at + CONTINUATION_LEN])
    assert len(entries) == 2 * 20


def test_entries_of_a_cut_text_are_those_of_the_whole() -> None:
    longest = max(NGRAM_LENS)
    assert KEYS.entries(TEXT[20 - longest :], longest, longest + 20) == KEYS.entries(TEXT, 20, 40)


# --- entries as bytes --------------------------------------------------------------------------------------------------------


@given(followed=ids)
def test_what_was_packed_is_unpacked(followed: list[int]) -> None:
    packed = pack(KEY, tuple(followed))
    assert unpack(KEY, packed) == tuple(followed)
    assert len(packed) <= MAX_PACKED_LEN


def test_anothers_entry_and_none_are_nothing() -> None:
    assert unpack(KEY, b"") is None
    assert unpack(KEY, pack(bytes(KEY_LEN), (1, 2))) is None


@pytest.mark.parametrize(
    "packed",
    [
        None,
        7,
        "text",
        b"x",
        KEY,
        KEY + b"\0\0\0",
        KEY + b"\xff\xff\xff\xff",
        KEY + bytes(4 * CONTINUATION_LEN + 1),
        bytes(MAX_PACKED_LEN + 4),
    ],
)
def test_what_no_entry_looks_like_is_refused(packed: object) -> None:
    with pytest.raises(BadEntry):
        unpack(KEY, packed)


@given(packed=st.binary(max_size=2 * MAX_PACKED_LEN))
def test_any_bytes_are_an_entry_nothing_or_refused(packed: bytes) -> None:
    try:
        followed = unpack(KEY, packed)
    except BadEntry:
        return
    assert followed is None or (0 < len(followed) <= CONTINUATION_LEN and min(followed) >= 0)


# --- memory ------------------------------------------------------------------------------------------------------------------


def test_who_was_not_asked_for_longest_goes_first() -> None:
    memory = MemoryNgrams(3)
    keys = [bytes([number]) * KEY_LEN for number in range(4)]
    memory.observe([(key, (1,)) for key in keys[:3]])
    memory.lookup([keys[0]])
    memory.observe([(keys[3], (2,))])
    assert len(memory) == 3
    assert memory.lookup(keys) == [(1,), (), (1,), (2,)]


# --- when to try again -------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_pauses_double_up_to_a_bound_with_jitter() -> None:
    clock, luck = Clock(), [0.5] * 12
    breaker = Breaker(clock, luck.pop)
    pauses = []
    for _ in range(12):
        breaker.failed()
        assert not breaker.allows
        pauses.append(breaker.wait_s)
        clock.now_s += breaker.wait_s
        assert breaker.allows
    assert pauses[:4] == pytest.approx([FIRST_PAUSE_S * 2**number for number in range(4)])
    assert pauses[-3:] == pytest.approx([MAX_PAUSE_S] * 3)
    early, late = Breaker(clock, lambda: 0.0), Breaker(clock, lambda: 0.999)
    early.failed()
    late.failed()
    assert early.wait_s < FIRST_PAUSE_S < late.wait_s


def test_a_success_closes_it_and_only_calm_makes_pauses_short_again() -> None:
    clock = Clock()
    breaker = Breaker(clock, lambda: 0.5)
    for _ in range(4):
        breaker.failed()
    breaker.succeeded()
    assert breaker.allows
    breaker.failed()
    assert breaker.wait_s == pytest.approx(16 * FIRST_PAUSE_S), "it comes and goes"
    breaker.succeeded()
    clock.now_s += CALM_S + 1.0
    breaker.failed()
    assert breaker.wait_s == pytest.approx(FIRST_PAUSE_S)
