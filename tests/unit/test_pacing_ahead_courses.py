"""The grid of courses ahead, computed in one go, against its definition: two kinds of rounds, one pair of lengths at a time.

Run: pytest tests/unit/test_pacing_ahead_courses.py
"""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest

from outrider.session.pacing.contract import CostCurve
from outrider.session.pacing.round_model import HARDLY_EVER, LOST_TOKENS, MAX_WAIT_LEN, RoundRates, _ahead_course, measured_rates

ALMOST_ONE = 0.999


def speed_of(rates: RoundRates, right: float, goes: float, lengths: tuple[int, int], num_unheard: int, unheard_wait_us: float) -> float:
    """Tokens per microsecond of rounds with lengths[0] guesses where the drafter starts over, and lengths[1] where it had guessed on."""
    both, n = min(ALMOST_ONE, right * goes), rates.num_sessions

    def sent(length: int) -> float:
        return sum(goes**at for at in range(1, length + 1))

    def longest(length: int) -> float:
        return sum(1.0 - (1.0 - goes**at) ** n for at in range(1, length + 1))

    def step_us(length: int) -> float:
        rows = 1.0 + sent(length)
        lower = min(int(rows), len(rates.step_us) - 2)
        share = rows - lower
        return float((1.0 - share) * rates.step_us[lower] + share * rates.step_us[lower + 1]) + rates.overhead_us

    def goes_on(length: int) -> float:
        if length:
            return float(both ** (length + 1))
        whole = both**num_unheard
        return float(whole * (1.0 - both) / (1.0 - whole))

    miss, hit = lengths
    ready = max(0.0, step_us(hit) / rates.draft_us - LOST_TOKENS)
    hit_wait_us = max(0.0, longest(hit) - ready) * rates.draft_us
    miss_wait_us = 2.0 * rates.link_us + rates.start_us + (0.5 + longest(miss)) * rates.draft_us if miss else unheard_wait_us
    hit_share = goes_on(miss) / (1.0 + goes_on(miss) - goes_on(hit))
    emitted = [sum(both**at for at in range(length + 1)) for length in lengths]
    tokens = (1.0 - hit_share) * emitted[0] + hit_share * emitted[1]
    longer, shorter, share = (
        (hit_wait_us, miss_wait_us, hit_share) if hit_wait_us > miss_wait_us else (miss_wait_us, hit_wait_us, 1.0 - hit_share)
    )
    wait_us = shorter + (1.0 - (1.0 - share) ** n) * (longer - shorter)
    round_us = wait_us + (1.0 - hit_share) * step_us(miss) + hit_share * step_us(hit)
    flow = rates.leave_len / (2.0 * rates.link_us + step_us(hit) + hit_wait_us)
    if not miss:
        flow = max(flow, 1.0 / (step_us(0) + unheard_wait_us))
    return min(tokens / round_us, flow)


@pytest.mark.parametrize("seed", range(12))
def test_the_best_pair_of_lengths_is_that_of_the_definition(seed: int) -> None:
    random = Random(seed)
    row_us, draft_us, link_us = random.choice((0.0, 10.0, 60.0)), random.choice((40.0, 150.0, 700.0)), random.choice((20.0, 300.0, 4_000.0))
    cost = CostCurve(tuple((rows, 600.0 + row_us * (rows - 1)) for rows in (1, 4, 16, 64, 256)))
    rates = measured_rates(cost, random.choice((1, 1, 3)), draft_us, link_us, 80.0, random.choice((0.0, 90.0)), random.choice((16, 64)))
    right, goes = random.choice((0.3, 0.7, 0.9, 0.97)), random.choice((0.9, 1.0))
    num_unheard, wait_us = random.choice(((1, 0.0), (3, 0.0), (2, 120.0)))
    found = _ahead_course(rates, (right, goes, 0.0, 0.0), (), num_unheard, wait_us)
    useful_len = math.ceil(math.log(HARDLY_EVER) / math.log(min(ALMOST_ONE, right * goes)))
    pairs = itertools.product(range(MAX_WAIT_LEN + 1), range(1, min(useful_len, MAX_WAIT_LEN) + 1))
    best = max(speed_of(rates, right, goes, pair, num_unheard, wait_us) for pair in pairs)
    assert found.tokens_per_us == pytest.approx(best, rel=1e-9)
    assert speed_of(rates, right, goes, (found.miss_len, found.hit_len), num_unheard, wait_us) == pytest.approx(best, rel=1e-9)
