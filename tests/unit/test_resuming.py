"""What is asked for when a gateway is lost in the midst of an answer, and when nobody is asked any more; without gateways.

pytest tests/unit/test_resuming.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from outrider import resuming
from outrider.errors import InvalidRequest, OutriderError, Overloaded, Unavailable
from outrider.resuming import AnswerSoFar, ResumeLimits, generate_resuming
from outrider.rpc.status import DeadlinePassed
from outrider.types.generation import AnswerEvent, Delta, Done, Finished, FinishReason, GenerationRequest, Started, Usage
from outrider.types.statistics import DraftStatistics

REQUEST = GenerationRequest(prompt="hi")
STARTED = Started("minted", "target", 9, 2, "aa", True)
USAGE = Usage(2, 3)
FINISHED = Finished(0, FinishReason.LENGTH, "", USAGE, DraftStatistics(pacing="plain"), 1, 1)
WHOLE: list[AnswerEvent] = [STARTED, Delta(0, "x", (1, 2)), Delta(0, "y", (3,)), FINISHED, Done(USAGE)]
MOST_ASKED = 16
QUICK = ResumeLimits(max_resumes=4, min_backoff_s=0.001, max_backoff_s=0.002)


def after(request: GenerationRequest, *events: AnswerEvent) -> AnswerSoFar:
    answer = AnswerSoFar(request)
    for event in events:
        answer.add(event)
    return answer


def test_what_is_asked_again_has_the_id_the_seed_the_tokens_and_who_made_them() -> None:
    assert after(REQUEST).again() == replace(REQUEST, takes_over=True)
    named = replace(REQUEST, request_id="minted", seed=9, takes_over=True)
    assert after(REQUEST, STARTED).again() == named, "a fingerprint that made no token is none to speak of"
    one = after(REQUEST, STARTED, Delta(0, "x", (1, 2)))
    assert one.again() == replace(named, resume_token_ids=(1, 2), resume_fingerprints=("aa",))
    one.add(replace(STARTED, fingerprint="bb"))
    assert one.again().resume_fingerprints == ("aa",)
    one.add(Delta(0, "y", (3,)))
    one.add(Delta(0, "z", (4,), fingerprint="cc"))
    one.add(Delta(0, "z", (5,)))
    assert (one.again().resume_token_ids, one.again().resume_fingerprints) == ((1, 2, 3, 4, 5), ("aa", "bb", "cc"))


def test_a_beginning_that_came_with_the_request_stays_as_well_known_as_it_was() -> None:
    begun = replace(REQUEST, resume_token_ids=(7,))
    assert after(begun, STARTED, Delta(0, "x", (8,))).again().resume_fingerprints == ()
    known = replace(begun, resume_fingerprints=("zz",))
    again = after(known, STARTED, Delta(0, "x", (8,))).again()
    assert (again.resume_token_ids, again.resume_fingerprints) == ((7, 8), ("aa", "zz"))


@pytest.mark.parametrize("request_", [replace(REQUEST, num_samples=2), replace(REQUEST, acceptance="rejection")])
def test_what_no_other_stream_can_bring_is_not_asked_for(request_: GenerationRequest) -> None:
    assert after(request_, STARTED).may_resume, "nothing of it is there: it is asked anew"
    answer = after(request_, STARTED, Delta(0, "x", (1,)))
    assert not answer.may_resume
    with pytest.raises(InvalidRequest, match="resume_token_ids"):
        answer.again()


def test_what_a_second_stream_repeats_is_no_news() -> None:
    answer = AnswerSoFar(REQUEST)
    assert [answer.add(event) for event in [*WHOLE, STARTED, FINISHED, Done(USAGE)]] == [True] * 5 + [False, False, True]


class Gateways:
    """Answers askings in turn: the events of each, then its error."""

    def __init__(self, *turns: tuple[Sequence[AnswerEvent], OutriderError | None]) -> None:
        self.turns = list(turns)
        self.silence_s = 0.0
        self.asked: list[tuple[str, GenerationRequest]] = []

    async def stream(
        self, address: str, request: GenerationRequest, deadline_s: float | None, limits: ResumeLimits
    ) -> AsyncGenerator[AnswerEvent, None]:
        assert len(self.asked) < MOST_ASKED, "nobody stops asking"
        self.asked.append((address, request))
        events, error = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        for event in events:
            yield event
        await asyncio.sleep(self.silence_s)  # what it costs to find out that nothing comes any more
        if error is not None:
            raise error


async def read(gateways: Gateways, monkeypatch: pytest.MonkeyPatch, request: GenerationRequest = REQUEST) -> list[AnswerEvent]:
    monkeypatch.setattr(resuming, "_stream", gateways.stream)
    return [event async for event in generate_resuming(("a", "b"), request, None, QUICK)]


LOST = Unavailable("gone")


async def test_gateways_are_asked_in_turn_and_one_answer_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = replace(STARTED, fingerprint="bb")
    gateways = Gateways((WHOLE[:2], LOST), ([], Overloaded("full", 0.001)), ([rest, *WHOLE[2:4]], LOST), ([rest, *WHOLE[3:]], None))
    told = [*WHOLE[:2], Delta(0, "y", (3,), fingerprint="bb"), *WHOLE[3:]]
    assert await read(gateways, monkeypatch) == told, "who made the rest is said with its first tokens: its Started was no news"
    assert [address for address, _ in gateways.asked] == ["a", "b", "a", "b"]
    assert [request.resume_token_ids for _, request in gateways.asked] == [(), (1, 2), (1, 2), (1, 2, 3)]


async def test_what_the_reader_is_told_names_who_made_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the first gateway was lost before it brought any: a reader who hands tokens back says whose they are."""
    second: list[AnswerEvent] = [replace(STARTED, fingerprint="bb"), Delta(0, "x", (1,)), Delta(0, "y", (2,), fingerprint="cc")]
    gateways = Gateways(([STARTED], LOST), (second, LOST), ([replace(STARTED, fingerprint="cc"), Delta(0, "z", (3,)), *WHOLE[3:]], None))
    deltas = [event for event in await read(gateways, monkeypatch) if isinstance(event, Delta)]
    assert [(delta.token_ids, delta.fingerprint) for delta in deltas] == [((1,), "bb"), ((2,), "cc"), ((3,), "")]
    assert gateways.asked[-1][1].resume_fingerprints == ("bb", "cc")


async def test_it_is_asked_so_often_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Gateways(([STARTED], LOST))
    with pytest.raises(Unavailable, match="gone"):
        await read(gateways, monkeypatch)
    assert len(gateways.asked) == 1 + QUICK.max_resumes


async def test_a_full_gateway_refuses_what_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Gateways(([], Overloaded("full")))
    with pytest.raises(Overloaded, match="full"):
        await read(gateways, monkeypatch)
    assert len(gateways.asked) == 1


async def test_who_says_to_come_later_than_anybody_waits_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Gateways((WHOLE[:2], Overloaded("full", 2 * QUICK.patience_s)))
    with pytest.raises(Overloaded, match="full"):
        await read(gateways, monkeypatch)


async def test_a_pause_ends_with_the_answers_own_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    gateways, ask = Gateways((WHOLE[:2], LOST), ([], Overloaded("full", 60.0))), resuming._stream

    def stream(
        address: str, request: GenerationRequest, deadline_s: float | None, limits: ResumeLimits
    ) -> AsyncGenerator[AnswerEvent, None]:
        return (gateways.stream if len(gateways.asked) < 2 else ask)(address, request, deadline_s, limits)

    monkeypatch.setattr(resuming, "_stream", stream)
    with pytest.raises(DeadlinePassed):
        async with asyncio.timeout(10.0):
            _ = [event async for event in generate_resuming(("a", "b"), REQUEST, 0.1, replace(QUICK, patience_s=120.0))]
    assert len(gateways.asked) == 2


async def test_patience_begins_with_a_loss_and_not_with_the_silence_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Gateways((WHOLE[:2], LOST), (WHOLE[2:], None))
    gateways.silence_s = 0.3
    monkeypatch.setattr(resuming, "_stream", gateways.stream)
    limits = replace(QUICK, patience_s=0.2)
    assert [event async for event in generate_resuming(("a",), REQUEST, None, limits)] == WHOLE
    dead = Gateways(([], LOST))
    dead.silence_s = 0.15
    monkeypatch.setattr(resuming, "_stream", dead.stream)
    with pytest.raises(Unavailable, match="gone"):
        _ = [event async for event in generate_resuming(("a",), REQUEST, None, limits)]
    assert 2 <= len(dead.asked) <= 3


@pytest.mark.parametrize("error", [InvalidRequest("prompt", "bad"), OutriderError("a fault")])
async def test_other_errors_are_passed_on(error: OutriderError, monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Gateways((WHOLE[:2], error))
    with pytest.raises(type(error), match=str(error)):
        await read(gateways, monkeypatch)
    assert len(gateways.asked) == 1


async def test_a_stream_that_ends_too_early_is_a_lost_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Gateways((WHOLE[:2], None), (WHOLE[2:], None))
    assert await read(gateways, monkeypatch) == WHOLE


async def test_several_samples_of_which_something_came_are_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    gateways = Gateways((WHOLE[:2], LOST))
    with pytest.raises(Unavailable, match="gone"):
        await read(gateways, monkeypatch, replace(REQUEST, num_samples=2))
    assert len(gateways.asked) == 1


async def test_somebody_must_be_named() -> None:
    with pytest.raises(InvalidRequest, match="addresses: names no gateway"):
        _ = [event async for event in generate_resuming((), REQUEST)]
