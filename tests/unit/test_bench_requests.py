"""The bench of a request on the event loop: its phases are whole, and none takes more function calls than it did when it was last cut down.

Run: pytest tests/unit/test_bench_requests.py
"""

from __future__ import annotations

from pathlib import Path

from outrider_bench.part_clock import PartClock
from outrider_bench.request_cost import END, FIRST, MESSAGE, MESSAGE_TOKENS, NUM_MESSAGES, OPENING, PHASES, RequestLoop
from outrider_bench.rounds import TOTAL, measure_requests, replay_engine

MODEL = Path(__file__).resolve().parents[2] / "models" / "ref-small"
IDENTITY = replay_engine(4_000).identity
WARM_REQUESTS = 4
# Of calls, with the event loop's own, which are a third of them: as counted, and a tenth more for other versions of Python. They were 555,
# 554, 280 and 874 before messages went without tasks and methods were looked up by name, and 571 at the end before it was one message.
MOST_CALLS = {OPENING: 428, FIRST: 379, MESSAGE: 212, END: 452}


def test_a_request_is_answered_whole() -> None:
    clock = PartClock()
    responses = RequestLoop(MODEL, IDENTITY, 2, clock).run()
    assert [response.WhichOneof("event") for response in responses] == ["started", *["delta"] * NUM_MESSAGES, "finished", "done"]
    assert sum(len(response.delta.token_ids) for response in responses) == NUM_MESSAGES * MESSAGE_TOKENS


def test_every_phase_is_found_in_every_request() -> None:
    clock = PartClock(counts_calls=True)
    loop = RequestLoop(MODEL, IDENTITY, 5, clock)
    loop.run()
    num = {phase: len(loop.of_phase(phase)) for phase in PHASES}
    assert num == {OPENING: 5, FIRST: 5, MESSAGE: 5 * (NUM_MESSAGES - 2), END: 5}
    assert all("verifier: checks" in found for found in loop.of_phase(OPENING)[1:])
    assert all("gateway: text" in found for phase in (FIRST, MESSAGE, END) for found in loop.of_phase(phase))


def test_no_phase_takes_more_calls_than_it_needs() -> None:
    clock = PartClock(counts_calls=True)
    loop = RequestLoop(MODEL, IDENTITY, WARM_REQUESTS + 3, clock)
    loop.run()
    for phase, most in MOST_CALLS.items():
        found = [sum(parts.values()) for parts in loop.of_phase(phase)]
        assert min(found[WARM_REQUESTS * len(found) // (WARM_REQUESTS + 3) :]) <= most, phase


def test_the_command_has_a_column_for_each_phase() -> None:
    costs = dict(measure_requests(MODEL, IDENTITY, 1))
    assert tuple(costs) == PHASES
    assert all(parts[TOTAL].least_us > 0.0 and parts[TOTAL].num_calls > 0 for parts in costs.values())
