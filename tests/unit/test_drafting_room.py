"""A drafter's KV blocks for texts that grow: more as they are wanted, and where there are none, that session is over and no other.

Run: pytest tests/unit/test_drafting_room.py
"""

from __future__ import annotations

import pytest

from fakes_drafter_loop import Bench, commit, continuation, opening
from fakes_drafting import BLOCK_LEN, TableEngine
from fakes_driven import SESSION, Driven
from outrider.drafting.model_source import ModelSource
from outrider.types import text_room
from outrider.types.frames import Close, CloseReason, DraftLimits, TailEnd

NUM_BLOCKS, FEW_BLOCKS = 640 // BLOCK_LEN, 256 // BLOCK_LEN


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is hundreds of tokens in a service is some."""
    for name, num in (("FIRST_ROOM", 32), ("ROOM_STEP", 32), ("LEAST_ROOM", 16)):
        monkeypatch.setattr(text_room, name, num)


def test_a_long_text_takes_blocks_as_it_grows_and_guesses_on() -> None:
    engine = TableEngine(num_blocks=NUM_BLOCKS)
    driven = Driven(ModelSource(engine), SESSION, [1, 2, 3], DraftLimits(max_len=600, max_nodes=16))
    held = [NUM_BLOCKS - engine.num_free_blocks]
    while len(driven.truth) < 500:
        assert driven.draft(len(driven.truth) + 8) is TailEnd.CREDIT
        driven.commit(continuation(driven.truth, 9))
        held.append(NUM_BLOCKS - engine.num_free_blocks)
        assert held[-1] * BLOCK_LEN >= len(driven.truth) + 16
    assert held[0] == -(-(3 + 32 + 16) // BLOCK_LEN)
    assert held == sorted(held)
    assert held[-1] <= -(-(500 + 9 + 32 + 16) // BLOCK_LEN)
    driven.source.close(SESSION)
    assert engine.num_free_blocks == NUM_BLOCKS


def test_a_session_without_room_for_more_ends_and_no_other() -> None:
    engine = TableEngine(num_blocks=FEW_BLOCKS)
    bench = Bench(ModelSource(engine))
    texts = {1: [1, 2], 2: [2, 3]}
    bench.send(1, *(opening(session, text, len(text) + 4, max_len=224, nodes=16) for session, text in texts.items()))
    bench.turn(20)
    closed: list[Close] = []
    while not closed:
        for session, text in texts.items():
            begin = len(text)
            text += continuation(text, 5)
            bench.send(1, commit(session, text, begin, len(text) + 4))
        bench.turn(20)
        closed = [frame for frame in bench.received(1) if isinstance(frame, Close)]
    (frame,) = closed
    assert frame.reason is CloseReason.FAILED
    assert "KV blocks" in frame.detail or "no blocks" in frame.detail
    other = texts[3 - frame.session]
    bench.send(1, commit(3 - frame.session, other + continuation(other, 5), len(other), len(other) + 9))
    bench.turn(20)
    assert not [frame for frame in bench.received(1) if isinstance(frame, Close)], "the other has the blocks of the one that ended"
    bench.send(1, Close(3 - frame.session, 1, CloseReason.FINISHED, ""))
    bench.turn()
    assert engine.num_free_blocks == FEW_BLOCKS
