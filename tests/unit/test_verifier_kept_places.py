"""An answer that lost its verifier in the midst and finds no room comes before new requests when there is some again.

Run: pytest tests/unit/test_verifier_kept_places.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fakes import TableEngine
from fakes_scheduler import PROMPT, TABLE, Loop, ended
from fakes_simulation import spec_of
from outrider.errors import Overloaded
from outrider.session.events import FinishReason
from verifier_service import kept_places
from verifier_service.answer import MAX_UNDELIVERED_TOKENS, SessionStarted
from verifier_service.inbox import CancelAsked
from verifier_service.kept_places import KEPT_US, MAX_KEPT, KeptPlaces, goes_on

NUM_BEGUN = 4
BEGUN = TABLE.answer(PROMPT, len(PROMPT) + NUM_BEGUN, frozenset())
RESUMED: dict[str, Any] = {
    "request_id": "begun elsewhere",
    "incarnation": 2,
    "prefix": np.asarray([*PROMPT, *BEGUN], np.int32),
    "num_prompt": len(PROMPT),
}


@pytest.fixture(autouse=True)
def no_clock_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_places, "KEPT_US", 1 << 60)


@pytest.mark.parametrize("lacks", ["sessions", "blocks"])
async def test_what_becomes_free_is_kept_for_an_answer_that_was_refused_in_its_midst(lacks: str) -> None:
    num_tokens = 4 * MAX_UNDELIVERED_TOKENS
    num_blocks = 1024 if lacks == "sessions" else (len(PROMPT) + num_tokens) // 16 + 2
    engine = TableEngine(TABLE, num_blocks=num_blocks)
    loop = Loop(engine, max_sessions=1 if lacks == "sessions" else 8)
    first = loop.open(num_tokens)
    loop.wait(first, SessionStarted)
    assert isinstance(ended(loop, loop.open(num_tokens, **RESUMED)).error, Overloaded)
    loop.scheduler.inbox.put(CancelAsked(first, "enough"))
    ended(loop, first)
    for _ in range(3):
        refused = ended(loop, loop.open(5)).error
        assert isinstance(refused, Overloaded)
        assert "room kept for them (1)" in str(refused)
    resumed = loop.open(30, **RESUMED)
    assert ended(loop, resumed).reason is FinishReason.LENGTH
    assert [*BEGUN, *loop.tokens(resumed)] == TABLE.answer(PROMPT, len(PROMPT) + 30, frozenset())
    assert ended(loop, loop.open(5)).reason is FinishReason.LENGTH, "nobody else waits"
    loop.stop()
    assert (engine.num_open, engine.num_free_blocks) == (0, engine.limits.num_blocks)


async def test_places_beyond_those_that_are_kept_are_for_anybody() -> None:
    loop = Loop(TableEngine(TABLE, num_blocks=4096), max_sessions=3)
    live = [loop.open(4 * MAX_UNDELIVERED_TOKENS) for _ in range(3)]
    for answer in live:
        loop.wait(answer, SessionStarted)
    assert isinstance(ended(loop, loop.open(**RESUMED)).error, Overloaded)
    for answer in live[:2]:
        loop.scheduler.inbox.put(CancelAsked(answer, "enough"))
        ended(loop, answer)
    assert ended(loop, loop.open(5)).reason is FinishReason.LENGTH
    loop.stop()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [(RESUMED, True), (RESUMED | {"incarnation": 1}, False), ({"incarnation": 2}, False), ({}, False)],
    ids=["lost in the midst", "asked to go on by its client", "opened elsewhere first", "new"],
)
def test_who_goes_on(changes: dict[str, Any], expected: bool) -> None:
    assert goes_on(spec_of(0, PROMPT, 30, TABLE, **changes)) is expected


def test_a_place_is_kept_for_a_while_and_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_places, "KEPT_US", KEPT_US)
    places = KeptPlaces()
    places.keep("a", 0, lacks_blocks=True)
    places.keep("b", 1, lacks_blocks=False)
    assert (places.num(KEPT_US - 1), places.needs_blocks) == (2, True)
    places.keep("a", 2, lacks_blocks=False)
    assert (places.num(KEPT_US), places.needs_blocks) == (2, False), "as it was asked for last"
    assert places.num(KEPT_US + 1) == 1
    places.found("a")
    assert places.num(KEPT_US + 1) == 0
    for number in range(2 * MAX_KEPT):
        places.keep(str(number), 5, lacks_blocks=False)
    assert places.num(6) == MAX_KEPT
