"""Bytes that are none of a method's requests: the caller's mistake, and told as such whichever way the call came.

grpc reads requests outside of handlers and interceptors, and takes what its reader raises for a bug of the server's: UNKNOWN, with a
traceback in the log for every such call. Must not know services.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError

from outrider.errors import InvalidRequest
from outrider.rpc.handled_call import Status
from outrider.rpc.status import error_metadata, status_details, status_of

Parse = Callable[[bytes], Any]
# In place of a call's only request.
UNREADABLE: Final = object()


def unreadable() -> InvalidRequest:
    """What such a call ends with."""
    return InvalidRequest("request", "is no message that this method takes")


def unreadable_status() -> Status:
    """The same, for calls that no interceptor sees."""
    error = unreadable()
    return Status(status_of(error), status_details(error), error_metadata(error))


def guarded_parse(parse: Parse, *, takes_stream: bool) -> Parse:
    """A stream's messages are read where its handler asks for them, which hears of it at once; a single request is UNREADABLE instead."""

    def guarded(payload: bytes) -> Any:
        try:
            return parse(payload)
        except DecodeError as error:
            if takes_stream:
                raise unreadable() from error
            return UNREADABLE

    return guarded
