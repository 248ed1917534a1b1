"""A drafter that refuses sessions is in the log with its reason, once and then now and then.

pytest tests/unit/test_verifier_refusal_log.py
"""

from __future__ import annotations

import pytest

from fakes import TableEngine
from fakes_scheduler import TABLE, Loop, ended
from outrider.types.frames import Refused
from verifier_service.inbox import FramesArrived, PairUp
from verifier_service.refusal_log import MAX_DRAFTERS, PAUSE_US, RefusalLog


def test_the_reason_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_us = 5
    log = RefusalLog(lambda: now_us)
    for reason in ("too long", "too long", "no room"):
        log.note("d", reason)
    log.note("e", "draining")
    now_us += PAUSE_US
    log.note("d", "no room")
    goes_on = "which goes on without its guesses"
    assert [record.message for record in caplog.records] == [
        f"drafter d refuses a session, {goes_on}: too long",
        f"drafter e refuses a session, {goes_on}: draining",
        f"drafter d refuses a session, and 2 more since this was last said, {goes_on}: no room",
    ]
    for number in range(2 * MAX_DRAFTERS):
        log.note(f"d{number}", "no")
    assert len(log._told) == MAX_DRAFTERS


def test_a_verifier_says_why_its_session_has_no_guesses(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(TableEngine(TABLE))
    inbox = loop.scheduler.inbox
    with inbox._lock:  # all of it in one turn
        inbox.put(PairUp("d", 1))
        answer = loop.open(pacing="serial")
        inbox.offer(FramesArrived("d", 1, (Refused(1, 1, "max_len: 40960 tokens need 1280 KV blocks; there are 64"),)))
    ended(loop, answer)
    loop.stop()
    assert "drafter d refuses a session, which goes on without its guesses: max_len: 40960 tokens need" in caplog.text
