"""What a servicer may ask of the call it serves: the time it has left, and the metadata it must hand on to the next service.

Knows grpc.aio contexts. Must not know services. `Context` is the type to annotate handlers with (generic in the stubs only).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import grpc

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
else:
    Context = grpc.aio.ServicerContext

PROPAGATED_KEYS = ("traceparent", "tracestate")


def remaining_s(context: Context) -> float | None:
    """Seconds until the call's deadline, never negative; None when it has none. Pass it as `timeout` of calls made on its behalf."""
    remaining = cast("float | None", context.time_remaining())
    return None if remaining is None else max(0.0, remaining)


def propagated_metadata(context: Context) -> tuple[tuple[str, str], ...]:
    """The trace context of the call, to be sent with every call made on its behalf."""
    metadata = cast(Iterable[tuple[str, str]], context.invocation_metadata() or ())
    return tuple((key, value) for key, value in metadata if key in PROPAGATED_KEYS)
