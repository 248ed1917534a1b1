"""PEARL's throughput model (ALGORITHMS A.1) and the serial one (section 0), reproduced by the real policies and sessions.

Set-up: gamma = c, no latency, a target step of fixed cost, guesses right with probability alpha independently per position.
"""

from __future__ import annotations

import pytest

from fakes import TableEngine, TruthTable
from fakes_simulation import ScriptedDrafter, Simulation, spec_of
from mostly_slow import mostly_slow_rows
from outrider.session.pacing.contract import Pacing
from outrider.session.pacing.pearl import PearlPacing
from outrider.session.pacing.plain import PlainPacing
from outrider.session.pacing.serial import SerialPacing

TARGET_US = 24_000
NUM_TOKENS = 2_000
TABLE = TruthTable(vocab_size=1000)


def tokens_per_target_time(pacing: Pacing, alpha: float, speed_ratio: int, num_tokens: int = NUM_TOKENS, seed: int = 1) -> float:
    engine = TableEngine(TABLE, num_blocks=2048, step_us=TARGET_US)
    drafter = ScriptedDrafter("d", TABLE, alpha, TARGET_US // speed_ratio, seed)
    simulation = Simulation(engine, pacing, [drafter])
    begin = simulation.clock.now_us
    request = simulation.add(spec_of(1, [5, 6, 7], num_tokens, TABLE))
    simulation.run()
    assert request.tokens == TABLE.answer([5, 6, 7], 3 + num_tokens, frozenset({0}))
    return len(request.tokens) * TARGET_US / (simulation.clock.now_us - begin)


def pearl_model(alpha: float, gamma: int) -> float:
    post_share = alpha / (alpha + 1 - alpha**gamma)
    emitted = sum(alpha**n * (1 - alpha) * (n + 1) for n in range(gamma)) + gamma * alpha**gamma
    return float((1 - post_share) + post_share * emitted)


# The four corners, and what lies between them.
CASES = mostly_slow_rows([(0.6, 3), (0.6, 8), (0.9, 3), (0.9, 8), (0.6, 5), (0.8, 3), (0.8, 5), (0.8, 8), (0.9, 5)], 4)


@pytest.mark.parametrize(("alpha", "gamma"), CASES)
def test_pearl_reaches_the_throughput_of_its_paper(alpha: float, gamma: int) -> None:
    assert tokens_per_target_time(PearlPacing(gamma), alpha, gamma) == pytest.approx(pearl_model(alpha, gamma), rel=0.03)


@pytest.mark.parametrize(("alpha", "gamma"), CASES)
def test_serial_reaches_the_classical_throughput(alpha: float, gamma: int) -> None:
    expected = (1 - alpha ** (gamma + 1)) / (1 - alpha) / (1 + gamma / gamma)
    assert tokens_per_target_time(SerialPacing(gamma), alpha, gamma) == pytest.approx(expected, rel=0.03)


def test_plain_decodes_one_token_per_target_step() -> None:
    assert tokens_per_target_time(PlainPacing(), 0.9, 5, num_tokens=200) == pytest.approx(1.0)


def test_pearl_beats_serial_unless_the_drafter_is_fast_and_often_wrong() -> None:
    """A.1's comparison: at c = 8, PEARL loses at alpha .6 (1.55 against 1.58 at the best gamma) and wins at .9."""
    assert tokens_per_target_time(PearlPacing(8), 0.6, 8) < tokens_per_target_time(SerialPacing(2), 0.6, 8)
    assert tokens_per_target_time(PearlPacing(8), 0.9, 8) > tokens_per_target_time(SerialPacing(6), 0.9, 8)


def test_a_pearl_round_emits_one_token_in_pre_and_at_most_a_block_in_post() -> None:
    gamma = 4
    engine = TableEngine(TABLE, step_us=TARGET_US)
    simulation = Simulation(engine, PearlPacing(gamma), [ScriptedDrafter("d", TABLE, 0.8, TARGET_US // gamma, seed=3)])
    request = simulation.add(spec_of(1, [5], 300, TABLE))
    simulation.run()
    stats = request.session.statistics
    assert len(stats.drafted_by_depth) == gamma - 1
    post = stats.drafted_by_depth[gamma - 2]
    assert stats.num_drafted == pytest.approx(post * (gamma - 1), abs=gamma)
    assert 0 < stats.accepted_by_depth[gamma - 2] < post


def test_the_best_block_is_about_the_ratio_of_speeds() -> None:
    pacing = PearlPacing()
    tokens_per_target_time(pacing, 0.9, 6, num_tokens=600)
    assert pacing.draft_len == 6


def test_serial_finds_the_length_of_best_throughput() -> None:
    """At c = 8, alpha = .8 the best gamma of (1 - a^(g+1)) / (1 - a) / (1 + g / c) is 5 (2.27 in A.1's table)."""
    pacing = SerialPacing()
    rate = tokens_per_target_time(pacing, 0.8, 8)
    assert 3 <= pacing.draft_len <= 8  # near the best, the throughput is flat
    assert rate == pytest.approx(2.27, rel=0.04)


def test_drafting_overlaps_verification_in_pearl_and_not_in_serial() -> None:
    shares = []
    for pacing in (PearlPacing(5), SerialPacing(5)):
        engine = TableEngine(TABLE, num_blocks=2048, step_us=TARGET_US)
        simulation = Simulation(engine, pacing, [ScriptedDrafter("d", TABLE, 0.8, TARGET_US // 5, seed=2)])
        request = simulation.add(spec_of(1, [5, 6, 7], 300, TABLE))
        simulation.run()
        shares.append(request.session.statistics.overlap_share)
    assert shares[0] > 0.95
    assert shares[1] < 0.05
