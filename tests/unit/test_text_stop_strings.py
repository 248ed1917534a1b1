"""Stop strings: nothing at or after one leaves, nothing waits that could not become one, chunks do not matter.

pytest tests/unit/test_text_stop_strings.py
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.gateway.stop_strings import StopMatcher

FEW = settings(max_examples=150, deadline=None)
STOPS = st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=4)
CHUNKS = st.lists(st.text("abcé", max_size=5), max_size=8)


def cut_at_first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition, spelled out: the stop that is complete first wins, the longest of those that end together."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def held_len(text: str, stops: list[str]) -> int:
    """Length of the longest suffix that begins a stop string."""
    return max((size for size in range(len(text) + 1) if any(stop.startswith(text[len(text) - size :]) for stop in stops)), default=0)


def run(chunks: list[str], stops: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    sent = ""
    for chunk in chunks:
        released = matcher.push(chunk)
        sent += released.text
        if released.stop is not None:
            return sent, released.stop
    return sent + matcher.flush(), None


@FEW
@given(CHUNKS, STOPS)
def test_streamed_text_is_the_whole_text_cut_at_the_first_stop(chunks: list[str], stops: list[str]) -> None:
    assert run(chunks, stops) == cut_at_first_stop("".join(chunks), stops)


@FEW
@given(CHUNKS, STOPS)
def test_after_every_chunk_exactly_what_could_become_a_stop_waits(chunks: list[str], stops: list[str]) -> None:
    matcher, text, sent = StopMatcher(stops), "", ""
    for chunk in chunks:
        released = matcher.push(chunk)
        text, sent = text + chunk, sent + released.text
        if released.stop is not None:
            return
        waiting = held_len(text, stops)
        assert matcher.num_held == waiting
        assert sent == text[: len(text) - waiting]


@pytest.mark.parametrize(
    ("chunks", "stops", "text", "stop"),
    [
        (["hello", " world"], ["o w"], "hell", "o w"),
        (["a", "b", "c", "d"], ["bcd", "cx"], "a", "bcd"),
        (["xabcd"], ["abcd", "bc"], "xa", "bc"),
        (["xabc"], ["bc", "abc"], "x", "abc"),
        (["aaab"], ["aab"], "a", "aab"),
        (["stop"], ["stop"], "", "stop"),
        (["sto", "q"], ["stop"], "stoq", None),
        (["\n\nQ", ":"], ["\nQ:"], "\n", "\nQ:"),
        ([], ["x"], "", None),
    ],
)
def test_cases_a_reader_can_check(chunks: list[str], stops: list[str], text: str, stop: str | None) -> None:
    assert run(chunks, stops) == (text, stop)


def test_without_stop_strings_nothing_ever_waits() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything").text == "anything"
    assert matcher.num_held == 0
    assert matcher.flush() == ""


def test_text_flows_again_when_a_beginning_comes_to_nothing() -> None:
    matcher = StopMatcher(["END"])
    assert [matcher.push(piece).text for piece in ("a", "E", "N", "x", "E")] == ["a", "", "", "ENx", ""]
    assert matcher.flush() == "E"
