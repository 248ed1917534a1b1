"""Side branches over a network that delays, reorders, duplicates and drops: the text never changes, everything is freed, and mismatches
find their next guesses waiting. Real parts: verifier's and drafter's sessions, outbox, replay source, policies.
"""

from __future__ import annotations

import random

import pytest

from fakes import TableEngine, TruthTable, Weather
from fakes_hedging import HedgingPacing, SourceDrafter
from fakes_simulation import Simulation, spec_of
from mostly_slow import mostly_slow_rows
from outrider.drafting.replay_source import ReplayOptions, ReplaySource
from outrider.session.pacing.registry import PACINGS, make_pacing
from outrider.session.statistics import DraftInterval, SessionStatistics

STEP_US = 10_000
VOCAB_SIZE = 40
WEATHERS = {
    "calm": Weather(max_delay_us=300),
    "slow": Weather(max_delay_us=40_000),
    "everything": Weather(drop=0.05, duplicate=0.1, reorder=0.2, max_delay_us=15_000),
}


def hedged(
    seed: int,
    weather: Weather,
    pacing: str,
    hedge_acceptance: float = 0.6,
    num_sessions: int = 3,
    budgets: tuple[int, ...] = (16, 16, 5, 0),
    side_nodes: int = 0,
) -> tuple[Simulation, dict[int, list[int]], SourceDrafter]:
    rng = random.Random(seed)
    table = TruthTable(vocab_size=VOCAB_SIZE, seed=seed)
    prompts = {handle: [rng.randrange(1, VOCAB_SIZE) for _ in range(rng.randrange(2, 40))] for handle in range(1, num_sessions + 1)}
    expected = {handle: table.answer(prompt, len(prompt) + 60, frozenset({0})) for handle, prompt in prompts.items()}
    texts = tuple((*prompt, *expected[handle]) for handle, prompt in prompts.items())
    source = ReplaySource(ReplayOptions(texts, 0.6, VOCAB_SIZE, seed=seed, hedge_acceptance=hedge_acceptance))
    drafter = SourceDrafter("d", source, VOCAB_SIZE, 1_000)
    policy = HedgingPacing(make_pacing(pacing), budgets, side_nodes)
    simulation = Simulation(TableEngine(table, step_us=STEP_US), policy, [drafter], weather=weather, seed=seed)  # type: ignore[list-item]
    for handle, prompt in prompts.items():
        simulation.add(spec_of(handle, prompt, 60, table))
    return simulation, expected, drafter


@pytest.mark.parametrize("pacing", sorted(PACINGS))
@pytest.mark.parametrize(
    ("weather", "side_nodes"), mostly_slow_rows([*((weather, 6) for weather in WEATHERS), ("everything", 0), ("calm", 0), ("slow", 0)], 4)
)
def test_the_text_is_that_of_plain_decoding(weather: str, pacing: str, side_nodes: int) -> None:
    num_hedge_tails = num_hits = num_side_nodes = 0
    for seed in range(3):
        simulation, expected, drafter = hedged(seed, WEATHERS[weather], pacing, side_nodes=side_nodes)
        simulation.run()
        assert isinstance(simulation.pacing, HedgingPacing)
        num_side_nodes += simulation.pacing.num_side_nodes
        for handle, request in simulation.requests.items():
            assert request.tokens == expected[handle]
            assert request.session.statistics.num_violations == 0
        assert simulation.engine.num_free_blocks == simulation.engine.limits.num_blocks
        if weather != "everything":
            assert not drafter.sessions, "a session of the drafter outlived its request"
        num_hedge_tails += drafter.num_hedge_tails
        num_hits += sum(request.session.statistics.num_hedge_hits for request in simulation.requests.values())
    if (weather, pacing) != ("slow", "adaptive"):  # it soon does without a drafter that far away
        assert (num_side_nodes > 0) is (make_pacing(pacing).drafts and (side_nodes > 0 or pacing == "adaptive"))
    assert (num_hedge_tails > 0) is make_pacing(pacing).drafts
    assert (num_hits > 0) is make_pacing(pacing).drafts


@pytest.mark.parametrize("side_nodes", [0, 8])
def test_mismatches_find_a_branch_as_often_as_the_second_choice_is_right(side_nodes: int) -> None:
    """In the round that finds the mismatch, or behind it."""
    tests = hits = 0
    for seed in range(6):
        simulation, _, _ = hedged(seed, Weather(max_delay_us=300), "pearl", hedge_acceptance=0.7, budgets=(32,), side_nodes=side_nodes)
        simulation.run()
        statistics = [request.session.statistics for request in simulation.requests.values()]
        tests += sum(one.num_hedge_tests for one in statistics)
        hits += sum(one.num_hedge_hits for one in statistics)
    assert tests > 150
    assert 0.45 < hits / tests < 0.8


@pytest.mark.parametrize("side_nodes", [0, 8])
def test_a_guess_whose_side_branch_was_right_was_wrong(side_nodes: int) -> None:
    """A drafter that is right six times out of ten is tallied so, whatever its second choices are, and is estimated so."""
    num_right = num_judged = 0
    estimates: list[float] = []
    for seed in range(6):
        simulation, _, _ = hedged(seed, Weather(max_delay_us=300), "pearl", hedge_acceptance=1.0, budgets=(32,), side_nodes=side_nodes)
        simulation.run()
        estimates += [request.session.statistics.acceptance for request in simulation.requests.values()]
        tallies = [request.session.drafter_tallies()["d"] for request in simulation.requests.values()]
        num_right += sum(tally.num_right for tally in tallies)
        num_judged += sum(tally.num_judged for tally in tallies)
    assert num_judged > 400
    assert 0.5 < num_right / num_judged < 0.7
    assert 0.5 < sum(estimates) / len(estimates) < 0.7


def test_a_branch_verified_beside_the_chain_saves_rounds() -> None:
    """A mismatch that goes there costs no round of its own."""
    num_rounds: dict[int, int] = {}
    for side_nodes in (0, 8):
        num_rounds[side_nodes] = 0
        for seed in range(4):
            simulation, expected, _ = hedged(seed, Weather(max_delay_us=300), "pearl", 0.7, 1, (32,), side_nodes)
            simulation.run()
            assert simulation.requests[1].tokens == expected[1]
            num_rounds[side_nodes] += simulation.requests[1].session.statistics.num_rounds
    assert num_rounds[8] < 0.95 * num_rounds[0]


def test_a_far_drafter_is_worth_more_with_side_branches() -> None:
    """Steps of ten milliseconds, ten away: what a mismatch finds waiting is not waited for."""
    took: dict[bool, int] = {}
    for with_branches in (False, True):
        took[with_branches] = 0
        for seed in range(4):
            far = Weather(max_delay_us=20_000)
            simulation, expected, _ = hedged(seed, far, "pearl", num_sessions=1, budgets=(32,) if with_branches else (0,))
            begin = simulation.clock.now_us
            simulation.run()
            took[with_branches] += simulation.clock.now_us - begin
            assert simulation.requests[1].tokens == expected[1]
    assert took[True] < 0.97 * took[False]


def test_time_of_side_branches_costs_but_says_nothing_of_how_fast_guesses_come() -> None:
    statistics = SessionStatistics()
    for at in range(3):
        statistics.count_drafting(DraftInterval(1_000 * at, 1_000 * at + 400, 400), 2, verifying=False)
    known = statistics.draft_us_per_token
    statistics.count_drafting(DraftInterval(9_000, 9_900, 900), 0, verifying=False, hedge_us=900)
    statistics.count_drafting(DraftInterval(10_000, 10_800, 800), 1, verifying=False, hedge_us=800)
    assert statistics.draft_us_per_token == known == 200.0
    statistics.count_drafting(DraftInterval(11_000, 12_000, 1_000), 2, verifying=False, hedge_us=600)
    assert statistics.draft_us_per_token == known
    assert statistics.draft_us == 3 * 400 + 900 + 800 + 1_000
