"""Many sessions, real drafter sessions and a network that delays, reorders, duplicates, drops and kills: the text never changes.

Each case also asserts progress within the deadline (inside Simulation), that everything is freed, and that speculation did happen.
"""

from __future__ import annotations

import random
from functools import partial

import pytest

from fakes import TableEngine, TruthTable, Weather
from fakes_simulation import Request, ScriptedDrafter, Simulation, spec_of
from mostly_slow import crossed
from outrider.session.events import FinishReason
from outrider.session.pacing.registry import PACINGS, make_pacing
from outrider.session.verifier import DEADLINE_CEILING_US, DEADLINE_FLOOR_US

STEP_US = 10_000
WEATHERS = {
    "calm": Weather(max_delay_us=300),
    "slow": Weather(max_delay_us=40_000),
    "reordering": Weather(reorder=0.3, max_delay_us=20_000),
    "duplicating": Weather(duplicate=0.3, max_delay_us=5_000),
    "dropping": Weather(drop=0.1, max_delay_us=5_000),
    "everything": Weather(drop=0.05, duplicate=0.1, reorder=0.2, max_delay_us=15_000),
}

# As a real stream does. A Close that is lost, or overtakes its Open, leaves the session there until the stream ends.
IN_ORDER = ("calm", "slow", "duplicating")


def storm(seed: int, weather: Weather, pacing: str, num_sessions: int = 4) -> tuple[Simulation, dict[int, list[int]]]:
    """Sessions of random lengths with one chain drafter and one tree drafter, every other seed of texts that repeat themselves; expected
    answers by session."""
    rng = random.Random(seed)
    table = TruthTable(vocab_size=40, seed=seed, eos_every=rng.choice([0, 0, 40]), period=20 * (seed % 2))
    engine = TableEngine(table, step_us=STEP_US)
    drafters = [
        ScriptedDrafter("d", table, rng.uniform(0.4, 0.95), rng.choice([500, 2_000, 9_000]), seed),
        ScriptedDrafter("e", table, rng.uniform(0.4, 0.95), 2_000, seed + 1, width=3),
    ]
    simulation = Simulation(engine, make_pacing(pacing), drafters, weather=weather, seed=seed)
    expected: dict[int, list[int]] = {}
    for handle in range(1, num_sessions + 1):
        prompt = [rng.randrange(1, 40) for _ in range(rng.randrange(1, 300))]
        max_tokens = rng.randrange(1, 60)
        simulation.add(spec_of(handle, prompt, max_tokens, table, lookup=True))
        expected[handle] = table.answer(prompt, len(prompt) + max_tokens, frozenset({0}))
    return simulation, expected


def check_all(simulation: Simulation, expected: dict[int, list[int]]) -> None:
    for handle, request in simulation.requests.items():
        assert request.tokens == expected[handle]
        assert request.finish is not None
        assert request.finish.reason is (FinishReason.STOP if request.tokens[-1] == 0 else FinishReason.LENGTH)
        check_freed(request)
    engine = simulation.engine
    assert engine.num_open == 0
    assert engine.num_free_blocks == engine.limits.num_blocks


def check_freed(request: Request) -> None:
    assert request.session.num_open_drafters == 0
    assert request.longest_wait_us <= DEADLINE_CEILING_US + 2 * STEP_US


@pytest.mark.parametrize(("weather", "pacing"), crossed(list(WEATHERS), sorted(PACINGS), 2))
def test_the_text_is_that_of_plain_decoding(weather: str, pacing: str) -> None:
    num_accepted = num_rejected = num_looked_up = 0
    for seed in range(4):
        simulation, expected = storm(seed, WEATHERS[weather], pacing)
        simulation.run()
        check_all(simulation, expected)
        stats = [request.session.statistics for request in simulation.requests.values()]
        num_accepted += sum(one.num_accepted for one in stats)
        num_rejected += sum(one.num_drafted - one.num_accepted for one in stats)
        if weather in IN_ORDER:
            assert all(not drafter.sessions for drafter in simulation.drafters.values()), "a drafter holds a session that has ended"
        num_looked_up += sum(one.num_looked_up for one in stats)
    policy = make_pacing(pacing)
    guesses = policy.drafts or policy.looks_up
    assert (num_accepted > 0) is guesses
    assert (num_rejected > 0) is guesses
    assert (num_looked_up > 0) is policy.looks_up


@pytest.mark.parametrize("pacing", ["pearl", "serial", "adaptive"])
def test_killed_drafters_cost_speed_only(pacing: str) -> None:
    for seed in range(6):
        simulation, expected = storm(seed, WEATHERS["calm"], pacing)
        begin = simulation.clock.now_us
        simulation.agenda.append((begin + 40_000 + 7_000 * seed, partial(simulation.kill, "d")))
        simulation.agenda.append((begin + 90_000, partial(simulation.kill, "e")))
        simulation.run()
        check_all(simulation, expected)


@pytest.mark.parametrize("pacing", ["pearl", "serial"])
def test_stopped_drafters_cost_a_bounded_number_of_deadlines(pacing: str) -> None:
    """SIGSTOP: frames are swallowed and no stream breaks. Three deadlines are waited for, then nobody waits."""
    table = TruthTable(vocab_size=40)
    simulation = Simulation(TableEngine(table, step_us=STEP_US), make_pacing(pacing), [ScriptedDrafter("d", table, 0.9, 2_000)])
    request = simulation.add(spec_of(1, [5, 6], 120, table))
    simulation.agenda.append((simulation.clock.now_us + 60_000, lambda: simulation.network.kill("d")))
    begin = simulation.clock.now_us
    simulation.run()
    assert request.tokens == table.answer([5, 6], 122, frozenset({0}))
    stats = request.session.statistics
    assert (stats.num_missed_deadlines, stats.num_drafter_losses) == (3, 1)
    plain_us = 120 * STEP_US
    assert simulation.clock.now_us - begin < plain_us + 3 * DEADLINE_CEILING_US
    assert stats.num_accepted > 0


def test_a_drafter_that_answers_again_is_waited_for_again() -> None:
    table = TruthTable(vocab_size=40)
    drafter = ScriptedDrafter("d", table, 1.0, 2_000)
    simulation = Simulation(TableEngine(table, step_us=STEP_US), make_pacing("serial", 4), [drafter])
    request = simulation.add(spec_of(1, [5, 6], 400, table))
    begin = simulation.clock.now_us

    def wedge() -> None:
        drafter.busy_until = begin + 900_000

    simulation.agenda.append((begin + 60_000, wedge))
    simulation.run()
    stats = request.session.statistics
    assert stats.num_missed_deadlines == 3
    assert stats.num_accepted > 200
    assert request.tokens == table.answer([5, 6], 402, frozenset({0}))


def test_a_far_drafter_that_answers_steadily_is_not_given_up() -> None:
    """The way there and back takes longer than the least deadline; once it is measured, the deadline allows for it."""
    table = TruthTable(vocab_size=40, seed=1)
    far, drafter = Weather(max_delay_us=4 * DEADLINE_FLOOR_US), ScriptedDrafter("d", table, 1.0, 500, 1)
    simulation = Simulation(TableEngine(table, step_us=STEP_US), make_pacing("serial", 4), [drafter], weather=far)
    request = simulation.add(spec_of(1, [5, 6, 7], 80, table))
    simulation.run()
    stats = request.session.statistics
    assert request.tokens == table.answer([5, 6, 7], 83, frozenset({0}))
    assert (stats.num_missed_deadlines, stats.num_drafter_losses) == (0, 0)
    assert stats.num_accepted > 40, "five tokens a round once it is open"


def test_cancelled_requests_leave_nothing_behind() -> None:
    for seed in range(8):
        simulation, expected = storm(seed, WEATHERS["slow"], "pearl", num_sessions=6)
        rng = random.Random(seed)
        for handle in (2, 4, 6):
            at = simulation.clock.now_us + rng.randrange(1, 400_000)
            simulation.agenda.append((at, partial(simulation.cancel, handle)))
        simulation.run()
        assert simulation.engine.num_free_blocks == simulation.engine.limits.num_blocks
        assert all(not drafter.sessions for drafter in simulation.drafters.values())
        for handle, request in simulation.requests.items():
            assert request.tokens == expected[handle][: len(request.tokens)]
            if handle % 2:
                assert request.tokens == expected[handle]


def test_small_steps_still_serve_everybody() -> None:
    """Rows for fewer than all sessions: prompts go in chunks, sessions take turns, the text stays."""
    table = TruthTable(vocab_size=40)
    simulation = Simulation(TableEngine(table, max_rows=5), make_pacing("pearl"), [ScriptedDrafter("d", table, 0.8, 500)])
    for handle in range(1, 9):
        simulation.add(spec_of(handle, [handle] * 23, 20, table))
    simulation.run()
    for handle, request in simulation.requests.items():
        assert request.tokens == table.answer([handle] * 23, 43, frozenset({0}))
