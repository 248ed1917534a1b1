"""Every acceptance rule by the name requests use; a new rule is one file and one line here."""

from __future__ import annotations

from outrider.engine.acceptance.contract import AcceptanceRule
from outrider.engine.acceptance.coupled import CoupledAcceptance
from outrider.engine.acceptance.rejection import RejectionAcceptance
from outrider.errors import InvalidRequest

_RULES: tuple[AcceptanceRule, ...] = (
    CoupledAcceptance(),
    RejectionAcceptance(),
)

ACCEPTANCE_RULES: dict[str, AcceptanceRule] = {rule.name: rule for rule in _RULES}


def acceptance_rule(name: str) -> AcceptanceRule:
    """The registered rule; raises InvalidRequest naming the known ones."""
    rule = ACCEPTANCE_RULES.get(name)
    if rule is None:
        raise InvalidRequest("acceptance", f"{name!r} is no acceptance rule; known: {', '.join(ACCEPTANCE_RULES)}")
    return rule
