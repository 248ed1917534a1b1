"""Errors cross the wire and come back as what they were.

pytest tests/unit/test_rpc_status.py
"""

from __future__ import annotations

import grpc
import pytest

from outrider import errors
from outrider.rpc.status import (
    MAX_RETRY_AFTER_S,
    RETRY_AFTER_KEY,
    STATUS_CODES,
    DeadlinePassed,
    RemoteFailure,
    error_from_rpc,
    error_metadata,
    status_of,
)

INSTANCES: list[errors.OutriderError] = [
    errors.InvalidRequest("n", "must be in [1, 16], got 0"),
    errors.UnsupportedParameter("mode", "is not served"),
    errors.DoesNotFit("prompt", "is too long"),
    errors.Overloaded("full"),
    errors.UnknownSession("who?"),
    errors.AlreadyExists("live"),
    errors.IncompatiblePair("left has a, right has b"),
    errors.ModelRefused("no"),
    errors.ProtocolViolation("tail.base: no"),
    errors.Unavailable("draining"),
    errors.Cancelled("gone"),
    DeadlinePassed("too late"),
    RemoteFailure("broken"),
]


def as_failure(error: errors.OutriderError, metadata: tuple[tuple[str, str], ...] | None = None) -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata(*(error_metadata(error) if metadata is None else metadata))
    return grpc.aio.AioRpcError(status_of(error), grpc.aio.Metadata(), trailing, str(error), None)


@pytest.mark.parametrize("error", INSTANCES, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_as_itself(error: errors.OutriderError) -> None:
    returned = error_from_rpc(as_failure(error))
    assert type(returned) is type(error)
    assert str(returned) == str(error)
    assert getattr(returned, "field", None) == getattr(error, "field", None)


@pytest.mark.parametrize(("pause_s", "heard_s"), [(None, None), (0.25, 0.25), (0.0, 0.001), (1e9, MAX_RETRY_AFTER_S)])
def test_an_overload_says_when_to_come_again(pause_s: float | None, heard_s: float | None) -> None:
    returned = error_from_rpc(as_failure(errors.Overloaded("full", pause_s)))
    assert isinstance(returned, errors.Overloaded)
    assert returned.retry_after_s == heard_s


@pytest.mark.parametrize("text", ["", "-1", "soon", "1.5", "٣", "9" * 5000])
def test_a_pause_that_is_none_is_no_pause(text: str) -> None:
    returned = error_from_rpc(as_failure(errors.Overloaded("full"), ((RETRY_AFTER_KEY, text),)))
    assert isinstance(returned, errors.Overloaded)
    assert returned.retry_after_s is None


def test_every_error_class_of_ours_has_a_status_in_the_table() -> None:
    classes = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.OutriderError)}
    assert classes <= set(STATUS_CODES)


def test_a_class_outside_the_table_takes_its_bases_status() -> None:
    class Special(errors.Overloaded):
        """Not in the table."""

    assert status_of(Special("x")) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error_metadata(Special("x")) == (("outrider-error", "Overloaded"),)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlinePassed),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Overloaded),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequest),
        (grpc.StatusCode.UNKNOWN, RemoteFailure),
        (grpc.StatusCode.UNIMPLEMENTED, RemoteFailure),
    ],
)
def test_a_status_without_our_metadata_is_read_by_its_code(code: grpc.StatusCode, kind: type[errors.OutriderError]) -> None:
    failure = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "why", None)
    assert type(error_from_rpc(failure)) is kind


@pytest.mark.parametrize(
    ("sentence", "kind"),
    [
        ("CLIENT: Sent message larger than max (20000005 vs. 16777216)", errors.DoesNotFit),
        ("Received message larger than max (20000005 vs. 16777216)", errors.DoesNotFit),
        ("a message of 20000005 bytes is more than the 16776192 that can be sent", errors.DoesNotFit),
        ("Concurrent RPC limit exceeded!", errors.Overloaded),
    ],
)
def test_a_message_that_no_retry_sends_is_no_overload(sentence: str, kind: type[errors.OutriderError]) -> None:
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert type(error_from_rpc(grpc.aio.AioRpcError(exhausted, grpc.aio.Metadata(), grpc.aio.Metadata(), sentence, None))) is kind
    assert type(error_from_rpc(as_failure(errors.Overloaded(sentence)))) is errors.Overloaded, "a service's own word counts"


def test_a_lying_class_name_does_not_overrule_the_code() -> None:
    failure = as_failure(errors.Overloaded("full"), (("outrider-error", "Cancelled"),))
    assert type(error_from_rpc(failure)) is errors.Overloaded


def test_a_field_with_unprintable_characters_still_travels() -> None:
    metadata = dict(error_metadata(errors.InvalidRequest("stop[\n\u2581]", "no")))
    assert metadata["outrider-field"] == "stop[??]"
