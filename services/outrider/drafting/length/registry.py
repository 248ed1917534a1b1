"""The stop rules there are. A new rule is one file and one line here. Must not know who applies them."""

from __future__ import annotations

from outrider.drafting.length.confidence import ConfidenceStop
from outrider.drafting.length.contract import StopRule
from outrider.drafting.length.svip import SvipStop
from outrider.types.frames import DraftLimits

STOP_RULES: tuple[StopRule, ...] = (ConfidenceStop(), SvipStop())


def rules_for(limits: DraftLimits) -> tuple[StopRule, ...]:
    """The rules a session asked for by its limits, in order of application."""
    return tuple(rule for rule in STOP_RULES if rule.applies(limits))
