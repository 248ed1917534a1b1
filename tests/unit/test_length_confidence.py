"""The confidence rule fires strictly below its bar, keeps the improbable guess to itself, and looks at nothing else."""

from __future__ import annotations

import pytest

from outrider.drafting.length.confidence import ConfidenceStop
from outrider.drafting.length.registry import rules_for
from outrider.types.frames import DraftLimits

LIMITS = DraftLimits(max_len=100, stop_below=0.6)


@pytest.mark.parametrize(("best_prob", "fires"), [(0.0, True), (0.599, True), (0.6, False), (1.0, False)])
@pytest.mark.parametrize("entropy", [0.0, 5.0])
def test_it_fires_below_the_bar_whatever_the_entropy(best_prob: float, entropy: float, fires: bool) -> None:
    assert ConfidenceStop().stops(LIMITS, best_prob, entropy) is fires


def test_it_is_off_unless_asked_for() -> None:
    assert ConfidenceStop().applies(LIMITS)
    assert not ConfidenceStop().applies(DraftLimits(max_len=100))
    assert [rule.name for rule in rules_for(LIMITS)] == ["confidence"]


def test_the_guess_that_fired_is_not_sent() -> None:
    assert not ConfidenceStop().sends_trigger
