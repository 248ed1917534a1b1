"""Sharing the rows of one step among the sessions that a policy wants in it.

Knows row counts. Must not know why a session was chosen. Sessions that wait longest come first; every decoding session gets its one row
before any gets nodes, then nodes are shared evenly, and prefill takes what is left (so that a long prompt never stalls the others).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.session.pacing.contract import SessionPlan, SessionView


@dataclass(frozen=True, slots=True)
class Wanted:
    """A session a policy wants in the step, with at most this many nodes."""

    session: SessionView
    max_nodes: int


def share_rows(wanted: Sequence[Wanted], max_rows: int) -> tuple[SessionPlan, ...]:
    """Plans that together hold at most max_rows rows; sessions without room wait for the next step."""
    waiting = sorted(wanted, key=lambda entry: (entry.session.waiting_since_us, entry.session.session))
    decoding = [entry for entry in waiting if entry.session.num_uncached == 1][:max_rows]
    left = max_rows - len(decoding)
    plans: list[SessionPlan] = []
    for at, entry in enumerate(decoding):
        fair = left // (len(decoding) - at)
        num_nodes = min(fair, entry.max_nodes, entry.session.num_nodes)
        left -= num_nodes
        plans.append(SessionPlan(entry.session.session, 1, num_nodes))
    for entry in waiting:
        if entry.session.num_uncached == 1 or left == 0:
            continue
        num_fed = min(left, entry.session.num_uncached)
        left -= num_fed
        is_last = num_fed == entry.session.num_uncached
        num_nodes = min(left, entry.max_nodes, entry.session.num_nodes) if is_last else 0
        left -= num_nodes
        plans.append(SessionPlan(entry.session.session, num_fed, num_nodes))
    return tuple(plans)
