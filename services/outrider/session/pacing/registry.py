"""The pacing policies by name. A new policy is one file, one line here, one test file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from outrider.errors import InvalidRequest
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import Pacing
from outrider.session.pacing.lookup import LookupPacing
from outrider.session.pacing.pearl import PearlPacing
from outrider.session.pacing.plain import PlainPacing
from outrider.session.pacing.serial import SerialPacing

PacingFactory = Callable[[int | None], Pacing]

# name -> factory of the draft length (None: found from measured times; policies without one ignore it)
PACINGS: Mapping[str, PacingFactory] = MappingProxyType(
    {
        "plain": lambda draft_len: PlainPacing(),
        "lookup": LookupPacing,
        "serial": SerialPacing,
        "pearl": PearlPacing,
        "adaptive": AdaptivePacing,
    }
)


def make_pacing(name: str, draft_len: int | None = None) -> Pacing:
    """A fresh policy; raises InvalidRequest naming the known ones."""
    factory = PACINGS.get(name)
    if factory is None:
        raise InvalidRequest("draft.pacing", f"{name!r} is unknown; known: {', '.join(sorted(PACINGS))}")
    return factory(draft_len)
