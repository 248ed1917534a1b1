"""Verifiers and drafters that have read a prefix before: when they are chosen, and when it does not matter. Properties are in
test_placement.py.

pytest tests/unit/test_placement_warmth.py
"""

from __future__ import annotations

from dataclasses import replace

from fakes_fleet import STEP_US, drafter, table_of, verifier, wish
from outrider.coordinator.drafter_choice import MAX_UNMEASURED
from outrider.coordinator.drafter_table import READ_SHARE
from outrider.coordinator.placement import place
from outrider.types.fleet import PairMeasurement

NEAR = PairMeasurement(200, 0.8, True)


def test_a_warm_prefix_draws_a_request_but_not_at_any_price() -> None:
    fleet = [verifier("v0", num_sessions=2), verifier("v1")]
    long = wish(prefix_len=4_000)
    cold, warm_row = place(table_of(fleet), long), 0
    assert cold.verifier == "v1:1"
    warm = place(table_of(fleet), long, {warm_row: 0.9})
    assert warm.verifier == "v0:1"
    assert warm.token_us < cold.token_us
    assert place(table_of([replace(fleet[0], queue_us=1e7), fleet[1]]), long, {warm_row: 0.9}).verifier == "v1:1"


LONG = 4_000  # tokens, which a drafter of these reads in 0.8 s: eighty steps of the target
READER = {"read_us": 200.0}


def test_a_drafter_that_has_read_the_prefix_is_chosen_where_the_verifier_has_read_it_too() -> None:
    pairs = {"d0:1": NEAR, "d1:1": NEAR}
    table = table_of([verifier("v0", pairs=pairs), *(drafter(f"d{at}", num_sessions=at, **READER) for at in range(2))])
    follow_up = wish(prefix_len=LONG)
    assert place(table, follow_up, {0: 0.95}).drafters[0] == "d0:1", "the one with fewer sessions"
    placed = place(table, follow_up, {0: 0.95}, {1: 0.95})
    assert placed.drafters[0] == "d1:1"
    assert placed.token_us < place(table, follow_up, {0: 0.95}).token_us


def test_where_the_verifier_reads_longer_than_any_drafter_it_does_not_matter_which_is_warm() -> None:
    slow_to_read = ((1, STEP_US), (256, 256 * 400.0))
    table = table_of([verifier("v0", cost=slow_to_read), *(drafter(f"d{at}", num_sessions=3 * at, **READER) for at in range(2))])
    cold, warm = place(table, wish(prefix_len=LONG)), place(table, wish(prefix_len=LONG), {}, {1: 1.0})
    assert cold == warm
    assert cold.drafters[0] == "d0:1"


def test_a_warm_drafter_is_found_behind_any_number_of_quicker_ones_and_left_when_it_is_too_slow() -> None:
    quicker = [drafter(f"d{at}", draft_us=900.0, **READER) for at in range(2 * MAX_UNMEASURED)]
    for draft_us, is_taken in ((1_200.0, True), (9_500.0, False)):
        table = table_of([verifier("v0"), *quicker, drafter("warm", draft_us=draft_us, **READER)])
        placed = place(table, wish(prefix_len=LONG), {0: 1.0}, {len(quicker): 1.0})
        assert (placed.drafters[0] == "warm:1") == is_taken
        assert len(placed.drafters) == len(set(placed.drafters))


def test_no_drafter_is_named_that_would_still_be_reading_when_the_answer_is_over() -> None:
    table = table_of([verifier("v0"), drafter("d0", **READER)])
    follow_up = wish(prefix_len=LONG, max_tokens=40)
    assert place(table, follow_up, {0: 1.0}).drafters == ()
    assert place(table, follow_up, {0: 1.0}, {0: 1.0}).drafters == ("d0:1",)
    assert place(table, replace(follow_up, prefix_len=40), {0: 1.0}).drafters == ("d0:1",)


def test_a_drafter_that_has_not_said_how_it_reads_is_thought_to_read_quicker_than_it_drafts() -> None:
    said, silent = table_of([drafter("d0", read_us=70.0)]), table_of([drafter("d0", draft_us=800.0)])
    assert said.drafters.read_us[0] == 70.0
    assert silent.drafters.read_us[0] == 800.0 * READ_SHARE
