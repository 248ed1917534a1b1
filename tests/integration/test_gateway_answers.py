"""A gateway over a scripted verifier, on real sockets: what clients see of answers that end anywhere.

pytest tests/integration/test_gateway_answers.py
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import pytest

from fakes_verifier import MODEL_DIR, FakeVerifier, fake_identity, gateway_over, serving
from outrider.client import connect
from outrider.errors import AlreadyExists, DoesNotFit, InvalidRequest, OutriderError, Overloaded, Unavailable, UnknownSession
from outrider.gateway.gateway import GatewayConfig, start_gateway
from outrider.gateway.limits import FailoverLimits, GatewayLimits
from outrider.gateway.tokenizer import load_tokenizer
from outrider.rpc.convert import noise_from_proto, sampling_from_proto
from outrider.rpc.server import ServerLimits
from outrider.rpc.status import RemoteFailure
from outrider.types.generation import (
    Answer,
    AnswerEvent,
    ChatMessage,
    Delta,
    Done,
    DraftWishes,
    Finished,
    FinishReason,
    GenerationRequest,
    Started,
)
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import TokenOrigin
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2, verifier_pb2

TOKENIZER = load_tokenizer(MODEL_DIR)
EOS = 3
REQUEST = GenerationRequest(prompt="Say something:", seed=7)
LETTERS = [TOKENIZER.encode(letter)[0] for letter in "abcdefghij"]
# An emoji of four byte tokens, then a letter that combines with an accent of two.
SPLIT = TOKENIZER.encode("x😀e\u0301!")


async def stream(under_test: object, request: GenerationRequest) -> list[AnswerEvent]:
    return [event async for event in under_test.client.generate(request, timeout_s=10.0)]  # type: ignore[attr-defined]


def text_of(events: list[AnswerEvent], index: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.index == index)


def tokens_of(events: list[AnswerEvent], index: int = 0) -> list[int]:
    return [token for event in events if isinstance(event, Delta) and event.index == index for token in event.token_ids]


def finished(events: list[AnswerEvent], index: int = 0) -> Finished:
    (found,) = [event for event in events if isinstance(event, Finished) and event.index == index]
    return found


async def test_an_answer_is_started_deltas_finished_done() -> None:
    fake = FakeVerifier([*LETTERS[:5], EOS], run_lens=(2, 1))
    async with gateway_over(fake) as under_test:
        events = await stream(under_test, REQUEST)
    started, *deltas, end, done = events
    num_prompt = len(TOKENIZER.encode("Say something:"))
    assert isinstance(started, Started)
    assert (started.model, started.seed, started.num_prompt_tokens, started.exact) == ("target", 7, num_prompt, True)
    assert started.fingerprint == fake.identity.fingerprint
    assert started.request_id.startswith("req-")
    assert all(isinstance(delta, Delta) for delta in deltas)
    assert [delta.token_ids for delta in deltas if isinstance(delta, Delta)] == [
        tuple(LETTERS[:2]),
        (LETTERS[2],),
        tuple(LETTERS[3:5]),
        (EOS,),
    ]
    assert text_of(events) == "abcde"
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.STOP_TOKEN
    assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.total_tokens) == (num_prompt, 6, num_prompt + 6)
    assert (end.statistics.num_rounds, end.statistics.num_emitted, end.statistics.pacing) == (4, 6, "plain")
    assert 0 < end.time_to_first_token_us <= end.total_us
    assert done == Done(end.usage)


async def test_the_verifier_is_told_exactly_what_was_asked() -> None:
    fake = FakeVerifier([EOS])
    sampling = SamplingParams(temperature=0.5, top_k=9, top_p=0.75, min_p=0.125, repetition_penalty=1.5, logit_bias=((7, -2.0),))
    request = GenerationRequest(
        token_ids=(0, 1, 40),
        sampling=sampling,
        seed=2**64 - 1,
        max_tokens=17,
        stop_token_ids=(9,),
        top_logprobs=2,
        draft=DraftWishes(off=False, max_len=4, tree_width=2, stop_below=0.25, svip_threshold=0.5, pacing="serial"),
        acceptance="rejection",
        num_samples=2,
    )
    async with gateway_over(fake) as under_test:
        events = await stream(under_test, request)
    assert isinstance(events[0], Started)
    assert not events[0].exact
    first, second = sorted(fake.starts, key=lambda start: start.noise.sample_index)
    assert sampling_from_proto(first.sampling) == sampling
    assert [noise_from_proto(start.noise) for start in (first, second)] == [NoiseAddress(2**64 - 1, 0), NoiseAddress(2**64 - 1, 1)]
    assert (list(first.prefix), first.num_prompt_tokens, first.max_tokens, list(first.stop_token_ids)) == ([0, 1, 40], 3, 17, [3, 9])
    assert (first.top_logprobs, first.acceptance) == (2, sampling_pb2.ACCEPTANCE_REJECTION)
    assert first.draft == pb.DraftOptions(off=False, max_len=4, tree_width=2, stop_below=0.25, svip_threshold=0.5, pacing="serial")
    assert first.session_id != second.session_id
    assert first.incarnation > 0
    assert not first.paused


@pytest.mark.parametrize("run_len", [1, 2, 3, 4, 7])
async def test_ends_at_every_offset_of_a_run_that_nobody_cut(run_len: int) -> None:
    fake = FakeVerifier([], run_lens=(run_len,), overrun=True)
    async with gateway_over(fake) as under_test:
        for offset in range(6):
            fake.script = [*LETTERS[:offset], EOS, *LETTERS[6:]]
            events = await stream(under_test, REQUEST)
            assert (text_of(events), finished(events).reason) == ("abcdef"[:offset], FinishReason.STOP_TOKEN)
            assert tokens_of(events) == [*LETTERS[:offset], EOS]

            fake.script = LETTERS
            events = await stream(under_test, replace(REQUEST, max_tokens=offset + 1))
            assert (text_of(events), finished(events).reason) == ("abcdef"[: offset + 1], FinishReason.LENGTH)
            assert finished(events).usage.completion_tokens == offset + 1

            stop = "abcdefgh"[offset : offset + 2]
            events = await stream(under_test, replace(REQUEST, stop=("zz", stop)))
            end = finished(events)
            assert (text_of(events), end.reason, end.stop_string) == ("abcdef"[:offset], FinishReason.STOP_STRING, stop)
            assert tokens_of(events) == LETTERS[: offset + 2]
            assert end.usage.completion_tokens == offset + 2
            assert end.statistics.num_rounds > 0, "the stopped session still reports its statistics"


@pytest.mark.parametrize("run_len", [1, 2, 3, 4, 9])
async def test_characters_split_over_tokens_and_rounds_stay_whole(run_len: int) -> None:
    async with gateway_over(FakeVerifier([*SPLIT, EOS], run_lens=(run_len,))) as under_test:
        events = await stream(under_test, REQUEST)
        cut = await stream(under_test, replace(REQUEST, max_tokens=3))
    assert text_of(events) == "x😀e\u0301!"
    assert all("\ufffd" not in event.text for event in events if isinstance(event, Delta))
    assert text_of(cut) == "x\ufffd", "half a character at the end is a replacement"


async def test_a_stop_string_stops_the_verifier_and_later_tokens_of_its_round_are_nobodys() -> None:
    fake = FakeVerifier(LETTERS * 40, run_lens=(5,))  # more than may be under way unread
    async with gateway_over(fake) as under_test:
        events = await stream(under_test, replace(REQUEST, stop=("cd",), top_logprobs=1))
    assert text_of(events) == "ab"
    (delta,) = [event for event in events if isinstance(event, Delta)]
    assert delta.token_ids == tuple(LETTERS[:4])
    assert delta.origins == (TokenOrigin.ACCEPTED,) * 4
    assert [logprob.logprob for logprob in delta.logprobs] == [-token / 64 for token in LETTERS[:4]]
    assert fake.num_stopped == 1
    assert fake.num_commits < 80, "the session ended before its script did"


async def test_samples_have_their_own_noise_and_one_prompt() -> None:
    fake = FakeVerifier(lambda start: [*LETTERS[: 1 + start.noise.sample_index], EOS])
    async with gateway_over(fake) as under_test:
        events = await stream(under_test, replace(REQUEST, num_samples=4))
        answer = await under_test.client.generate_once(replace(REQUEST, num_samples=4), timeout_s=10.0)
    assert [text_of(events, index) for index in range(4)] == ["a", "ab", "abc", "abcd"]
    assert [sample.text for sample in answer.samples] == ["a", "ab", "abc", "abcd"]
    done = events[-1]
    assert isinstance(done, Done)
    num_prompt = len(TOKENIZER.encode("Say something:"))
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (num_prompt, 2 + 3 + 4 + 5)
    assert answer.usage == done.usage


async def test_an_answer_in_one_message_says_the_same() -> None:
    fake = FakeVerifier([*SPLIT, *LETTERS, EOS], run_lens=(3,))
    async with gateway_over(fake) as under_test:
        request = replace(REQUEST, top_logprobs=2, request_id="twice")
        events = await stream(under_test, request)
        answer: Answer = await under_test.client.generate_once(request, timeout_s=10.0)
    (sample,) = answer.samples
    assert answer.started == events[0]
    assert (sample.text, list(sample.token_ids)) == (text_of(events), tokens_of(events))
    assert len(sample.logprobs) == len(sample.origins) == len(sample.token_ids)
    assert sample.logprobs[0].top == ((0, -1.0), (1, -1.0))
    assert (sample.finished.reason, sample.finished.usage) == (finished(events).reason, finished(events).usage)


async def test_an_answer_that_outgrows_one_message_ends_at_once_and_can_be_streamed() -> None:
    fake = FakeVerifier([40] * 400, logprob_rows=1500)  # some 12 kB a token
    request = replace(REQUEST, top_logprobs=1, max_tokens=400)
    async with serving(fake) as address:
        gateway = await start_gateway(GatewayConfig(("127.0.0.1:0",), (address,), MODEL_DIR, server=ServerLimits(max_message_bytes=2**18)))
        async with await connect(gateway.address) as client:
            with pytest.raises(DoesNotFit, match=r"^max_tokens: this answer is larger than one message of 262144 bytes"):
                await client.generate_once(request, timeout_s=10.0)
            await fake.wait_live(0)
            assert fake.num_commits < 400, "nobody decoded what could not be sent"
            events = [event async for event in client.generate(request, timeout_s=10.0)]
        await gateway.stop(0.0)
    assert isinstance(events[-1], Done)


async def test_a_text_whose_tokens_outgrow_one_message_is_refused_by_its_field() -> None:
    """grpc's own status says RESOURCE_EXHAUSTED, after which a client comes again with the same text for ever."""
    async with serving(FakeVerifier(LETTERS)) as address:
        gateway = await start_gateway(GatewayConfig(("127.0.0.1:0",), (address,), MODEL_DIR, server=ServerLimits(max_message_bytes=2**12)))
        async with await connect(gateway.address) as client:
            with pytest.raises(DoesNotFit, match=r"^text: has \d+ tokens, which are more than one message of 4096 bytes can tell"):
                await client.tokenize("1 2 3 4 5 " * 200)
            assert await client.tokenize("1 2 3")
        await gateway.stop(0.0)


@pytest.mark.parametrize("num_done", range(1, 9))
async def test_a_resumed_answer_goes_on_where_the_text_stood(num_done: int) -> None:
    fake = FakeVerifier([*SPLIT, *LETTERS[:3], EOS])
    script = list(SPLIT) + LETTERS[:3]
    async with gateway_over(fake) as under_test:
        whole = await stream(under_test, replace(REQUEST, stop=("never", "!ax")))
        resumed = await stream(under_test, replace(REQUEST, stop=("never", "!ax"), resume_token_ids=tuple(script[:num_done])))
    sent_before = "".join(event.text for event in whole[1 : 1 + num_done] if isinstance(event, Delta))
    assert sent_before + text_of(resumed) == text_of(whole)
    assert tokens_of(resumed) == tokens_of(whole)[num_done:]
    assert finished(resumed).usage == finished(whole).usage
    start = fake.starts[1]
    assert list(start.prefix)[start.num_prompt_tokens :] == script[:num_done]


async def test_resuming_a_complete_answer_brings_its_end_and_asks_no_verifier() -> None:
    """A client that lost its gateway between the last token and Finished."""
    fake = FakeVerifier([EOS])
    by_token = replace(REQUEST, resume_token_ids=(40, EOS)), FinishReason.STOP_TOKEN, ""
    by_string = replace(REQUEST, resume_token_ids=tuple(LETTERS[:2]), stop=("ab",)), FinishReason.STOP_STRING, "ab"
    by_length = replace(REQUEST, resume_token_ids=tuple(LETTERS[:2]), max_tokens=2), FinishReason.LENGTH, ""
    async with gateway_over(fake) as under_test:
        for request, reason, stop_string in (by_token, by_string, by_length):
            started, end, done = await stream(under_test, replace(request, resume_fingerprints=(fake.identity.fingerprint,)))
            assert isinstance(started, Started)
            assert isinstance(end, Finished)
            assert (started.seed, started.exact, end.exact) == (7, True, True)
            assert (end.reason, end.stop_string, end.usage.completion_tokens) == (reason, stop_string, 2)
            assert done == Done(end.usage)
    assert not fake.starts


async def test_resuming_beyond_the_end_of_an_answer_is_refused() -> None:
    async with gateway_over(FakeVerifier([EOS])) as under_test:
        for request in (replace(REQUEST, resume_token_ids=(EOS, 40)), replace(REQUEST, resume_token_ids=tuple(LETTERS[:3]), stop=("ab",))):
            with pytest.raises(InvalidRequest, match=r"^resume_token_ids: has \d ids, but the answer ends after"):
                await stream(under_test, request)


async def test_chat_and_tokenize_agree() -> None:
    fake = FakeVerifier([EOS])
    messages = (ChatMessage("user", "hi 😀"),)
    async with gateway_over(fake) as under_test:
        await stream(under_test, GenerationRequest(messages=messages))
        ids = await under_test.client.tokenize_chat(messages)
        response = await under_test.stub.Tokenize(pb.TokenizeRequest(text="hi 😀"))
        with pytest.raises(InvalidRequest, match=r"^chat.messages\[0\].role"):
            await under_test.client.tokenize_chat([ChatMessage("robot", "hi")])
    assert tuple(fake.starts[0].prefix) == ids
    assert b"".join(response.token_bytes).decode() == "hi 😀"
    assert len(response.token_bytes) == len(response.token_ids)


async def test_a_newer_clients_field_around_a_request_for_a_whole_answer_is_refused() -> None:
    fake = FakeVerifier([EOS])
    message = pb.GenerateOnceRequest(request=pb.GenerateRequest(prompt="hi"))
    message.MergeFromString(bytes([0x98, 0x06, 0x01]))  # field number 99, varint 1
    async with gateway_over(fake) as under_test:
        with pytest.raises(grpc.aio.AioRpcError, match="field number 99") as caught:
            await under_test.stub.GenerateOnce(message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not fake.starts


async def test_model_info_tells_what_is_served() -> None:
    fake = FakeVerifier([EOS])
    async with gateway_over(fake, limits=GatewayLimits(max_completion_tokens=50, max_live_requests=9)) as under_test:
        info = await under_test.client.model_info()
    assert info.target == fake.identity
    assert [drafter.model for drafter in info.drafters] == ["fake/draft"], "a drafter that is not connected is not a pair"
    assert (info.max_prompt_tokens, info.max_completion_tokens, info.max_live_requests, info.has_chat_template) == (511, 50, 9, True)
    assert info.live.sessions == 0


@pytest.mark.parametrize(
    "refusal",
    [
        InvalidRequest("draft.pacing", "'warp' is no registered policy"),
        DoesNotFit("max_tokens", "is 60, but 4 prompt tokens leave 12 of 16"),
        Overloaded("64 sessions are live"),
        Unavailable("the verifier is draining"),
    ],
)
async def test_a_verifiers_refusal_reaches_the_client_as_it_was_meant(refusal: OutriderError) -> None:
    async with gateway_over(FakeVerifier([EOS], refuse=refusal), failover=FailoverLimits(begin_timeout_s=0.2)) as under_test:
        with pytest.raises(type(refusal)) as caught:
            await stream(under_test, replace(REQUEST, draft=DraftWishes(pacing="warp")))
    assert str(caught.value) == str(refusal)


async def test_a_verifiers_failure_in_the_middle_comes_after_what_it_committed() -> None:
    """A failure that no other verifier may mend: under rejection acceptance the tokens would be others."""
    async with gateway_over(FakeVerifier(LETTERS, run_lens=(2,), fail=Unavailable("going down"))) as under_test:
        running = under_test.client.generate(replace(REQUEST, acceptance="rejection"), timeout_s=10.0)
        events = [await anext(running), await anext(running)]
        with pytest.raises(Unavailable, match="going down"):
            await anext(running)
    assert text_of(events) == "ab"


class WrongVerifier(FakeVerifier):
    """Commits what cannot be."""

    flaw = ""

    def _committed(self, start: verifier_pb2.DecodeStart, begin: int, run: list[int]) -> verifier_pb2.DecodeCommitted:
        committed = super()._committed(start, begin, run)
        match self.flaw:
            case "begin":
                committed.begin += 1
            case "origins":
                committed.origins.append(sampling_pb2.TOKEN_ORIGIN_BONUS)
            case "logprobs":
                del committed.logprobs[:]
        return committed


@pytest.mark.parametrize("flaw", ["begin", "origins", "logprobs"])
async def test_a_verifier_that_contradicts_itself_fails_the_request_and_corrupts_nothing(flaw: str) -> None:
    fake = WrongVerifier(LETTERS)
    fake.flaw = flaw
    async with gateway_over(fake) as under_test:
        with pytest.raises(RemoteFailure):
            await stream(under_test, replace(REQUEST, top_logprobs=0))


async def test_a_verifiers_reason_to_end_that_nobody_knows_fails_the_request_with_a_sentence() -> None:
    class Newer(FakeVerifier):
        def _finished(self, start: verifier_pb2.DecodeStart, end: int, stopped: asyncio.Event) -> verifier_pb2.DecodeFinished:
            finished = super()._finished(start, end, stopped)
            finished.finish_reason = 99  # type: ignore[assignment]
            return finished

    async with gateway_over(Newer(LETTERS)) as under_test:
        with pytest.raises(RemoteFailure, match="for reason 99"):
            await stream(under_test, REQUEST)


async def test_a_live_id_and_a_full_gateway_are_refused_before_any_work() -> None:
    fake = FakeVerifier(LETTERS * 10)
    async with gateway_over(fake, limits=GatewayLimits(max_live_requests=1)) as under_test:
        first = under_test.client.generate(replace(REQUEST, request_id="mine"))
        assert isinstance(await anext(first), Started)
        with pytest.raises(AlreadyExists):
            await stream(under_test, replace(REQUEST, request_id="mine"))
        with pytest.raises(Overloaded):
            await stream(under_test, replace(REQUEST, request_id="other"))
        with pytest.raises(UnknownSession):
            await under_test.client.abort("other")
        await first.aclose()  # type: ignore[attr-defined]
        await under_test.idle()
        assert len(fake.starts) == 1
        assert text_of(await stream(under_test, replace(REQUEST, request_id="mine", max_tokens=3))) == "abc"


async def test_requests_go_to_the_verifier_with_fewest_live_samples_and_around_one_that_is_gone() -> None:
    left, right = FakeVerifier(LETTERS * 30), FakeVerifier(LETTERS * 30)
    async with gateway_over(left, right) as under_test:
        streams = [under_test.client.generate(REQUEST) for _ in range(4)]
        for running in streams:
            assert isinstance(await anext(running), Started)
        assert (len(left.starts), len(right.starts)) == (2, 2)
        for running in streams:
            await running.aclose()  # type: ignore[attr-defined]
        await under_test.idle()
        left.refuse = Unavailable("draining")
        for _ in range(3):
            assert text_of(await stream(under_test, replace(REQUEST, max_tokens=2))) == "ab"
        assert len(right.starts) == 5


async def test_verifiers_of_different_models_are_refused_at_start() -> None:
    other = FakeVerifier([EOS], identity=replace(fake_identity(), weights_hash="dd" * 16))
    with pytest.raises(OutriderError, match="weights differ"):
        async with gateway_over(FakeVerifier([EOS]), other):
            raise AssertionError("never started")


async def test_a_text_that_cannot_fit_is_refused_by_its_length_but_its_tokens_may_be_asked_for() -> None:
    text = "x " * 2**17
    async with gateway_over(FakeVerifier([EOS])) as under_test:
        with pytest.raises(DoesNotFit, match=r"^prompt: has at least \d+ tokens, at most 511 here$"):
            await stream(under_test, GenerationRequest(prompt=text))
        assert list(await under_test.client.tokenize(text)) == TOKENIZER.encode(text)
