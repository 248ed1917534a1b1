"""Where a request's samples are to be decoded, as it was placed.

A value. Must not know who placed it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Route:
    """verifiers: endpoints to try first, best first; others come after them. drafters: endpoints that are to draft; none: the verifier's
    own choice, unless drafts_off says that it had better ask none. paired: where nobody placed it, the drafters that each verifier was
    connected to when the fleet was last told, by its endpoint, best first."""

    verifiers: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    drafts_off: bool = False
    paired: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_placed(self) -> bool:
        """Whether anybody said where; else drafters and drafts_off say nothing."""
        return bool(self.verifiers)

    def drafters_at(self, verifier: str) -> tuple[str, ...]:
        """Who is to draft, if this verifier decodes; none: its own choice."""
        return self.drafters if self.is_placed else self.paired.get(verifier, ())


ANYWHERE = Route()
# Where a sample had best go on that leaves the verifier at this address after so many tokens of its answer.
Elsewhere = Callable[[str, int], Awaitable[Route]]


async def anywhere(left: str, num_tokens: int) -> Route:
    """An Elsewhere without an opinion: the gateway chooses by itself."""
    return ANYWHERE
