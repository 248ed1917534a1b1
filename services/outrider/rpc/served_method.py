"""A method as a server serves it, for calls that do not come to it from grpc. Must not know services."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from outrider.rpc.handled_call import Behavior


class ServedMethod(NamedTuple):
    """behavior: with errors as statuses. parse: of a request's bytes; raises google.protobuf.message.DecodeError. serialize: a response.
    is_stream: of both ways."""

    behavior: Behavior
    parse: Callable[[bytes], Any]
    serialize: Callable[[Any], bytes]
    is_stream: bool
