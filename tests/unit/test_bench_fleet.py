"""`outrider bench fleet`: the simulated fleet keeps its rules, numbers are the same twice, and the driver does what it was asked."""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mostly_slow import mostly_slow_rows
from outrider.cli.bench import add_parser
from outrider.coordinator.round_times import drafted_us, rows_of_steps
from outrider.coordinator.step_times import sampled, step_us
from outrider.errors import InvalidRequest
from outrider.session.pacing.registry import make_pacing
from outrider.types.fleet import MAX_PREFIX_DIGESTS
from outrider_bench.fleet import run
from outrider_bench.fleet.driver import FULL, QUICK, Size, live_of, size_of
from outrider_bench.fleet.event_loop import EventLoop, Run
from outrider_bench.fleet.real_places import LIVE
from outrider_bench.fleet.simulated_drafter import SimulatedDrafter
from outrider_bench.fleet.simulated_verifier import Session, SimulatedVerifier
from outrider_bench.fleet.strategies import STRATEGIES, Coordinator, LeastLoaded, Replicas, RoundRobin
from outrider_bench.fleet.workload import Turn, Users
from outrider_bench.fleet.world import MAX_SESSIONS, NUM_BLOCKS, make_world
from outrider_bench.simulation.curves import CURVE_SHAPES
from outrider_bench.simulation.event_loop import simulate
from outrider_bench.simulation.world import Phase, World

SMALL = Run(make_world(6, 10, 3), 300, 3)


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["bench", "fleet", *arguments])


def session(drafter: SimulatedDrafter | None, answer_len: int = 100, acceptance: float = 0.8) -> Session:
    turn = Users(1, answer_len).next_turn(0)
    return Session(turn, 0.0, drafter, (drafter,) if drafter else (), 300.0, acceptance, 0)


@pytest.mark.parametrize("strategy_of", STRATEGIES)
def test_the_same_world_gives_the_same_numbers(strategy_of: type[RoundRobin | LeastLoaded | Coordinator]) -> None:
    first, again = (EventLoop(SMALL, strategy_of).outcome() for _ in range(2))
    assert first == again
    assert len(first.answers) == SMALL.num_turns
    assert all(answer.asked_s < answer.first_s <= answer.ended_s for answer in first.answers)


def test_no_process_ever_holds_more_than_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two verifiers with room for 48 and a crowd of users: some are refused, all are answered, and everything is given back."""
    monkeypatch.setattr("outrider_bench.fleet.event_loop.USERS_PER_VERIFIER", 60)
    loop = EventLoop(Run(make_world(2, 3, 1), 250, 1), Watched)
    outcome = loop.outcome()
    assert outcome.num_refused > 0
    assert len(outcome.answers) == 250
    assert isinstance(loop.strategy, Watched)
    assert all((one.num_sessions, one.num_blocks) == (0, 0) for one in loop.strategy.replicas.verifiers)
    assert all(one.num_sessions == 0 for one in loop.strategy.replicas.drafters)


class Watched(Coordinator):
    """Looks at every process whenever it hears of some."""

    def hear(self, verifiers: list[int], drafters: list[int], now_s: float) -> None:
        assert all(one.num_sessions <= MAX_SESSIONS and one.num_blocks <= NUM_BLOCKS for one in self.replicas.verifiers)
        assert all(one.num_sessions <= MAX_SESSIONS for one in self.replicas.drafters)
        super().hear(verifiers, drafters, now_s)


@pytest.mark.parametrize("pause_s", [0.5, 1.6])
def test_every_process_is_heard_once_in_each_pause_that_the_coordinator_asks_for(pause_s: float) -> None:
    loop = EventLoop(SMALL, Listening)
    assert isinstance(loop.strategy, Listening)
    loop.strategy.pause_s = pause_s
    loop.outcome()
    heard = loop.strategy.heard_s
    assert len(heard) == 6 + 10
    assert {round(later - sooner, 6) for times in heard.values() for sooner, later in itertools.pairwise(times[1:])} == {pause_s}


class Listening(Coordinator):
    """Asks for a pause of its own. heard_s: when each process was heard, the first time before anything happened."""

    pause_s = 0.0

    def __init__(self, replicas: Replicas) -> None:
        super().__init__(replicas)
        self.heard_s: dict[str, list[float]] = {}

    @property
    def announce_every_s(self) -> float:
        return self.pause_s

    def hear(self, verifiers: list[int], drafters: list[int], now_s: float) -> None:
        names = [f"v{at}" for at in verifiers] + [f"d{at}" for at in drafters]
        for name in names:
            self.heard_s.setdefault(name, []).append(now_s)
        super().hear(verifiers, drafters, now_s)


def test_the_coordinator_is_quicker_than_the_simple_ones() -> None:
    found = {one.__name__: EventLoop(Run(make_world(16, 32, 5), 1_000, 5), one).outcome().numbers() for one in STRATEGIES}
    best = found.pop("Coordinator")
    assert best["tokens_per_s"] > 1.1 * max(numbers["tokens_per_s"] for numbers in found.values())
    assert best["token_ms_p50"] < 0.9 * min(numbers["token_ms_p50"] for numbers in found.values())
    assert best["warm_share"] > 2 * max(numbers["warm_share"] for numbers in found.values())


def test_a_simulated_verifier_decodes_as_its_cost_says() -> None:
    world = make_world(1, 1, 1)
    verifier = SimulatedVerifier(world.verifiers[0])
    alone = session(None)
    verifier.begin(alone, 0.0)
    step_us = float(sampled(world.verifiers[0].cost)[0])
    assert alone.token_us == pytest.approx(step_us + 200.0)
    end_s = verifier.next_end_s()
    assert end_s == pytest.approx(alone.turn.answer_len * alone.token_us / 1e6)
    helped = session(SimulatedDrafter(world.drafters[0]))
    verifier.begin(helped, 0.0)
    assert helped.token_us < alone.token_us
    assert end_s is not None
    assert alone in verifier.finished(end_s * 1.01)  # two sessions share steps that are hardly longer


# Each value beside others at least twice.
WORLDS = [
    *((500, 150, 0.5, 6), (500, 150, 0.8, 1), (2_000, 150, 0.5, 1), (2_000, 150, 0.8, 6), (2_000, 2_000, 0.5, 1), (2_000, 2_000, 0.8, 6)),
    *((500, 150, 0.5, 1), (500, 150, 0.8, 6), (2_000, 150, 0.5, 6), (2_000, 150, 0.8, 1), (2_000, 2_000, 0.5, 6), (2_000, 2_000, 0.8, 1)),
]


@pytest.mark.parametrize(("draft_us", "delay_us", "acceptance", "num_sessions"), mostly_slow_rows(WORLDS, 5))
def test_what_a_token_takes_is_about_what_the_real_pacing_takes(draft_us: int, delay_us: int, acceptance: float, num_sessions: int) -> None:
    """The services' own sessions and `adaptive`, step by step on virtual time, are the yardstick."""
    verify = CURVE_SHAPES["knee"].verify_curve(10_000)
    draft = CURVE_SHAPES["knee"].draft_curve(draft_us)
    world = World(verify, draft, ((Phase(acceptance),),), delay_us=delay_us, output_len=200, num_sessions=num_sessions)
    real_us = num_sessions * 1e6 / simulate(world, make_pacing("adaptive"), 800 * num_sessions).tokens_per_s
    sessions = np.array([num_sessions])
    steps = step_us(sampled(verify.points)[None], rows_of_steps(sessions))
    pair = (np.array([[float(draft_us)]]), np.array([[2.0 * delay_us]]), np.array([[acceptance]]))
    assert 0.8 < float(drafted_us(steps, sessions, *pair)[0, 0]) / real_us < 1.2


def test_a_prefix_that_was_read_is_warm() -> None:
    verifier = SimulatedVerifier(make_world(1, 1, 1).verifiers[0])
    users = Users(1, 4)
    turns = [users.next_turn(0) for _ in range(12)]
    further = next(turn for turn in turns if turn.is_further and turn.prefix_len > 1_200)
    before = turns[turns.index(further) - 1]
    cold_s = verifier.admit(Session(before, 0.0, None, (), 0.0, 0.0, 0), 0.0)
    verifier._end(Session(before, 0.0, None, (), 0.0, 0.0, 0))
    asked = Session(further, 0.0, None, (), 0.0, 0.0, 0)
    warm_s = verifier.admit(asked, cold_s) - cold_s
    assert asked.was_warm
    assert warm_s / further.prefix_len < 0.7 * cold_s / before.prefix_len


def conversation(at_least: int) -> tuple[Turn, Turn]:
    """A turn, and one after it whose prefix has so many tokens."""
    users = Users(1, 4)
    turns = [users.next_turn(0) for _ in range(12)]
    at = next(at for at, turn in enumerate(turns) if turn.is_further and turn.prefix_len > at_least)
    return turns[at - 1], turns[at]


def test_a_drafter_reads_what_it_has_not_read_before_and_guesses_only_then() -> None:
    world = make_world(1, 2, 1)
    warm, cold = (SimulatedDrafter(spec) for spec in world.drafters)
    first, further = conversation(1_200)
    warm.num_sessions = 1
    warm.finish(first)
    assert warm.num_sessions == 0
    assert cold.reading_s(further) == pytest.approx(further.prefix_len * cold.spec.read_us / 1e6)
    assert warm.reading_s(further) / warm.spec.read_us < 0.6 * cold.reading_s(further) / cold.spec.read_us
    verifier = SimulatedVerifier(world.verifiers[0])
    waiting = replace(session(cold), drafts_from_s=3.0)
    verifier.begin(waiting, 2.0)
    plain_us = waiting.token_us
    verifier.advance(3.0)
    verifier.reprice()
    assert waiting.token_us < 0.9 * plain_us


def test_a_drafter_that_reads_for_long_is_heard_in_the_midst_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended_s() -> float:
        return EventLoop(Run(make_world(1, 1, 1), 1, 1), RoundRobin).outcome().answers[0].ended_s

    at_once_s = ended_s()
    monkeypatch.setattr("outrider_bench.fleet.world.DRAFT_READ_SHARE", 1e9)
    never_s = ended_s()
    monkeypatch.setattr("outrider_bench.fleet.world.DRAFT_READ_SHARE", 0.3)
    assert at_once_s < ended_s() < 0.98 * never_s


def test_what_a_user_asks_does_not_depend_on_the_others() -> None:
    few, many = Users(2, 9), Users(5, 9)
    many.next_turn(4)
    turns = [few.next_turn(1) for _ in range(20)]
    assert turns == [many.next_turn(1) for _ in range(20)]
    assert all(len(turn.digests(turn.prefix_len)) <= MAX_PREFIX_DIGESTS for turn in turns)
    assert any(turn.is_further for turn in turns)


def test_the_driver_ends_with_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fleet.md"
    assert run(parsed("--quick", "--verifiers", "5", "--drafters", "0", "--sessions", "150", "--out", str(out))) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1].removeprefix("RESULT "))
    assert {key: result[key] for key in ("verifiers", "drafters", "sessions")} == {"verifiers": 5, "drafters": 0, "sessions": 150}
    assert set(result["strategies"]) == {"round-robin", "least-loaded", "coordinator"}
    assert 0.0 < result["place_ms"]["wall_p50"] <= result["place_ms"]["wall_p99"]
    assert "least-loaded" in out.read_text(encoding="utf-8")


def test_sizes_are_what_was_asked_or_the_usual_ones() -> None:
    assert (size_of(parsed()), size_of(parsed("--quick"))) == (FULL, QUICK)
    assert size_of(parsed("--quick", "--drafters", "7")) == Size(QUICK.verifiers, 7, QUICK.sessions)
    for arguments, field in (
        (("--verifiers", "0"), "verifiers"),
        (("--sessions", "5", "6"), "sessions"),
        (("--drafters", "-1"), "drafters"),
    ):
        with pytest.raises(InvalidRequest, match=field):
            size_of(parsed(*arguments))


def test_how_many_placements_stay_unfinished_is_said_to_a_real_coordinator_only() -> None:
    assert live_of(parsed("--actor")) == LIVE
    assert live_of(parsed("--actor", "--live", "7")) == 7
    for arguments in (("--live", "7"), ("--actor", "--live", "0"), ("--actor", "--live", "1000000")):
        with pytest.raises(InvalidRequest, match="live"):
            live_of(parsed(*arguments))


def test_the_simulated_processes_are_those_of_the_world() -> None:
    world = make_world(3, 4, 2)
    assert world == make_world(3, 4, 2) != make_world(3, 4, 3)
    assert world.round_trip_us(0, 0) >= 300
    simple = RoundRobin(
        Replicas([SimulatedVerifier(spec) for spec in world.verifiers], [SimulatedDrafter(spec) for spec in world.drafters])
    )
    turn = Users(1, 1).next_turn(0)
    chosen = [simple.choose(turn, 0.0) for _ in range(4)]
    assert [one.verifier for one in chosen if one] == [0, 1, 2, 0]
    assert [one.drafters for one in chosen if one] == [(0,), (1,), (2,), (3,)]
