"""Messages of an answer's stream that travel as one, to a client that said with its call that it takes such.

A message costs gateway and client some 0.3 ms each of their cores, whatever is in it. The wish is metadata of the call and no field of the
request: a gateway that does not know it sends the messages singly instead of refusing. Must not know streams, nor when to wait for more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outrider.rpc.context import Context
from outrider.v1 import generation_pb2 as pb

TAKES_BUNDLES = (("outrider-takes-bundles", "1"),)  # metadata of a call of Generate


def takes_bundles(context: Context) -> bool:
    """Whether the caller can read `GenerateResponse.following`."""
    return TAKES_BUNDLES[0] in (context.invocation_metadata() or ())


def bundled(messages: Sequence[pb.GenerateResponse]) -> pb.GenerateResponse:
    """At least one, in order, as one: the first, which is changed."""
    first = messages[0]
    if len(messages) > 1:
        first.following.extend(messages[1:])
    return first


def unbundled(message: pb.GenerateResponse) -> Iterator[pb.GenerateResponse]:
    """In order. What follows a following message is not looked at: nobody sends that."""
    yield message
    yield from message.following
