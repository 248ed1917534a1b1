"""Whether a loan of cores pays: what was measured decides, noise does not, and finding out costs next to nothing."""

from __future__ import annotations

import random

import pytest

from outrider.session.pacing.contract import CostCurve
from verifier_service.loan_worth import MAX_FIRST_RATIO, MAX_SAVED_STEPS, MIN_STAY, PROBE_AFTER, PROBE_SHARE, LoanWorth

OWN = CostCurve(((1, 1_000.0), (8, 2_000.0), (64, 8_000.0)))


def scaled(ratio: float) -> CostCurve:
    return CostCurve(tuple((rows, ratio * us) for rows, us in OWN.points))


class Machine:
    """Steps that take own_us * (ratio with a loan), times noise; counts what was chosen."""

    def __init__(self, worth: LoanWorth, ratio: float, noise: float = 0.0, seed: int = 1) -> None:
        self.worth = worth
        self.ratio = ratio
        self.num_lent = self.num_switches = 0
        self.total_us = 0.0
        self._noise = noise
        self._random = random.Random(seed)

    def run(self, num_steps: int, num_rows: int = 8) -> None:
        for _ in range(num_steps):
            before, lent = self.worth.lends(num_rows), self.worth.choose(num_rows)
            us = OWN.verify_us(num_rows) * (self.ratio if lent else 1.0) * self._random.uniform(1 - self._noise, 1 + self._noise)
            self.worth.observe(num_rows, round(us), lent=lent)
            self.num_lent += lent
            self.num_switches += self.worth.lends(num_rows) != before
            self.total_us += us


def test_what_was_measured_at_start_decides_at_first_if_it_is_clear_enough() -> None:
    assert LoanWorth(OWN, scaled(0.6)).lends(8)
    assert LoanWorth(OWN, scaled(1.4)).lends(8), "somebody may have been loading"
    assert not LoanWorth(OWN, scaled(2.1)).lends(8)
    mixed = LoanWorth(OWN, CostCurve(((1, 2_200.0), (8, 2_400.0), (64, 4_000.0))))
    assert [mixed.lends(rows) for rows in (1, 2, 8, 500)] == [False, False, True, True]


def test_a_loan_that_seemed_dear_at_start_is_judged_by_the_steps_that_used_it() -> None:
    for at_start, ratio in ((1.9, 0.7), (1.9, 1.2), (0.7, 1.2)):
        machine = Machine(LoanWorth(OWN, scaled(at_start)), ratio)
        machine.run(2 * MIN_STAY)
        assert machine.worth.lends(8) == (ratio < 1.0)


def test_a_question_changes_nothing() -> None:
    worth = LoanWorth(OWN, scaled(0.6))
    for _ in range(10 * PROBE_AFTER):
        worth.observe(8, 1_200, lent=True)
    assert not worth.choose(8), "a probe is due"
    assert worth.lends(8)
    assert not worth.choose(8), "until it was made"


@pytest.mark.parametrize(("at_start", "ratio"), [(1.8, 0.6), (0.6, 1.8), (3.0, 0.7), (0.4, 5.0), (2.5, 3.0)])
def test_a_wrong_measurement_at_start_is_found_out(at_start: float, ratio: float) -> None:
    machine = Machine(LoanWorth(OWN, scaled(at_start)), ratio)
    machine.run(2_000)
    assert machine.worth.lends(8) == (ratio < 1.0)
    assert machine.num_switches == (at_start < MAX_FIRST_RATIO) ^ (ratio < 1.0)


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.1, 2.0, 20.0])
def test_probes_cost_no_more_than_their_share(ratio: float) -> None:
    machine = Machine(LoanWorth(OWN, scaled(ratio)), ratio)
    machine.run(20_000)
    best_us = 20_000 * OWN.verify_us(8) * min(1.0, ratio)
    one_probe_us = OWN.verify_us(8) * abs(1.0 - ratio)
    finding_out_us = MIN_STAY * one_probe_us if ratio < MAX_FIRST_RATIO else 0.0
    assert machine.total_us <= best_us * (1 + 1.01 * PROBE_SHARE) + one_probe_us + finding_out_us
    num_probes = machine.num_lent if ratio > 1.0 else 20_000 - machine.num_lent
    assert 2 <= num_probes <= 20_000 / PROBE_AFTER + MIN_STAY


def test_a_loan_that_stops_paying_ends_and_one_that_pays_again_begins() -> None:
    machine = Machine(LoanWorth(OWN, scaled(0.6)), 0.6)
    machine.run(500)
    assert machine.worth.lends(8)
    machine.ratio = 1.5  # somebody else took the core
    machine.run(100)
    assert not machine.worth.lends(8)
    before = machine.num_lent
    machine.run(1_000)
    assert machine.num_lent - before <= 1_000 / PROBE_AFTER
    machine.ratio = 0.6
    machine.run(3_000)
    assert machine.worth.lends(8)


@pytest.mark.parametrize("ratio", [0.9, 0.97, 1.0, 1.1])
def test_noise_makes_no_pendulum(ratio: float) -> None:
    machine = Machine(LoanWorth(OWN, scaled(ratio)), ratio, noise=0.15)
    machine.run(20_000)
    assert machine.num_switches <= 20


def test_a_change_of_mind_stands_for_a_while() -> None:
    worth = LoanWorth(OWN, scaled(0.6))
    for num_stayed in range(MIN_STAY):
        assert worth.lends(8), num_stayed
        worth.observe(8, 40_000, lent=True)
    assert not worth.lends(8)


def test_a_single_stalled_step_changes_nothing() -> None:
    worth = LoanWorth(OWN, scaled(0.6))
    for _ in range(200):
        worth.observe(8, 1_200, lent=True)
    worth.observe(8, 5_000_000, lent=True)
    assert worth.lends(8)


def test_rows_are_judged_apart() -> None:
    worth = LoanWorth(OWN, scaled(0.6))
    for _ in range(100):
        worth.observe(1, 3_000, lent=True)
    assert (worth.lends(1), worth.lends(64)) == (False, True)


def test_what_is_saved_for_probes_has_a_bound() -> None:
    worth = LoanWorth(OWN, scaled(1.0 + 2 * MAX_SAVED_STEPS))
    machine = Machine(worth, 1.0)
    machine.run(40_000)
    assert machine.num_lent == 0, "far worse than all that may be saved is not tried again"
