"""Sharing the rows of one step among the sessions that a policy wants in it.

Knows row counts. Must not know why a session was chosen. Sessions that wait longest come first; every decoding session gets its one row
before any gets nodes, then nodes are shared evenly, and prompts take what is left, within what the step's bound leaves them. Where there is
such a bound, nodes leave them the least that it grants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from outrider.session.pacing.contract import PrefillRoom, SessionPlan, SessionView
from outrider.session.pacing.prefill_bound import MIN_PREFILL_ROWS


class Wanted(NamedTuple):
    """A session a policy wants in the step, with at most this many nodes. from_lookup: as in SessionPlan; guesses from the
    text itself are all at hand, whatever drafters have made."""

    session: SessionView
    max_nodes: int
    from_lookup: bool = False


def share_rows(wanted: Sequence[Wanted], max_rows: int, prefill: PrefillRoom | None = None) -> tuple[SessionPlan, ...]:
    """Plans that together hold at most max_rows rows; sessions without room wait for the next step. prefill: as in StepView."""
    if len(wanted) == 1 and wanted[0].session.num_uncached == 1 and max_rows > 0:  # nobody to share with
        return tuple(_decoding_parts(wanted, max_rows - 1))
    waiting = sorted(wanted, key=lambda entry: (entry.session.waiting_since_us, entry.session.session))
    decoding = [entry for entry in waiting if entry.session.num_uncached == 1][:max_rows]
    reading = [entry for entry in waiting if entry.session.num_uncached > 1]
    left = max_rows - len(decoding)
    kept = 0 if prefill is None else min(left, MIN_PREFILL_ROWS, sum(entry.session.num_uncached for entry in reading))
    plans = _decoding_parts(decoding, left - kept)
    num_own = sum(part.num_rows for part in plans)
    left = max_rows - num_own
    return (*plans, *_reading_parts(reading, left if prefill is None else prefill.num_rows(num_own, left)))


def _decoding_parts(decoding: Sequence[Wanted], left: int) -> list[SessionPlan]:
    """left: rows for nodes, beside a row each."""
    parts: list[SessionPlan] = []
    for at, entry in enumerate(decoding):
        fair = left // (len(decoding) - at)
        num_nodes = min(fair, entry.max_nodes if entry.from_lookup else min(entry.max_nodes, entry.session.num_nodes))
        left -= num_nodes
        parts.append(SessionPlan(entry.session.session, 1, num_nodes, entry.from_lookup))
    return parts


def _reading_parts(reading: Sequence[Wanted], left: int) -> list[SessionPlan]:
    """left: rows for prompts, and for the nodes of those that end."""
    parts: list[SessionPlan] = []
    for entry in reading:
        if left == 0:
            break
        num_fed = min(left, entry.session.num_uncached)
        left -= num_fed
        is_last = num_fed == entry.session.num_uncached
        num_nodes = min(left, entry.max_nodes, entry.session.num_nodes) if is_last else 0
        left -= num_nodes
        parts.append(SessionPlan(entry.session.session, num_fed, num_nodes))
    return parts
