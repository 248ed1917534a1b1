"""Where a request goes that shares its steps: what further sessions add to a step is the verifier's own, as its rows are.

Run: pytest tests/unit/test_placement_company.py
"""

from __future__ import annotations

from fakes_fleet import KNEE, table_of, verifier, wish
from outrider.coordinator.placement import place


def test_what_further_sessions_add_to_a_step_counts_where_there_are_some() -> None:
    for num_sessions, chosen in ((0, "dear:1"), (9, "quick:1")):
        dear = verifier("dear", sequence_us=1_000.0, num_sessions=num_sessions)
        quick = verifier("quick", cost=tuple((rows, 1.1 * us) for rows, us in KNEE), num_sessions=num_sessions)
        assert place(table_of([dear, quick]), wish()).verifier == chosen, num_sessions
