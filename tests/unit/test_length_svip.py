"""SVIP's rule: sqrt(0.15 * entropy) above the threshold ends the draft, after the guess that fired."""

from __future__ import annotations

import math

import pytest

from outrider.drafting.length.registry import rules_for
from outrider.drafting.length.svip import ENTROPY_FACTOR, SvipStop
from outrider.types.frames import DraftLimits

PAPERS_THRESHOLD = 0.3
LIMITS = DraftLimits(max_len=100, svip_threshold=PAPERS_THRESHOLD)


def test_the_papers_threshold_allows_six_tenths_of_a_nat() -> None:
    edge = PAPERS_THRESHOLD**2 / ENTROPY_FACTOR
    assert edge == pytest.approx(0.6)
    assert not SvipStop().stops(LIMITS, 0.1, edge - 1e-9)
    assert SvipStop().stops(LIMITS, 0.9, edge + 1e-9)


def test_a_uniform_choice_of_two_fires_and_a_sure_one_does_not() -> None:
    assert SvipStop().stops(LIMITS, 0.5, math.log(2))
    assert not SvipStop().stops(LIMITS, 1.0, 0.0)


def test_an_entropy_that_rounding_made_negative_is_none() -> None:
    assert not SvipStop().stops(LIMITS, 1.0, -1e-7)


def test_it_is_off_unless_asked_for_and_sends_its_trigger() -> None:
    assert not SvipStop().applies(DraftLimits(max_len=100))
    assert [rule.name for rule in rules_for(LIMITS)] == ["svip"]
    assert SvipStop().sends_trigger
