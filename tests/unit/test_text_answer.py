"""Stop strings, end tokens and max_tokens landing at every offset of runs of every length.

pytest tests/unit/test_text_answer.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.gateway.answer import Answer, End
from outrider.gateway.detokenizer import ByteTextDecoder
from outrider.gateway.token_bytes import TokenTable

EOS = 256
# Ids 0 to 255 are the bytes themselves; above EOS a few tokens of several bytes that cut characters anywhere.
EXTRA = [b"ab", b"b\xf0\x9f", b"\x98\x80", b" the", b"\xcc\x81e", b"stop"]
PIECES = (*(bytes([byte]) for byte in range(256)), b"", *EXTRA)
TABLE = TokenTable(PIECES, PIECES, strips_leading_space=False)
FEW = settings(max_examples=100, deadline=None)


def answer(stops: Sequence[str] = (), max_tokens: int = 10_000) -> Answer:
    return Answer(ByteTextDecoder(TABLE, at_start=False), stops, frozenset({EOS}), max_tokens)


def in_runs(ids: Sequence[int], run_len: int) -> Iterator[Sequence[int]]:
    return (ids[begin : begin + run_len] for begin in range(0, len(ids), run_len))


def play(subject: Answer, runs: Iterator[Sequence[int]]) -> tuple[str, list[int], End | None, str]:
    """Text, tokens, why it ended and the stop string; a test's verifier ends an answer that did not end by itself with LENGTH."""
    text = ""
    tokens: list[int] = []
    for run in runs:
        grown = subject.push(run)
        text += grown.text
        tokens += run[: grown.num_taken]
        if grown.end is not None:
            return text, tokens, grown.end, grown.stop_string
    grown = subject.finish(End.LENGTH)
    return text + grown.text, tokens, grown.end, grown.stop_string


def one_shot(ids: Sequence[int], stops: Sequence[str]) -> str:
    """Decode everything, then cut at the stop that is complete first."""
    text = b"".join(PIECES[token_id] for token_id in ids).decode(errors="replace")
    ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    if not ends:
        return text
    end, negative_len = min(ends)
    return text[: end + negative_len]


@FEW
@given(
    st.lists(st.integers(0, len(PIECES) - 1).filter(lambda token_id: token_id != EOS), max_size=15),
    st.lists(st.text("abest p", min_size=1, max_size=4), max_size=3),
    st.integers(1, 6),
)
def test_streamed_text_is_the_one_shot_decoding_cut_at_the_first_stop(ids: list[int], stops: list[str], run_len: int) -> None:
    text, _, _, _ = play(answer(stops), in_runs(ids, run_len))
    assert text == one_shot(ids, stops)


@FEW
@given(
    st.lists(st.sampled_from([97, 98, 257, 258, 259, 260, 262, 0xF0, 0x9F]), max_size=15),
    st.lists(st.sampled_from(["ab", "b😀", "top"]), max_size=2),
)
def test_how_tokens_were_grouped_into_runs_changes_nothing(ids: list[int], stops: list[str]) -> None:
    results = [play(answer(stops), in_runs(ids, run_len)) for run_len in (1, 2, 3, 5, 16)]
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("run_len", range(1, 9))
@pytest.mark.parametrize("offset", range(8))
def test_an_end_token_at_every_offset_of_a_run_ends_the_answer_there(run_len: int, offset: int) -> None:
    ids = [*b"abcdefgh"[:offset], EOS, *b"leaked!!"]
    text, tokens, end, _ = play(answer(["!"]), in_runs(ids, run_len))
    assert text == "abcdefgh"[:offset]
    assert tokens == ids[: offset + 1], "usage counts the end token"
    assert end is End.STOP_TOKEN


@pytest.mark.parametrize("run_len", range(1, 9))
@pytest.mark.parametrize("offset", range(8))
def test_a_stop_string_completed_at_every_offset_of_a_run_cuts_text_and_tokens(run_len: int, offset: int) -> None:
    ids = [*b"abcdefgh"[:offset], *b"XYZ", *b"leaked", EOS]
    subject = answer(["XYZ"])
    text, tokens, end, stop = play(subject, in_runs(ids, run_len))
    assert (text, end, stop) == ("abcdefgh"[:offset], End.STOP_STRING, "XYZ")
    assert tokens == ids[: offset + 3], "up to and including the token that completed it"
    assert subject.num_tokens == offset + 3


@pytest.mark.parametrize("run_len", range(1, 9))
@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_max_tokens_at_every_offset_of_a_run_ends_the_answer_there(run_len: int, max_tokens: int) -> None:
    text, tokens, end, _ = play(answer(max_tokens=max_tokens), in_runs(b"abcdefghijkl", run_len))
    assert text == "abcdefghijkl"[:max_tokens]
    assert len(tokens) == max_tokens
    assert end is End.LENGTH


@pytest.mark.parametrize("run_len", range(1, 7))
def test_max_tokens_inside_a_character_ends_with_a_replacement(run_len: int) -> None:
    text, tokens, end, _ = play(answer(max_tokens=3), in_runs("a😀".encode(), run_len))
    assert (text, len(tokens), end) == ("a\ufffd", 3, End.LENGTH)


def test_a_beginning_of_a_stop_string_leaves_when_the_answer_ends_otherwise() -> None:
    subject = answer(["STOP"])
    assert subject.push(list(b"xSTO")).text == "x"
    grown = subject.push([EOS])
    assert (grown.text, grown.end) == ("STO", End.STOP_TOKEN)


def test_an_end_token_in_the_middle_of_a_character_gives_a_replacement_and_no_more() -> None:
    assert play(answer(), iter([[0xF0, 0x9F], [EOS, 97]]))[:3] == ("\ufffd", [0xF0, 0x9F, EOS], End.STOP_TOKEN)


def test_a_stop_string_that_only_the_last_broken_character_completes() -> None:
    text, _, end, stop = play(answer(["a\ufffd"]), iter([[97, 0xF0]]))
    assert (text, end, stop) == ("", End.STOP_STRING, "a\ufffd")


def test_a_token_that_spells_past_the_stop_is_counted_but_its_rest_does_not_leave() -> None:
    subject = answer(["to"])
    grown = subject.push([262, 97])  # b"stop"
    assert (grown.text, grown.num_taken, grown.end) == ("s", 1, End.STOP_STRING)


def test_resumed_tokens_prime_what_waits_without_sending_it_again() -> None:
    whole, resumed = answer(["STOP"]), answer(["STOP"])
    first, second = list("Hi 😀 ST".encode())[:9], [*list("Hi 😀 ST".encode())[9:], *b"OPx"]
    head = whole.push(first).text
    resumed.push(first)
    assert head + resumed.push(second).text == "Hi 😀 "
    assert whole.push(second).stop_string == "STOP"
    assert resumed.num_tokens == whole.num_tokens
