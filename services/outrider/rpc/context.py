"""What a servicer may ask of the call it serves: the time it has left, and the metadata it must hand on to the next service.

Knows grpc.aio contexts. Must not know services. `Context` is the type to annotate handlers with (generic in the stubs only).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import grpc

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
else:
    Context = grpc.aio.ServicerContext

MAX_TIMEOUT_S = 1e9  # thirty years; grpc takes some longer times, and an infinite one, for times that have passed
TRACE_PARENT_KEY, TRACE_STATE_KEY = "traceparent", "tracestate"
# As W3C Trace Context has them; a later version may have more behind its flags. What a caller sends here goes into calls of ours, where
# grpc refuses bytes that no header may have, and peers refuse headers beyond 8 KiB.
_TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{0,64})?", re.ASCII)
_TRACE_STATE = re.compile(r"[ -~]{1,512}", re.ASCII)


def remaining_s(context: Context) -> float | None:
    """Seconds until the call's deadline, never negative; None when it has none, or one beyond MAX_TIMEOUT_S: some clients say so that they
    want none. Pass it as `timeout` of calls made on its behalf."""
    remaining = cast("float | None", context.time_remaining())
    return None if remaining is None or remaining > MAX_TIMEOUT_S else max(0.0, remaining)


def num_heard_read(context: Context) -> int:
    """How much of the call's messages its caller has said that it read, on a trunk; on a stream of its own it says so to grpc alone: 0."""
    return cast(int, getattr(context, "num_read", 0))


def propagated_metadata(context: Context) -> tuple[tuple[str, str], ...]:
    """The trace context of the call, to be sent with every call made on its behalf; nothing of one that is none, which is no reason to
    refuse the call."""
    metadata = tuple(cast(Iterable[tuple[str, str]], context.invocation_metadata() or ()))
    parents = [value for key, value in metadata if key == TRACE_PARENT_KEY]
    if len(parents) != 1 or not _TRACE_PARENT.fullmatch(parents[0]):
        return ()
    state = ",".join(value for key, value in metadata if key == TRACE_STATE_KEY)
    return ((TRACE_PARENT_KEY, parents[0]), *(((TRACE_STATE_KEY, state),) if _TRACE_STATE.fullmatch(state) else ()))
