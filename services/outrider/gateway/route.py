"""Where a request's samples are to be decoded, as it was placed.

A value. Must not know who placed it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Route:
    """verifiers: endpoints to try first, best first; others come after them. drafters: endpoints that are to draft; none: the verifier's
    own choice, unless drafts_off says that the request is better decoded plainly."""

    verifiers: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    drafts_off: bool = False


ANYWHERE = Route()
# Where a sample had best go on that leaves the verifier at this address after so many tokens of its answer.
Elsewhere = Callable[[str, int], Awaitable[Route]]


async def anywhere(left: str, num_tokens: int) -> Route:
    """An Elsewhere without an opinion: the gateway chooses by itself."""
    return ANYWHERE
