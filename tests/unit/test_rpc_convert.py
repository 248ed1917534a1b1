"""Every value survives the wire and back, whatever it holds.

pytest tests/unit/test_rpc_convert.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import InvalidRequest
from outrider.rpc import convert
from outrider.rpc.convert.generation import request_to_proto
from outrider.rpc.convert.tokens import logprob_from_proto
from outrider.session.events import FinishReason
from outrider.types.frames import Close, CloseReason, Commit, DraftLimits, Feedback, Open, Opened, Refused, Tail, TailEnd
from outrider.types.generation import ChatMessage, DraftWishes, GenerationRequest
from outrider.types.identity import ModelIdentity, Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.statistics import DraftStatistics
from outrider.types.step import TokenLogprobs
from outrider.types.tree import DraftRow, FloatArray, IntArray, TokenOrigin
from outrider.v1 import generation_pb2

FEW = settings(max_examples=40, deadline=None)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**31 - 1)
TOKENS = st.integers(0, 2**31 - 1)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
NAMES = st.text(max_size=20)


def ints(values: list[int]) -> IntArray:
    return np.asarray(values, np.int32)


def floats(values: list[float]) -> FloatArray:
    return np.asarray(values, np.float32)


SAMPLING = st.builds(
    SamplingParams,
    temperature=FLOATS,
    top_k=POSITIONS,
    top_p=FLOATS,
    min_p=FLOATS,
    repetition_penalty=FLOATS,
    presence_penalty=FLOATS,
    frequency_penalty=FLOATS,
    logit_bias=st.dictionaries(TOKENS, FLOATS, max_size=5).map(lambda biases: tuple(sorted(biases.items()))),
)
NOISE = st.builds(NoiseAddress, seed=U64, sample_index=U32, branch=U32)
IDENTITY = st.builds(
    ModelIdentity,
    model=NAMES,
    revision=NAMES,
    weights_hash=NAMES,
    vocab_hash=NAMES,
    vocab_size=st.integers(1, 2**31 - 1),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    numerics=st.sampled_from(Numerics),
    fingerprint=NAMES,
    max_context=st.integers(1, 2**31 - 1),
    eos_token_ids=st.lists(TOKENS, max_size=4).map(tuple),
    adapter=NAMES,
    noise_revision=POSITIONS,
    protocol_version=POSITIONS,
)
LIMITS = st.builds(
    DraftLimits,
    max_len=st.just(2**31 - 1),
    max_nodes=st.integers(1, 1024),
    tree_width=st.integers(1, 64),
    stop_below=st.floats(0, 1, width=32),
    svip_threshold=st.floats(0, 100, width=32),
    flush_nodes=POSITIONS,
    hedge_nodes=st.integers(0, 1024),
)
OPEN = st.builds(
    Open,
    session=U32,
    incarnation=U64,
    request_id=NAMES,
    tokens=st.lists(TOKENS, max_size=8).map(ints),
    prefix_len=st.integers(8, 2**31 - 1),
    num_prompt=st.integers(1, 8),
    sampling=SAMPLING,
    noise=NOISE,
    limits=LIMITS,
    draft_until=POSITIONS,
    with_rows=st.booleans(),
    tenant=NAMES,
    adapter=NAMES,
)
COMMIT = st.builds(
    Commit,
    session=U32,
    incarnation=U64,
    begin=st.integers(0, 2**31 - 100),
    tokens=st.lists(TOKENS, min_size=4, max_size=9).map(ints),
    prefix_hash=U64,
    num_accepted=st.integers(0, 4),
    verify_us=U64,
    draft_until=POSITIONS,
    hedge_nodes=st.integers(0, 1024),
    flush_nodes=st.none() | st.integers(0, 1024),
)
CLOSE = st.builds(Close, session=U32, incarnation=U64, reason=st.sampled_from(CloseReason), detail=NAMES)


@st.composite
def feedbacks(draw: st.DrawFn) -> Feedback:
    rows, k = draw(st.integers(0, 4)), draw(st.integers(0, 3))
    ids = draw(st.lists(TOKENS, min_size=rows * k, max_size=rows * k))
    logprobs = draw(st.lists(FLOATS, min_size=rows * k, max_size=rows * k))
    positions = draw(st.lists(POSITIONS, min_size=rows, max_size=rows))
    return Feedback(draw(U32), draw(U64), ints(positions), ints(ids).reshape(rows, k), floats(logprobs).reshape(rows, k))


@st.composite
def tails(draw: st.DrawFn) -> Tail:
    num_nodes = draw(st.integers(0, 6))
    scores = draw(st.none() | st.lists(FLOATS, min_size=num_nodes, max_size=num_nodes).map(floats)) if num_nodes else None
    rows = tuple(
        DraftRow(draw(st.integers(-1, 5)), ints([4, 9]), floats([draw(st.floats(0, 1, width=32)), 0.5]))
        for _ in range(draw(st.integers(0, 2)))
    )
    return Tail(
        session=draw(U32),
        incarnation=draw(U64),
        tree_id=draw(U32),
        first_node=draw(st.integers(0, 1024)),
        base=draw(POSITIONS),
        prefix_hash=draw(U64),
        tokens=ints(draw(st.lists(TOKENS, min_size=num_nodes, max_size=num_nodes))),
        parents=ints(draw(st.lists(st.integers(-1, 1023), min_size=num_nodes, max_size=num_nodes))),
        end=draw(st.sampled_from(TailEnd)),
        source=draw(NAMES),
        draft_us=draw(U64),
        begin_ns=draw(U64),
        end_ns=draw(U64),
        scores=scores,
        rows=rows,
        hedge_us=draw(U64),
        first_us=draw(U64),
    )


FROM_VERIFIER = st.one_of(
    OPEN,
    COMMIT,
    CLOSE,
    feedbacks(),
    st.builds(convert.Hello, verifier=IDENTITY, verifier_id=NAMES),
    st.builds(convert.Ping, sent_ns=U64),
)
FROM_DRAFTER = st.one_of(
    tails(),
    CLOSE,
    st.builds(Opened, session=U32, incarnation=U64, prefilled_to=POSITIONS),
    st.builds(Refused, session=U32, incarnation=U64, reason=NAMES),
    st.builds(
        convert.Welcome, drafter=IDENTITY, clock_ns=U64, max_sessions=U32, lane_token=st.just(b"") | st.binary(min_size=16, max_size=16)
    ),
    st.builds(convert.Pong, sent_ns=U64, clock_ns=U64),
)


@FEW
@given(st.lists(FROM_VERIFIER, max_size=5))
def test_a_batch_of_a_verifiers_frames_arrives_as_it_left(frames: list[convert.ToDrafter]) -> None:
    message = convert.draft_request(frames)
    received = convert.verifier_frames(type(message).FromString(message.SerializeToString()))
    assert list(map(plain, received)) == list(map(plain, frames))


@FEW
@given(st.lists(FROM_DRAFTER, max_size=5))
def test_a_batch_of_a_drafters_frames_arrives_as_it_left(frames: list[convert.ToVerifier]) -> None:
    message = convert.draft_response(frames)
    received = convert.drafter_frames(type(message).FromString(message.SerializeToString()))
    assert list(map(plain, received)) == list(map(plain, frames))


@FEW
@given(SAMPLING, NOISE, st.none() | U64)
def test_sampling_parameters_seed_and_noise_address_survive(params: SamplingParams, noise: NoiseAddress, seed: int | None) -> None:
    message = convert.sampling_to_proto(params, seed)
    assert convert.sampling_from_proto(message) == params
    assert convert.seed_from_proto(message) == seed
    assert convert.noise_from_proto(convert.noise_to_proto(noise)) == noise


def test_unset_sampling_fields_take_the_documented_defaults() -> None:
    assert convert.sampling_from_proto(generation_pb2.GenerateRequest().sampling) == SamplingParams()


def test_as_sent_is_what_a_service_sees_and_is_stable() -> None:
    sent = convert.as_sent(SamplingParams(temperature=0.8, top_p=0.9))
    assert sent.temperature == float(np.float32(0.8)) != 0.8
    assert convert.as_sent(sent) == sent


@FEW
@given(IDENTITY)
def test_identity_survives(identity: ModelIdentity) -> None:
    assert convert.identity_from_proto(convert.identity_to_proto(identity)) == identity


def test_an_identity_without_numerics_is_refused_by_name() -> None:
    message = convert.identity_to_proto(ModelIdentity("m", "", "w", "v", 8, "float32", Numerics.FAST, "f", 16, (1,)))
    message.ClearField("numerics")
    with pytest.raises(InvalidRequest, match=r"^verifier\.numerics"):
        convert.identity_from_proto(message, "verifier")


def test_statistics_survive_with_their_ratios() -> None:
    statistics = DraftStatistics(
        num_rounds=7,
        num_drafted=20,
        num_accepted=13,
        num_emitted=20,
        drafted_by_depth=(7, 7, 6),
        accepted_by_depth=(6, 4, 3),
        verify_us=5_000_000_000,
        draft_us=4,
        overlapped_draft_us=3,
        reconcile_us=2,
        draft_wait_us=1,
        pacing="pearl",
        num_drafter_losses=1,
        num_cached_prompt=64,
        num_looked_up=9,
        num_looked_up_accepted=8,
        num_hedge_tests=9,
        num_hedge_hits=4,
        session_us=6,
        plan_us=7,
        num_guessed=31,
    )
    message = convert.statistics_to_proto(statistics)
    assert convert.statistics_from_proto(message) == statistics
    assert message.acceptance_rate == pytest.approx(13 / 20)
    assert message.mean_emitted_per_round == pytest.approx(20 / 7)


def test_statistics_of_nothing_have_no_ratio() -> None:
    assert (DraftStatistics().acceptance_rate, DraftStatistics().mean_emitted_per_round) == (0.0, 0.0)


def test_origins_survive_and_an_unknown_one_is_refused() -> None:
    origins = (TokenOrigin.ACCEPTED, TokenOrigin.CORRECTED, TokenOrigin.BONUS)
    assert convert.origins_from_proto(convert.origins_to_proto(origins), 3) == origins
    with pytest.raises(InvalidRequest, match="origins"):
        convert.origins_from_proto([0], 1)
    with pytest.raises(InvalidRequest, match="origins"):
        convert.origins_from_proto([1], 2)


def test_logprobs_of_a_step_become_one_message_per_token() -> None:
    logprobs = TokenLogprobs(floats([-0.5, -2.0]), ints([3, 4, 5, 6]).reshape(2, 2), floats([-0.5, -1, -2, -3]).reshape(2, 2))
    values = [logprob_from_proto(message) for message in convert.logprobs_to_proto(logprobs)]
    assert [(value.logprob, value.top) for value in values] == [(-0.5, ((3, -0.5), (4, -1.0))), (-2.0, ((5, -2.0), (6, -3.0)))]


def test_every_finish_reason_but_failure_has_a_wire_value() -> None:
    values = {convert.finish_reason_to_proto(reason) for reason in FinishReason if reason is not FinishReason.FAILED}
    assert len(values) == 3
    assert generation_pb2.FINISH_REASON_UNSPECIFIED not in values


def test_acceptance_rules_by_name_and_number() -> None:
    assert convert.acceptance_name(0) == "coupled"
    assert all(convert.acceptance_name(convert.acceptance_to_proto(rule)) == rule for rule in ("coupled", "rejection"))
    with pytest.raises(InvalidRequest, match="acceptance"):
        convert.acceptance_name(77)
    with pytest.raises(InvalidRequest, match="acceptance"):
        convert.acceptance_to_proto("typical")


@pytest.mark.parametrize("wish", [field.name for field in generation_pb2.DraftOptions.DESCRIPTOR.fields])
def test_every_wish_about_drafts_can_be_made_in_python(wish: str) -> None:
    value: Any = "plain" if wish == "pacing" else 1
    sent = request_to_proto(GenerationRequest(prompt="hi", draft=DraftWishes(**{wish: value}))).draft
    assert [field.name for field, _ in sent.ListFields()] == [wish]


def test_a_clients_request_sets_exactly_what_it_means_to() -> None:
    request = GenerationRequest(messages=(ChatMessage("user", "hi"),), seed=0, draft=DraftWishes(off=False, max_len=3), stop=("x",))
    message = request_to_proto(request)
    assert message.cache_salt == ""
    assert request_to_proto(replace(request, cache_salt="team")).cache_salt == "team"
    assert message.WhichOneof("input") == "chat"
    assert message.sampling.HasField("seed")
    assert message.draft.HasField("off")
    assert not message.draft.HasField("pacing")
    assert not message.HasField("max_tokens")
    with pytest.raises(InvalidRequest, match="input"):
        request_to_proto(replace(request, prompt="too"))
    with pytest.raises(InvalidRequest, match="input"):
        request_to_proto(GenerationRequest())


@pytest.mark.parametrize(("stop", "sent"), [("END", ["END"]), (("END",), ["END"]), (("a", "bc"), ["a", "bc"]), ((), [])])
def test_a_plain_string_is_one_stop_string_and_not_its_letters(stop: str | tuple[str, ...], sent: list[str]) -> None:
    assert list(request_to_proto(GenerationRequest(prompt="hi", stop=stop)).stop) == sent


@pytest.mark.parametrize(
    "fields", [{"seed": -1}, {"seed": 2**64}, {"max_tokens": -1}, {"num_samples": 2**32}, {"stop": ("\ud800",)}, {"stop_token_ids": (0.5,)}]
)
def test_a_clients_value_that_no_field_can_carry_is_an_error_of_ours(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"^request: holds a value that cannot be sent"):
        request_to_proto(GenerationRequest(prompt="hi", **fields))


def plain(value: object) -> object:
    """A frame with arrays as (dtype, shape, list), so that == means equal."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tolist())
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if hasattr(value, "__dataclass_fields__"):
        return (type(value), *(plain(getattr(value, name)) for name in value.__dataclass_fields__))
    return value
