"""Errors of ours as gRPC statuses and back: one table, used by every server and every client.

Knows grpc status codes and the error classes. Must not know who calls. Besides the code and the sentence, a status carries the class
and the field in trailing metadata, so that a gateway can pass a verifier's refusal on unchanged, and an overload the pause after which
asking again may help, under the key that gRPC clients with a retry policy follow by themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import cast

import grpc

from outrider.errors import (
    AlreadyExists,
    Cancelled,
    DoesNotFit,
    IncompatiblePair,
    InvalidRequest,
    ModelRefused,
    OutriderError,
    Overloaded,
    ProtocolViolation,
    Superseded,
    Unavailable,
    UnknownSession,
    UnsupportedParameter,
)

ERROR_CLASS_KEY = "outrider-error"
ERROR_FIELD_KEY = "outrider-field"
RETRY_AFTER_KEY = "grpc-retry-pushback-ms"  # whole milliseconds
MAX_RETRY_AFTER_S = 60.0  # nobody can tell further ahead
MAX_FIELD_LEN = 128
MAX_DIGITS = 12
# Details travel as a percent-encoded header, up to 12 bytes a character, and a peer may refuse headers beyond 8 KiB with a status of
# its own: a sentence that quotes what the caller sent must not cost the caller its status.
MAX_DETAILS_LEN = 512
# What grpc, and a trunk's calling end, say of a message that will never go through, with the code of an overload, after which a caller
# would come again with the same message for ever.
_TOO_LARGE = re.compile(r"message larger than max|bytes is more than the \d+ that can be sent")


class DeadlinePassed(Cancelled):
    """The request's own deadline passed before its answer was complete."""


class RemoteFailure(OutriderError):
    """A peer failed in a way that is nobody's request's fault."""


STATUS_CODES: dict[type[OutriderError], grpc.StatusCode] = {
    UnsupportedParameter: grpc.StatusCode.INVALID_ARGUMENT,
    DoesNotFit: grpc.StatusCode.INVALID_ARGUMENT,
    InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    ProtocolViolation: grpc.StatusCode.INVALID_ARGUMENT,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnknownSession: grpc.StatusCode.NOT_FOUND,
    AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    IncompatiblePair: grpc.StatusCode.FAILED_PRECONDITION,
    Superseded: grpc.StatusCode.FAILED_PRECONDITION,
    ModelRefused: grpc.StatusCode.FAILED_PRECONDITION,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    DeadlinePassed: grpc.StatusCode.DEADLINE_EXCEEDED,
    Cancelled: grpc.StatusCode.CANCELLED,
    RemoteFailure: grpc.StatusCode.INTERNAL,
    OutriderError: grpc.StatusCode.INTERNAL,
}
_CLASSES: dict[str, type[OutriderError]] = {error_class.__name__: error_class for error_class in STATUS_CODES}
_DEFAULT_CLASSES: dict[grpc.StatusCode, type[OutriderError]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.NOT_FOUND: UnknownSession,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: IncompatiblePair,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlinePassed,
    grpc.StatusCode.CANCELLED: Cancelled,
}


def status_of(error: OutriderError) -> grpc.StatusCode:
    """The code of the error's class, or of the nearest base that has one."""
    return next(STATUS_CODES[base] for base in type(error).__mro__ if base in STATUS_CODES)


def status_details(error: OutriderError) -> str:
    """The error's sentence, cut at MAX_DETAILS_LEN characters."""
    text = str(error)
    return text if len(text) <= MAX_DETAILS_LEN else f"{text[: MAX_DETAILS_LEN - 1]}…"


def error_metadata(error: OutriderError) -> tuple[tuple[str, str], ...]:
    """Trailing metadata: the error's class, the field it names if it does, and when to ask again if that is known."""
    known = next(base for base in type(error).__mro__ if base in STATUS_CODES)
    metadata = [(ERROR_CLASS_KEY, known.__name__)]
    if isinstance(error, InvalidRequest):
        metadata.append((ERROR_FIELD_KEY, _printable(error.field)))
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        metadata.append((RETRY_AFTER_KEY, str(max(1, math.ceil(1000 * min(error.retry_after_s, MAX_RETRY_AFTER_S))))))
    return tuple(metadata)


def error_from_rpc(failure: grpc.aio.AioRpcError) -> OutriderError:
    """The error a peer raised, as near as its status tells; statuses that fit no class become RemoteFailure."""
    metadata = dict(cast(Iterable[tuple[str, str]], failure.trailing_metadata() or ()))
    sentence = failure.details() or f"the peer ended the call with {failure.code().name}"
    named = _CLASSES.get(str(metadata.get(ERROR_CLASS_KEY, "")))
    if failure.code() is grpc.StatusCode.INVALID_ARGUMENT:
        if named is ProtocolViolation:
            return ProtocolViolation(sentence)
        return _invalid(named, str(metadata.get(ERROR_FIELD_KEY, "")), sentence)
    if failure.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if named is None and _TOO_LARGE.search(sentence):
            return DoesNotFit("message", sentence)
        return Overloaded(sentence, _retry_after_s(str(metadata.get(RETRY_AFTER_KEY, ""))))
    if named is not None and STATUS_CODES[named] is failure.code():
        return named(sentence)
    return _DEFAULT_CLASSES.get(failure.code(), RemoteFailure)(sentence)


def came_from_service(failure: grpc.aio.AioRpcError) -> bool:
    """Whether a service of ours ended the call; otherwise grpc did, because nobody was there or a deadline passed."""
    metadata = dict(cast(Iterable[tuple[str, str]], failure.trailing_metadata() or ()))
    return ERROR_CLASS_KEY in metadata


def _invalid(named: type[OutriderError] | None, field: str, sentence: str) -> InvalidRequest:
    error_class = named if named is not None and issubclass(named, InvalidRequest) else InvalidRequest
    prefix = f"{field}: "
    if field and sentence.startswith(prefix):
        return error_class(field, sentence[len(prefix) :])
    return error_class(field or "request", sentence)


def _retry_after_s(text: str) -> float | None:
    """None for what is no pause: a peer's metadata are not ours to trust."""
    return min(int(text) / 1000, MAX_RETRY_AFTER_S) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


def _printable(text: str) -> str:
    """Metadata values are ASCII without control characters."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in text[:MAX_FIELD_LEN])
