"""Compiled or in numpy, quick picks are the general pick's where they are made, whatever stands beside them, and open where they are not.

Run: pytest tests/unit/test_sampling_quick_picks.py
"""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import pytest
import torch

from outrider.engine.sampling.penalties import apply_penalties
from outrider.engine.sampling.penalty_state import PenaltyState
from outrider.engine.sampling.pick import pick
from outrider.engine.sampling.pick_probs import pick_probs
from outrider.engine.sampling.quick_picks import MAX_SINGLE_ROWS, QuickRows, quick_picks
from outrider.engine.sampling.rows import RowSampling
from outrider.types.sampling import SamplingParams
from outrider_kernels.thin_pick import LEFT, MAX_TOP_K, ThinPick
from outrider_kernels.thin_team import ThinTeam

NUM_IDS = 300
PLAIN = SamplingParams(temperature=0.8, top_p=0.9)
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(params=["compiled", "numpy"])
def picker(request: pytest.FixtureRequest) -> ThinPick | None:
    return ThinPick(ThinTeam(1)) if request.param == "compiled" else None


def rows(params: SamplingParams, num_rows: int, *, with_prob: bool = True, with_second: bool = False, is_open: bool = False) -> QuickRows:
    seen = PenaltyState(params, [1], [2, 3]) if params.has_penalties else None
    return QuickRows(RowSampling(params, 99, np.arange(num_rows), seen), with_prob, with_second, is_open)


def logits_of(groups: list[QuickRows]) -> torch.Tensor:
    num_rows = sum(group.sampling.num_rows for group in groups)
    return torch.from_numpy(np.random.default_rng(3).standard_normal((num_rows, NUM_IDS + 5)).astype(np.float32) * 4)[:, :NUM_IDS]


def test_sequences_of_all_kinds_side_by_side(picker: ThinPick | None) -> None:
    quick = [rows(SamplingParams(temperature=0.8), 9), rows(GREEDY, 1), rows(SamplingParams(min_p=0.1), 1), rows(PLAIN, 0), rows(GREEDY, 1)]
    touched = [
        rows(SamplingParams(repetition_penalty=1.3), 3),
        rows(SamplingParams(temperature=0.0, frequency_penalty=0.4), 1),
        rows(SamplingParams(logit_bias=((3, 9.0),)), 2),
    ]
    slow = [rows(SamplingParams(top_k=MAX_TOP_K + 1), 3), rows(PLAIN, 2, is_open=True), *([] if picker is not None else touched)]
    groups = [group for pair in zip_longest(slow, quick, touched if picker is not None else []) for group in pair if group is not None]
    logits = logits_of(groups)
    expected = pick(logits, [group.sampling for group in groups]).numpy()
    found = quick_picks(logits, groups, picker)
    picks, probs = found.tokens, found.probs
    begin = 0
    for group in groups:
        own = slice(begin, begin + group.sampling.num_rows)
        begin = own.stop
        if group in slow:
            assert (picks[own] == LEFT).all()
            assert np.isnan(probs[own]).all()
            continue
        np.testing.assert_array_equal(picks[own], expected[own])
        temperatures = [group.sampling.params.temperature] * group.sampling.num_rows
        np.testing.assert_allclose(
            probs[own], pick_probs(apply_penalties(logits[own], [group.sampling]), temperatures, picks[own]), rtol=1e-4
        )


def test_no_rows_have_no_picks(picker: ThinPick | None) -> None:
    found = quick_picks(torch.empty(0, NUM_IDS), [rows(PLAIN, 0)], picker)
    assert len(found.tokens) == len(found.probs) == 0


def test_logits_that_are_no_numbers_are_left(picker: ThinPick | None) -> None:
    for params in (PLAIN, GREEDY):
        logits = logits_of([rows(params, 1)])
        logits[0, 7] = torch.nan
        found = quick_picks(logits, [rows(params, 1)], picker)
        assert found.tokens.tolist() == [LEFT]
        assert np.isnan(found.probs).all()


def test_probabilities_that_nobody_asks_for_are_not_given(picker: ThinPick | None) -> None:
    for params in (PLAIN, GREEDY):
        groups = [rows(params, 1, with_prob=False)]
        assert np.isnan(quick_picks(logits_of(groups), groups, picker).probs).all()


def test_numpy_leaves_many_rows_to_the_general_pick_and_the_compiled_pick_none(picker: ThinPick | None) -> None:
    for groups in ([rows(PLAIN, MAX_SINGLE_ROWS + 1)], [rows(GREEDY, 2)]):
        picks = quick_picks(logits_of(groups), groups, picker).tokens
        assert (picks == LEFT).all() if picker is None else (picks != LEFT).all()


def test_numpy_leaves_rows_whose_seconds_are_wanted_and_the_compiled_pick_finds_them(picker: ThinPick | None) -> None:
    groups = [rows(SamplingParams(temperature=0.8), 1, with_second=True), rows(PLAIN, 1)]
    found = quick_picks(logits_of(groups), groups, picker)
    assert (found.tokens == LEFT).tolist() == [picker is None, False]
    assert (found.seconds is None) is (picker is None)
    if found.seconds is not None:
        assert found.seconds[0] not in (LEFT, found.tokens[0])
        assert found.seconds[1] == LEFT
