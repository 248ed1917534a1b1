"""Every field of a GenerateRequest, checked before any work: what is wrong is refused by its name, what is unknown is never ignored.

Knows the ranges that generation.proto promises. Must not know tokenizers, verifiers or streams. Raises InvalidRequest,
UnsupportedParameter or DoesNotFit, all of which name the field.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from outrider.errors import DoesNotFit, InvalidRequest, UnsupportedParameter
from outrider.gateway.limits import GatewayLimits, ServedModel
from outrider.gateway.resolved import CheckedRequest
from outrider.rpc.convert import acceptance_name, bounds, sampling_from_proto, seed_from_proto, token_ids
from outrider.rpc.convert.bounds import bounded, finite, num_entries
from outrider.rpc.convert.sampling import COUPLED
from outrider.types.frames import MAX_SVIP_THRESHOLD
from outrider.v1 import generation_pb2 as pb

MAX_REQUEST_ID_LEN = 128
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_STOP_TOKENS = 64
MAX_SAMPLES = 16
MAX_TOP_LOGPROBS = 20
MAX_DRAFT_LEN = 64
MAX_TREE_WIDTH = 8
MAX_MESSAGES = 1024
MAX_CACHE_SALT_LEN = 128
MAX_RESUME_FINGERPRINTS = 16
ROLES = ("system", "user", "assistant")


def check_request(message: pb.GenerateRequest, served: ServedModel, limits: GatewayLimits) -> CheckedRequest:
    """Everything but the prompt's tokens."""
    check_request_id(message.request_id)
    _check_model(message.model, served)
    check_input(message, limits)
    vocab_size = served.identity.vocab_size
    sampling = sampling_from_proto(message.sampling)
    sampling.check(vocab_size)
    num_samples = _num_samples(message, limits)
    acceptance = acceptance_name(message.acceptance)
    if message.adapter != served.identity.adapter:
        serves = f"{served.identity.adapter!r}" if served.identity.adapter else "none"
        raise UnsupportedParameter("adapter", f"{message.adapter!r} is not served here; this model serves {serves}")
    return CheckedRequest(
        request_id=message.request_id,
        sampling=sampling,
        seed=seed_from_proto(message.sampling),
        max_tokens=_max_tokens(message, served, limits),
        stops=_stops(message.stop),
        stop_token_ids=_stop_token_ids(message, served),
        num_samples=num_samples,
        top_logprobs=bounded("top_logprobs", message.top_logprobs, 0, MAX_TOP_LOGPROBS) if message.HasField("top_logprobs") else None,
        draft=_draft(message),
        acceptance=acceptance,
        adapter=message.adapter,
        resume_ids=_resume_ids(message, served, limits, num_samples, acceptance),
        cache_salt=bounds.name("cache_salt", message.cache_salt, MAX_CACHE_SALT_LEN),
        resume_fingerprints=_resume_fingerprints(message),
        takes_over=message.takes_over or bool(message.resume_token_ids),
    )


def check_request_id(request_id: str) -> None:
    """At most MAX_REQUEST_ID_LEN printable characters."""
    if len(request_id) > MAX_REQUEST_ID_LEN:
        raise InvalidRequest("request_id", f"has {len(request_id)} characters, at most {MAX_REQUEST_ID_LEN}")
    if not request_id.isprintable():
        raise InvalidRequest("request_id", "holds characters that cannot be printed")


def check_input(message: pb.GenerateRequest | pb.TokenizeRequest, limits: GatewayLimits) -> None:
    """Exactly one input, not larger than max_prompt_bytes; roles are known, and so is every field of the message."""
    kind = message.WhichOneof("input")
    if kind is None:
        wanted = "prompt, token_ids, chat" if isinstance(message, pb.GenerateRequest) else "text, chat"
        raise InvalidRequest("input", f"one of {wanted} must be set")
    if kind == "chat":
        num_entries("chat.messages", len(message.chat.messages), 1, MAX_MESSAGES)
    if kind != "token_ids":
        _check_size(kind, message, limits)
    _check_all_known(message)
    if kind == "chat":
        _check_roles(message.chat)


def check_known(part: Message, name: str) -> None:
    """A newer client's field would change the answer if we knew it: refuse rather than ignore. Fields of inner messages are not seen."""
    unknown = UnknownFieldSet(part)
    if len(unknown):
        raise UnsupportedParameter(name, f"has field number {unknown[0].field_number}, which this gateway does not know")


def _check_all_known(message: pb.GenerateRequest | pb.TokenizeRequest) -> None:
    """Of the message and of every message in it. Absent parts read as empty ones; entries of a map carry nothing but key and value."""
    parts: list[tuple[str, Message]] = [("request", message), ("chat", message.chat)]
    parts += [(f"chat.messages[{index}]", turn) for index, turn in enumerate(message.chat.messages)]
    if isinstance(message, pb.GenerateRequest):
        parts += [("sampling", message.sampling), ("draft", message.draft), ("token_ids", message.token_ids)]
    for name, part in parts:
        check_known(part, name)


def _check_size(kind: str, message: pb.GenerateRequest | pb.TokenizeRequest, limits: GatewayLimits) -> None:
    size = sum(len(turn.content.encode()) for turn in message.chat.messages) if kind == "chat" else len(getattr(message, kind).encode())
    if size > limits.max_prompt_bytes:
        raise DoesNotFit(kind, f"has {size} bytes, at most {limits.max_prompt_bytes}")


def _check_roles(chat: pb.ChatMessages) -> None:
    for index, turn in enumerate(chat.messages):
        if turn.role not in ROLES:
            raise InvalidRequest(f"chat.messages[{index}].role", f"{turn.role!r} is none of {', '.join(ROLES)}")


def _check_model(model: str, served: ServedModel) -> None:
    if model not in ("", served.name, served.identity.model):
        raise InvalidRequest("model", f"{model!r} is not served here; this gateway serves {served.name!r}")


def _num_samples(message: pb.GenerateRequest, limits: GatewayLimits) -> int:
    num_samples = bounded("n", message.n, 1, MAX_SAMPLES) if message.HasField("n") else 1
    if num_samples > limits.max_live_samples:
        raise DoesNotFit("n", f"is {num_samples}, at most {limits.max_live_samples} here")
    return num_samples


def _max_tokens(message: pb.GenerateRequest, served: ServedModel, limits: GatewayLimits) -> int | None:
    if not message.HasField("max_tokens"):
        return None
    bounded("max_tokens", message.max_tokens, 1)
    most = limits.completion_tokens(served.max_context)
    if message.max_tokens > most:
        raise DoesNotFit("max_tokens", f"is {message.max_tokens}, at most {most} here")
    return message.max_tokens


def _stops(stops: Sequence[str]) -> tuple[str, ...]:
    num_entries("stop", len(stops), 0, MAX_STOP_STRINGS)
    for index, stop in enumerate(stops):
        if not 1 <= len(stop.encode()) <= MAX_STOP_BYTES:
            raise InvalidRequest(f"stop[{index}]", f"must have 1 to {MAX_STOP_BYTES} bytes, has {len(stop.encode())}")
    return tuple(stops)


def _stop_token_ids(message: pb.GenerateRequest, served: ServedModel) -> frozenset[int]:
    num_entries("stop_token_ids", len(message.stop_token_ids), 0, MAX_STOP_TOKENS)
    ids = frozenset(token_ids("stop_token_ids", message.stop_token_ids, served.identity.vocab_size).tolist())
    return ids if message.ignore_eos else ids | frozenset(served.identity.eos_token_ids)


def _draft(message: pb.GenerateRequest) -> pb.DraftOptions:
    """The client's wishes, and what the mode implies for them; whether a pacing policy exists is the verifier's to say."""
    options = pb.DraftOptions()
    options.CopyFrom(message.draft)
    if options.HasField("max_len"):
        bounded("draft.max_len", options.max_len, 1, MAX_DRAFT_LEN)
    if options.HasField("tree_width"):
        bounded("draft.tree_width", options.tree_width, 1, MAX_TREE_WIDTH)
    if options.HasField("stop_below") and finite("draft.stop_below", options.stop_below, 0.0, 1.0) == 1.0:
        raise InvalidRequest("draft.stop_below", "must be below 1")
    if options.HasField("svip_threshold"):
        finite("draft.svip_threshold", options.svip_threshold, 0.0, MAX_SVIP_THRESHOLD)
    if message.mode == pb.GENERATION_MODE_TARGET_ONLY:
        options.off = True
    elif message.mode not in (pb.GENERATION_MODE_UNSPECIFIED, pb.GENERATION_MODE_LOSSLESS):
        known = message.mode in pb.GenerationMode.values()
        mode = pb.GenerationMode.Name(message.mode) if known else str(int(message.mode))
        raise UnsupportedParameter("mode", f"{mode} is not served here; lossless and target-only are")
    return options


def _resume_ids(
    message: pb.GenerateRequest, served: ServedModel, limits: GatewayLimits, num_samples: int, acceptance: str
) -> tuple[int, ...]:
    if not message.resume_token_ids:
        return ()
    most = limits.completion_tokens(served.max_context)
    if len(message.resume_token_ids) > most:
        raise DoesNotFit("resume_token_ids", f"has {len(message.resume_token_ids)} ids, at most {most} here")
    if num_samples != 1:
        # Each sample would need ids, an end and numerics of its own; and without, nothing is lost but time: a seed fixes all of them.
        problem = f"resumes one sample, but n is {num_samples}; ask for all of them again with the same seed, which gives the same tokens"
        raise InvalidRequest("resume_token_ids", problem)
    if acceptance != COUPLED:
        raise UnsupportedParameter("resume_token_ids", f"needs coupled acceptance: {acceptance} does not promise the same tokens")
    return tuple(token_ids("resume_token_ids", message.resume_token_ids, served.identity.vocab_size).tolist())


def _resume_fingerprints(message: pb.GenerateRequest) -> frozenset[str]:
    """Whatever they are: a fingerprint that nobody has here is merely not the one that goes on."""
    num_entries("resume_fingerprints", len(message.resume_fingerprints), 0, MAX_RESUME_FINGERPRINTS)
    for index, fingerprint in enumerate(message.resume_fingerprints):
        if not fingerprint:
            raise InvalidRequest(f"resume_fingerprints[{index}]", "is empty")
        bounds.name(f"resume_fingerprints[{index}]", fingerprint)
    return frozenset(message.resume_fingerprints)
