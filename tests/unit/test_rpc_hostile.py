"""Messages nobody should send: decoders name the field or the frame, and nothing else is ever raised.

pytest tests/unit/test_rpc_hostile.py
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_verifier import fake_identity
from outrider.errors import InvalidRequest, ProtocolViolation
from outrider.gateway.checks import check_input, check_request
from outrider.gateway.limits import GatewayLimits, ServedModel
from outrider.rpc import convert
from outrider.rpc.convert.drafter_frames import drafter_frame_from_proto
from outrider.rpc.convert.generation import answer_from_proto, event_from_proto
from outrider.rpc.convert.verifier_frames import verifier_frame_from_proto
from outrider.v1 import drafter_pb2 as pb
from outrider.v1 import generation_pb2, identity_pb2, sampling_pb2

MANY = settings(max_examples=50, deadline=None)
MAX_DEPTH = 3


@st.composite
def messages(draw: st.DrawFn, message_class: type[Message], depth: int = 0) -> Message:
    """Any message of a class, with fields at their extremes and lists of unequal lengths."""
    message = message_class()
    for field in message_class.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        if field.message_type is None:
            _fill(draw, message, field)
        elif depth < MAX_DEPTH and not field.message_type.GetOptions().map_entry:
            inner = messages(type(_empty(message, field)), depth + 1)
            if field.is_repeated:
                getattr(message, field.name).extend(draw(st.lists(inner, max_size=3)))
            else:
                getattr(message, field.name).CopyFrom(draw(inner))
    return message


def _empty(message: Message, field: Any) -> Message:
    if field.is_repeated:
        added: Message = type(message)().__getattribute__(field.name).add()
        return added
    inner: Message = getattr(type(message)(), field.name)
    return inner


def _fill(draw: st.DrawFn, message: Message, field: Any) -> None:
    values = _scalars(field)
    if field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(values, max_size=4)))
    else:
        setattr(message, field.name, draw(values))


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    kinds = FieldDescriptor
    match field.type:
        case kinds.TYPE_UINT32:
            return st.sampled_from([0, 1, 5, 1024, 2**31 - 1, 2**31, 2**32 - 1])
        case kinds.TYPE_UINT64 | kinds.TYPE_FIXED64:
            return st.sampled_from([0, 1, 2**63, 2**64 - 1])
        case kinds.TYPE_SINT32:
            return st.sampled_from([-(2**31), -2, -1, 0, 3, 2**31 - 1])
        case kinds.TYPE_FLOAT | kinds.TYPE_DOUBLE:
            return st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 0.5, 3e38])
        case kinds.TYPE_ENUM:
            return st.sampled_from([0, 1, 2, 5, 6, 2**31 - 1, -1])
        case kinds.TYPE_STRING:
            return st.sampled_from(["", "x", "\x00\n", "é" * 300, "y" * 5000])
        case kinds.TYPE_BYTES:
            return st.binary(max_size=4)
        case kinds.TYPE_BOOL:
            return st.booleans()
    raise AssertionError(f"unexpected field type {field.type}")


@MANY
@given(messages(pb.DraftRequest))
def test_any_batch_from_a_verifier_becomes_frames_or_bad_frames(message: pb.DraftRequest) -> None:
    frames = convert.verifier_frames(message)
    assert len(frames) == len(message.frames)
    for frame, envelope in zip(frames, message.frames, strict=True):
        _belongs(frame, envelope)


@MANY
@given(messages(pb.DraftResponse))
def test_any_batch_from_a_drafter_becomes_frames_or_bad_frames(message: pb.DraftResponse) -> None:
    frames = convert.drafter_frames(message)
    assert len(frames) == len(message.frames)
    for frame, envelope in zip(frames, message.frames, strict=True):
        _belongs(frame, envelope)


def _belongs(frame: object, envelope: pb.DraftRequestFrame | pb.DraftResponseFrame) -> None:
    """A bad frame names the session of the frame that was bad, so that it alone can be ended."""
    if isinstance(frame, convert.BadFrame):
        kind = envelope.WhichOneof("frame")
        named = getattr(envelope, kind) if kind else None
        assert frame.session == getattr(named, "session", None)


@MANY
@given(messages(identity_pb2.ModelIdentity))
def test_any_identity_is_read_or_refused_by_field(message: identity_pb2.ModelIdentity) -> None:
    _reads_or_refuses(lambda: convert.identity_from_proto(message))


@MANY
@given(messages(sampling_pb2.SamplingParams))
def test_any_sampling_is_read_or_refused_by_field(message: sampling_pb2.SamplingParams) -> None:
    _reads_or_refuses(lambda: convert.sampling_from_proto(message).check(100))


@MANY
@given(messages(generation_pb2.GenerateResponse), messages(generation_pb2.GenerateOnceResponse))
def test_any_answer_is_read_or_refused_by_field(
    event: generation_pb2.GenerateResponse, answer: generation_pb2.GenerateOnceResponse
) -> None:
    _reads_or_refuses(lambda: event_from_proto(event))
    _reads_or_refuses(lambda: answer_from_proto(answer))


@MANY
@given(messages(generation_pb2.GenerateRequest), messages(generation_pb2.TokenizeRequest))
def test_any_request_is_checked_or_refused_by_field(
    request: generation_pb2.GenerateRequest, tokenize: generation_pb2.TokenizeRequest
) -> None:
    _reads_or_refuses(lambda: check_request(request, ServedModel("target", fake_identity()), GatewayLimits()))
    _reads_or_refuses(lambda: check_input(tokenize, GatewayLimits()))


def _reads_or_refuses(read: Any) -> None:
    try:
        read()
    except InvalidRequest as error:
        refused = error
    else:
        return
    assert refused.field
    assert refused.problem


def test_a_batch_of_too_many_frames_is_refused_whole() -> None:
    frames = [pb.DraftRequestFrame(ping=pb.Ping())] * (convert.MAX_FRAMES_PER_MESSAGE + 1)
    with pytest.raises(ProtocolViolation, match="frames"):
        convert.verifier_frames(pb.DraftRequest(frames=frames))


COMMIT = pb.Commit(session=1, begin=4, token_ids=[7, 8], num_accepted=1)
OPEN = pb.Open(session=1, prefix_len=3, num_prompt_tokens=2, token_ids=[1, 2], limits=pb.DraftLimits(max_len=9, max_nodes=4, tree_width=1))


@pytest.mark.parametrize(
    ("frame", "change", "field"),
    [
        (COMMIT, {"num_accepted": 3}, "commit.num_accepted"),
        (COMMIT, {"begin": 2**31 - 1}, "commit.begin"),
        (COMMIT, {"draft_until": 2**32 - 1}, "commit.draft_until"),
        (COMMIT, {"hedge_nodes": 2000}, "commit.hedge_nodes"),
        (COMMIT, {"token_ids": [2**31]}, r"commit.token_ids\[2\]"),
        (OPEN, {"prefix_len": 0}, "open.prefix_len"),
        (OPEN, {"prefix_len": 1}, "open.token_ids"),
        (OPEN, {"num_prompt_tokens": 4}, "open.num_prompt_tokens"),
        (OPEN, {"limits": pb.DraftLimits(max_len=2)}, "open.limits.max_len"),
        (OPEN, {"limits": pb.DraftLimits(max_len=9, max_nodes=2000, tree_width=1)}, "open.limits.max_nodes"),
        (OPEN, {"limits": pb.DraftLimits(max_len=9, max_nodes=20)}, "open.limits.tree_width"),
        (OPEN, {"limits": pb.DraftLimits(max_len=9, max_nodes=1, tree_width=1, stop_below=math.nan)}, "open.limits.stop_below"),
        (OPEN, {"limits": pb.DraftLimits(max_len=9, max_nodes=1, tree_width=1, hedge_nodes=2000)}, "open.limits.hedge_nodes"),
        (OPEN, {"sampling": sampling_pb2.SamplingParams(top_k=2**32 - 1)}, "open.sampling.top_k"),
        (OPEN, {"tenant": "t" * 300}, "open.tenant"),
        (pb.Feedback(session=1), {"positions": [1], "k": 2, "top_token_ids": [5]}, "feedback.top_token_ids"),
        (pb.Feedback(session=1), {"k": 2**31}, "feedback.k"),
    ],
)
def test_what_is_wrong_with_a_verifiers_frame_is_named(frame: Message, change: dict[str, Any], field: str) -> None:
    wrong = type(frame)()
    wrong.CopyFrom(frame)
    if "limits" in change:
        wrong.ClearField("limits")
    wrong.MergeFrom(type(frame)(**change))
    if change == {"prefix_len": 0} or change == {"prefix_len": 1}:
        wrong.prefix_len = change["prefix_len"]  # type: ignore[attr-defined]
    name = type(frame).DESCRIPTOR.name.lower()
    whole: dict[str, Any] = {name: wrong}
    with pytest.raises(ProtocolViolation, match=f"^{field}"):
        verifier_frame_from_proto(pb.DraftRequestFrame(**whole))


@pytest.mark.parametrize(
    ("tail", "field"),
    [
        (pb.Tail(token_ids=[1, 2], parents=[-1]), "tail.parents"),
        (pb.Tail(token_ids=[1], parents=[-2]), r"tail.parents\[0\]"),
        (pb.Tail(token_ids=[1], parents=[1024]), r"tail.parents\[0\]"),
        (pb.Tail(token_ids=[1], parents=[-1], scores=[0.0, 1.0]), "tail.scores"),
        (pb.Tail(token_ids=[1], parents=[-1], scores=[math.nan]), r"tail.scores\[0\]"),
        (pb.Tail(token_ids=[1] * 1025, parents=[-1] * 1025), "tail.token_ids"),
        (pb.Tail(base=2**31), "tail.base"),
        (pb.Tail(end=99), "tail.end"),  # type: ignore[arg-type]
        (pb.Tail(source="s" * 257), "tail.source"),
        (pb.Tail(rows=[sampling_pb2.DraftRow(token_ids=[1], probs=[-0.5])]), r"tail.rows\[0\].probs"),
        (pb.Tail(rows=[sampling_pb2.DraftRow(token_ids=[1])]), r"tail.rows\[0\].probs"),
    ],
)
def test_what_is_wrong_with_a_tail_is_named(tail: pb.Tail, field: str) -> None:
    with pytest.raises(ProtocolViolation, match=f"^{field}"):
        drafter_frame_from_proto(pb.DraftResponseFrame(tail=tail))


def test_token_ids_outside_the_vocabulary_are_named_by_index() -> None:
    with pytest.raises(InvalidRequest, match=r"^prefix\[2\]: must be in \[0, 9\], got 10"):
        convert.token_ids("prefix", [3, 9, 10, 11], 10)
    assert convert.token_ids("prefix", [3, 9], 10).dtype == "int32"
