"""Compiled log-probabilities are those of the logits' softmax, and the best few those that a sort finds; a row's numbers are its own,
whatever rows are beside it and however many threads there are. Broken copies of the C file show that the comparisons would notice.

Run: pytest tests/kernels/test_thin_logprobs.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from broken_c import break_thin
from mostly_slow import mostly_slow
from outrider_kernels.thin_logprobs import ThinLogprobs
from outrider_kernels.thin_team import ThinTeam

FloatArray = npt.NDArray[np.float32]

SHAPES = ((1, 1, 1), (3, 7, 3), (5, 1000, 20), (2, 1027, 5), (4, 8193, 0), (2, 50_000, 20))  # rows, ids, best ones


def rows_of(num_rows: int, num_ids: int, seed: int) -> FloatArray:
    """Padding behind them; some ids at -inf, ties, and one row far from 0."""
    chance = np.random.default_rng(seed)
    logits = (chance.standard_normal((num_rows, num_ids + 5)) * 4).astype(np.float32)
    logits[:, num_ids:] = 99.0
    if num_ids > 100:
        logits[:, chance.integers(0, num_ids, num_ids // 4)] = -np.inf
        logits[:, chance.integers(0, num_ids, 9)] = 15.0
        logits[-1] += np.float32(3000.0)
    return logits[:, :num_ids]


def check(num_threads: int = 1) -> None:
    scorer = ThinLogprobs(ThinTeam(num_threads))
    for seed, (num_rows, num_ids, num_top) in enumerate(SHAPES):
        logits = rows_of(num_rows, num_ids, seed)
        rows = [*range(num_rows), 0]
        tokens = [int(token) for token in np.random.default_rng(seed).integers(0, num_ids, len(rows))]
        found = scorer.run(logits, rows, tokens, num_top)
        assert found is not None
        own = logits[rows].astype(np.float64)
        with np.errstate(divide="ignore"):
            right = own - own.max(1, keepdims=True) - np.log(np.exp(own - own.max(1, keepdims=True)).sum(1, keepdims=True))
        order = np.argsort(-own, axis=1, kind="stable")[:, :num_top]
        chosen, top_ids, top = found
        np.testing.assert_allclose(chosen, right[range(len(rows)), tokens], rtol=1e-6, atol=1e-6)
        assert np.array_equal(top_ids, order)
        np.testing.assert_allclose(top, np.take_along_axis(right, order, 1), rtol=1e-6, atol=1e-6)
        alone = scorer.run(logits, rows[1:2], tokens[1:2], num_top)
        assert alone is None or all((one == many[1:2]).all() for one, many in zip(alone, found, strict=True))


@pytest.mark.parametrize("num_threads", [1, 3])
def test_log_probabilities_are_those_of_softmax(num_threads: int) -> None:
    check(num_threads)


def test_a_row_with_too_few_tokens_is_left() -> None:
    scorer, logits = ThinLogprobs(ThinTeam(1)), np.full((2, 30), -np.inf, np.float32)
    logits[0], logits[1, 4:7] = 1.0, 2.0
    assert scorer.run(logits, [0, 1], [4, 4], 3) is not None
    assert scorer.run(logits, [0, 1], [4, 4], 4) is None
    assert scorer.run(np.full((1, 30), np.nan, np.float32), [0], [4], 1) is None


def test_what_does_not_fit_is_refused() -> None:
    scorer, logits = ThinLogprobs(ThinTeam(1)), np.zeros((2, 30), np.float32)
    for rows, tokens, num_top in (([2], [0], 1), ([0], [30], 1), ([-1], [0], 1), ([0], [-1], 1), ([0, 1], [0], 1), ([0], [0], 31)):
        with pytest.raises(ValueError, match="logits of"):
            scorer.run(logits, rows, tokens, num_top)
    with pytest.raises(ValueError, match="float64"):
        scorer.run(logits.astype(np.float64), [0], [0], 1)
    empty = scorer.run(logits, [], [], 2)
    assert empty is not None
    assert [part.shape for part in empty] == [(0,), (0, 2), (0, 2)]


BREAKS = {
    "a part of the mass": ("begin += PART", "begin += 2 * PART"),
    "not relative to the best": ("- splat(best));", "- splat(0.0f));"),
    "another token's": ("row->logits[row->token] - normaliser", "row->logits[0] - normaliser"),
    "of the best as they are": ("best.at[at].value - normaliser", "best.at[at].value"),
}


@pytest.mark.parametrize("broken", mostly_slow(BREAKS, 2))
def test_a_broken_copy_would_be_noticed(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_thin(monkeypatch, tmp_path, "logprobs.c", *BREAKS[broken])
    with pytest.raises(AssertionError):
        check()
