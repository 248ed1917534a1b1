"""Where a request's samples are to be decoded, as it was placed.

A value. Must not know who placed it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Route:
    """verifiers: endpoints to try first, best first; others come after them. drafters: endpoints that are to draft; none: the verifier's
    own choice, unless drafts_off says that the request is better decoded plainly."""

    verifiers: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    drafts_off: bool = False


ANYWHERE = Route()
