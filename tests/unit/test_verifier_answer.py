"""How commits leave a verifier: the first at once, those that follow fast together, the last without waiting.

Run: pytest tests/unit/test_verifier_answer.py
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from outrider.session.events import FinishReason
from outrider.session.opening import VerifierSpec
from outrider.types.frames import DraftLimits
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.statistics import DraftStatistics
from outrider.types.tree import TokenOrigin
from verifier_service import answer as module
from verifier_service.answer import AnswerStream, SessionEnded, SessionRequest, SessionStarted, TokensCommitted

FOR_EVER_S = 3600.0


def stream() -> AnswerStream:
    spec = VerifierSpec(
        session=1, incarnation=1, request_id="r", prefix=np.array([1, 2], np.int32), num_prompt=2, max_len=50, stop_token_ids=frozenset(),
        vocab_size=10, sampling=SamplingParams(), noise=NoiseAddress(0), limits=DraftLimits(max_len=50), max_draft_len=0, max_nodes=0,
    )  # fmt: skip
    return AnswerStream(SessionRequest(spec, "plain", "coupled", None, None), lambda: None)


def committed(begin: int, *tokens: int) -> TokensCommitted:
    return TokensCommitted(begin, tokens, (TokenOrigin.BONUS,) * len(tokens), None)


ENDED = SessionEnded(FinishReason.LENGTH, DraftStatistics())


async def test_the_first_commit_leaves_at_once_and_later_ones_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_WRITE_INTERVAL_S", FOR_EVER_S)
    answer = stream()
    answer.push(SessionStarted("f"))
    answer.push(committed(2, 7))
    assert await answer.next() == SessionStarted("f")
    assert await answer.next() == committed(2, 7)
    answer.push(committed(3, 8))
    waiting = asyncio.ensure_future(answer.next())
    answer.push(committed(4, 9))
    await asyncio.sleep(0)
    assert not waiting.done()
    answer.push(committed(5, 1))
    answer.push(ENDED)
    assert await waiting == committed(3, 8, 9, 1)
    assert await answer.next() == ENDED


async def test_commits_wait_for_the_interval_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_WRITE_INTERVAL_S", 0.01)
    answer = stream()
    clock = asyncio.get_running_loop().time
    begin_s = clock()
    for begin in range(2, 6):
        answer.push(committed(begin, 7))
        assert await answer.next() == committed(begin, 7)
    assert clock() - begin_s > 0.029
