"""The end of a sample in the message of its last tokens: the client sees the same answer as of an end that comes by itself.

pytest tests/integration/test_gateway_ends.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes_failover import EOS, REQUEST, SCRIPT, STOPPED, finished, stream
from fakes_verifier import FakeVerifier, Hurt, gateway_over
from outrider.types.generation import AnswerEvent, Finished, GenerationRequest, Started

SHORT = replace(REQUEST, max_tokens=6)
ONGOING = [token for token in SCRIPT if token != EOS] * 8


def told(events: list[AnswerEvent]) -> list[AnswerEvent]:
    """Without what differs from request to request."""
    return [
        replace(event, total_us=0, time_to_first_token_us=0) if isinstance(event, Finished) else event
        for event in events
        if not isinstance(event, Started)
    ]


@pytest.mark.parametrize("run_len", [1, 3, 200])
@pytest.mark.parametrize(
    ("script", "request_"),
    [
        (SCRIPT, REQUEST),
        (SCRIPT, SHORT),
        (STOPPED, REQUEST),
        (STOPPED[:-2], REQUEST),
        (ONGOING[:90], REQUEST),
        (ONGOING[:90], replace(SHORT, stop=())),
    ],
    ids=["end token", "length", "stop string", "stop string last", "the verifier's own end", "length, no stops"],
)
async def test_an_answer_ends_the_same(script: list[int], request_: GenerationRequest, run_len: int) -> None:
    answers = []
    for end_with_tokens in (False, True):
        fake = FakeVerifier(script, run_lens=(run_len,), end_with_tokens=end_with_tokens)
        async with gateway_over(fake) as under_test:
            answers.append(told(await stream(under_test, request_)))
            await under_test.idle()
    assert answers[0] == answers[1]


async def test_an_answer_that_moved_ends_with_its_tokens_too() -> None:
    first, second = FakeVerifier(SCRIPT, hurt=Hurt.DRAIN, hurt_after=4, end_with_tokens=True), FakeVerifier(SCRIPT, end_with_tokens=True)
    async with gateway_over(first, second) as under_test:
        end = finished(await stream(under_test))
    assert (end.usage.completion_tokens, end.num_failovers, end.statistics.num_emitted) == (len(SCRIPT), 1, len(SCRIPT))


async def test_samples_side_by_side_end_each_with_its_tokens() -> None:
    async with gateway_over(FakeVerifier(SCRIPT, end_with_tokens=True)) as under_test:
        events = await stream(under_test, replace(REQUEST, num_samples=3))
    assert [finished(events, index).usage.completion_tokens for index in range(3)] == [len(SCRIPT)] * 3
