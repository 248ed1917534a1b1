"""Who empties an inbox is rung when it sleeps, and never else: a ring costs two system calls, and a busy thread looks by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from drafter_service.inbox import FramesArrived as DrafterFrames
from drafter_service.inbox import Inbox as DrafterInbox
from outrider.rpc.doorbell import Doorbell
from verifier_service.inbox import FramesArrived as VerifierFrames
from verifier_service.inbox import Inbox as VerifierInbox

NUM_ITEMS = 3000
WAIT_S = 20.0


@dataclass(frozen=True)
class Box:
    """An inbox of either service. offer: one message more. take: what is there; sleeps where it is told to, and gives the number."""

    offer: Callable[[], bool]
    take: Callable[[bool], int]


def of_verifier() -> Box:
    inbox = VerifierInbox(lambda: None, NUM_ITEMS)
    message = VerifierFrames("d", 1, ())
    return Box(lambda: inbox.offer(message), lambda sleeps: len(inbox.take(None if sleeps else 0.0)))


def of_drafter() -> Box:
    inbox = DrafterInbox(NUM_ITEMS, lambda: None)
    message = DrafterFrames(1, ())
    return Box(lambda: inbox.offer(message), lambda sleeps: len(inbox.take(wait=sleeps)))


BOXES = pytest.mark.parametrize("make", [of_verifier, of_drafter])


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> list[Doorbell]:
    """Grows by a bell with each of its rings."""
    rung: list[Doorbell] = []
    ring = Doorbell.ring

    def counted(bell: Doorbell) -> None:
        rung.append(bell)
        ring(bell)

    monkeypatch.setattr(Doorbell, "ring", counted)
    return rung


@BOXES
def test_a_thread_that_is_busy_is_not_rung(make: Callable[[], Box], rings: list[Doorbell]) -> None:
    box = make()
    for _ in range(3):
        assert box.offer()
        assert box.offer()
        assert box.take(False) == 2
    assert rings == []


@BOXES
def test_nobody_lies_down_beside_what_is_queued(make: Callable[[], Box], rings: list[Doorbell]) -> None:
    box, taken = make(), list[int]()
    assert box.offer()
    emptying = threading.Thread(target=lambda: taken.append(box.take(True)), daemon=True)
    emptying.start()
    emptying.join(WAIT_S)
    assert (taken, rings) == ([1], []), "it would wait for ever, for nobody rings any more"


@BOXES
def test_whoever_sleeps_is_always_rung(make: Callable[[], Box], rings: list[Doorbell]) -> None:
    """Both sides as fast as they can, so that items come at every moment between looking, lying down and sleeping."""
    box, num_taken = make(), 0

    def empty() -> None:
        nonlocal num_taken
        while num_taken < NUM_ITEMS:
            num_taken += box.take(True)

    emptying = threading.Thread(target=empty, daemon=True)
    emptying.start()
    num_offered = sum(box.offer() for _ in range(NUM_ITEMS))
    emptying.join(WAIT_S)
    assert (num_offered, num_taken) == (NUM_ITEMS, NUM_ITEMS)
    assert len(rings) <= NUM_ITEMS
