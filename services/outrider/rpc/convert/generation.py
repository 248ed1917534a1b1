"""The client API between protobuf and values: requests out, answers in (the Python client's direction).

Knows generation.proto and types/generation.py. Must not know channels. Decoders raise InvalidRequest naming a field when a gateway
sends what cannot be; the gateway's own reading of requests lives in outrider.gateway.checks, which needs presence and limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from outrider.errors import InvalidRequest
from outrider.rpc.convert.identity import identity_from_proto
from outrider.rpc.convert.sampling import acceptance_to_proto, sampling_to_proto
from outrider.rpc.convert.tokens import logprob_from_proto, origins_from_proto, statistics_from_proto
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
    LiveCounts,
    Sample,
    ServedModelInfo,
    Started,
    TokenLogprob,
    Usage,
)
from outrider.types.tree import TokenOrigin
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import identity_pb2, sampling_pb2

_FINISH_REASONS: dict[int, FinishReason] = {
    int(pb.FINISH_REASON_STOP_TOKEN): FinishReason.STOP_TOKEN,
    int(pb.FINISH_REASON_STOP_STRING): FinishReason.STOP_STRING,
    int(pb.FINISH_REASON_LENGTH): FinishReason.LENGTH,
    int(pb.FINISH_REASON_CANCELLED): FinishReason.CANCELLED,
}


def request_to_proto(request: GenerationRequest) -> pb.GenerateRequest:
    """Raises InvalidRequest unless exactly one of prompt, token_ids and messages is set, for an unknown acceptance rule, or for a value
    that its field cannot carry."""
    given = [value is not None for value in (request.prompt, request.token_ids, request.messages)]
    if sum(given) != 1:
        raise InvalidRequest("input", "exactly one of prompt, token_ids and messages must be set")
    with _sendable("request"):
        return _request(request)


def text_to_proto(text: str) -> pb.TokenizeRequest:
    """For the ids of a text. Raises InvalidRequest for one that cannot be sent."""
    with _sendable("text"):
        return pb.TokenizeRequest(text=text)


def chat_to_proto(messages: Sequence[ChatMessage]) -> pb.TokenizeRequest:
    """For the ids of a conversation. Raises InvalidRequest for one that cannot be sent."""
    with _sendable("messages"):
        return pb.TokenizeRequest(chat=_chat(messages))


def abort_to_proto(request_id: str) -> pb.AbortRequest:
    """Raises InvalidRequest for an id that cannot be sent."""
    with _sendable("request_id"):
        return pb.AbortRequest(request_id=request_id)


@contextmanager
def _sendable(field: str) -> Iterator[None]:
    """What is raised for a value of another kind than its field's names no field; a lone surrogate, say, or a dict for a ChatMessage."""
    try:
        yield
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidRequest(field, f"holds a value that cannot be sent: {error}") from error


def _request(request: GenerationRequest) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=request.request_id,
        model=request.model,
        prompt=request.prompt,
        token_ids=None if request.token_ids is None else pb.TokenIds(ids=request.token_ids),
        chat=None if request.messages is None else _chat(request.messages),
        sampling=sampling_to_proto(request.sampling, request.seed),
        max_tokens=request.max_tokens,
        stop=(request.stop,) if isinstance(request.stop, str) else request.stop,  # protobuf would take its letters
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos or None,
        n=request.num_samples,
        top_logprobs=request.top_logprobs,
        draft=_wishes(request.draft),
        acceptance=acceptance_to_proto(request.acceptance),
        adapter=request.adapter,
        resume_token_ids=request.resume_token_ids,
        cache_salt=request.cache_salt,
        resume_fingerprints=request.resume_fingerprints,
        takes_over=request.takes_over or None,
    )


def event_from_proto(message: pb.GenerateResponse) -> AnswerEvent:
    """One message of a stream."""
    match message.WhichOneof("event"):
        case "delta":
            return _delta(message.delta)
        case "started":
            return _started(message.started)
        case "finished":
            return _finished(message.finished)
        case "done":
            return Done(_usage(message.done.usage))
    raise InvalidRequest("event", "none is set; the gateway is newer than this client")


def answer_from_proto(message: pb.GenerateOnceResponse) -> Answer:
    """A whole answer."""
    return Answer(_started(message.started), tuple(_sample(sample) for sample in message.samples), _usage(message.usage))


def model_info_from_proto(message: pb.GetModelInfoResponse) -> ServedModelInfo:
    """What a gateway serves."""
    return ServedModelInfo(
        target=identity_from_proto(message.target, "target"),
        drafters=tuple(identity_from_proto(drafter, f"drafters[{index}]") for index, drafter in enumerate(message.drafters)),
        max_prompt_tokens=message.max_prompt_tokens,
        max_completion_tokens=message.max_completion_tokens,
        max_live_requests=message.max_live_requests,
        has_chat_template=message.has_chat_template,
        live=live_counts_from_proto(message.live),
    )


def live_counts_from_proto(message: identity_pb2.LiveCounts) -> LiveCounts:
    """What a service holds."""
    return LiveCounts(message.sessions, message.streams, message.kv_blocks_used, message.kv_blocks_total, message.queued)


def live_counts_to_proto(live: LiveCounts) -> identity_pb2.LiveCounts:
    """What a service holds."""
    return identity_pb2.LiveCounts(
        sessions=live.sessions,
        streams=live.streams,
        kv_blocks_used=live.kv_blocks_used,
        kv_blocks_total=live.kv_blocks_total,
        queued=live.queued,
    )


def _chat(messages: Sequence[ChatMessage]) -> pb.ChatMessages:
    return pb.ChatMessages(messages=[_turn(turn, f"messages[{index}]") for index, turn in enumerate(messages)])


def _turn(turn: ChatMessage, field: str) -> pb.ChatMessage:
    with _sendable(field):
        return pb.ChatMessage(role=turn.role, content=turn.content)


def _wishes(draft: DraftWishes) -> pb.DraftOptions:
    return pb.DraftOptions(
        off=draft.off,
        max_len=draft.max_len,
        tree_width=draft.tree_width,
        stop_below=draft.stop_below,
        pacing=draft.pacing,
        svip_threshold=draft.svip_threshold,
        no_lookup=draft.no_lookup,
    )


def _started(message: pb.Started) -> Started:
    return Started(message.request_id, message.model, message.seed, message.num_prompt_tokens, message.fingerprint, message.exact)


def _delta(message: pb.Delta) -> Delta:
    token_ids = tuple(message.token_ids)
    origins: tuple[TokenOrigin, ...] = origins_from_proto(message.origins, len(token_ids), "delta.origins")
    return Delta(message.index, message.text, token_ids, origins, _logprobs(list(message.logprobs)), message.fingerprint)


def _logprobs(messages: list[sampling_pb2.TokenLogprob]) -> tuple[TokenLogprob, ...]:
    return tuple(logprob_from_proto(message) for message in messages)


def _finished(message: pb.Finished) -> Finished:
    reason = _FINISH_REASONS.get(int(message.finish_reason))
    if reason is None:
        raise InvalidRequest("finish_reason", f"{int(message.finish_reason)} is no reason this client knows")
    return Finished(
        index=message.index,
        reason=reason,
        stop_string=message.stop_string,
        usage=_usage(message.usage),
        statistics=statistics_from_proto(message.statistics),
        time_to_first_token_us=message.time_to_first_token_us,
        total_us=message.total_us,
        num_failovers=message.num_failovers,
        exact=message.exact,
    )


def _sample(message: pb.Sample) -> Sample:
    token_ids = tuple(message.token_ids)
    return Sample(
        text=message.text,
        token_ids=token_ids,
        origins=origins_from_proto(message.origins, len(token_ids), "sample.origins"),
        logprobs=_logprobs(list(message.logprobs)),
        finished=_finished(message.finished),
    )


def _usage(message: pb.Usage) -> Usage:
    return Usage(message.prompt_tokens, message.completion_tokens)
