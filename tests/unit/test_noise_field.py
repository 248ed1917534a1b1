"""The field's law and its two implementations; each statistical check is shown to catch a deliberately broken field.

Fixed inputs, so a result never changes; thresholds are such that a sound generator fails with probability below 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from outrider.engine import noise_torch
from outrider.noise.exact_log import natural_log
from outrider.noise.field import bits, gumbel, gumbel_of, uniform, uniform_of
from outrider.noise.keys import Purpose, derive_key

Bits = npt.NDArray[np.uint64]
Field = Callable[[int, npt.NDArray[np.int64], npt.NDArray[np.int64]], Bits]

KEY = derive_key(20240607, 0, 0, Purpose.PICK)
FALSE_ALARM = 1e-6
EXTREMES = np.array([2.0**-53, 1.0 - 2.0**-53, 0.5, math.exp(-1.0), math.sqrt(0.5), 1.0 - 2.0**-20])


def forgetful_of_position(key: int, positions: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> Bits:
    return bits(key, np.zeros_like(positions), tokens)


def of_sixteen_bits(key: int, positions: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> Bits:
    coarse = bits(key, positions, tokens) >> np.uint64(48)
    return (coarse << np.uint64(48)) | np.uint64(1 << 47)


def of_the_sum(key: int, positions: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> Bits:
    return bits(key, np.zeros_like(positions), positions + tokens)


def test_numpy_and_torch_agree_in_every_bit() -> None:
    positions = np.arange(1050, dtype=np.int64)[:, None] * 37
    tokens = np.arange(1000, dtype=np.int64)
    ours = gumbel(KEY, positions, tokens)
    theirs = noise_torch.gumbel(torch.tensor([noise_torch.signed64(KEY)]), torch.from_numpy(positions), torch.from_numpy(tokens))
    assert ours.size == 1_050_000
    assert np.array_equal(ours.view(np.int32), theirs.numpy().view(np.int32))


def test_numpy_and_torch_logarithms_agree_where_the_field_is_extreme() -> None:
    for x in (EXTREMES, -natural_log(EXTREMES)):
        assert np.array_equal(natural_log(x).view(np.int64), noise_torch.natural_log(torch.from_numpy(x)).numpy().view(np.int64))


def test_logarithm_is_within_an_ulp() -> None:
    uniforms = np.concatenate([uniform_of(bits(KEY, 3, np.arange(200_000))), EXTREMES])
    for x in (uniforms, -natural_log(uniforms)):
        found = natural_log(x)
        error = np.abs(found.astype(np.longdouble) - np.log(x.astype(np.longdouble))) / np.spacing(np.abs(found))
        assert float(error.max()) < 1.01


def test_uniform_scalar_is_the_field() -> None:
    for position, ordinal in ((0, 0), (5, 3), (123_456, 77)):
        assert uniform(KEY, position, ordinal) == float(uniform_of(bits(KEY, position, ordinal))[0])


def test_extreme_bits_stay_inside_the_open_interval() -> None:
    extreme = np.array([0, (1 << 64) - 1], np.uint64)
    assert uniform_of(extreme).tolist() == [2.0**-53, 1.0 - 2.0**-53]
    assert np.isfinite(gumbel_of(extreme)).all()


def gumbel_law(field: Field) -> float:
    values = gumbel_of(field(KEY, np.arange(200)[:, None], np.arange(1000))).ravel()
    return float(stats.kstest(values, "gumbel_r").pvalue)


def tail_law(field: Field) -> float:
    """Whether values above 12 (probability 6e-6 each) turn up as often as they should among four million."""
    below = math.exp(-math.exp(-12.0))
    uniforms = uniform_of(field(KEY, np.arange(2000)[:, None], np.arange(2000)))
    return float(stats.binomtest(int((uniforms > below).sum()), uniforms.size, 1.0 - below).pvalue)


def neighbour_law(field: Field) -> float:
    """Independence of the bits at neighbouring positions: 16 x 16 table of the top nibbles."""
    noise = field(KEY, np.arange(501)[:, None], np.arange(400)) >> np.uint64(60)
    pairs = (noise[:-1] * np.uint64(16) + noise[1:]).ravel()
    return float(stats.chisquare(np.bincount(pairs.astype(np.int64), minlength=256)).pvalue)


def diagonal_law(field: Field) -> float:
    """Independence of (position, token) and (position + 1, token - 1)."""
    noise = field(KEY, np.arange(501)[:, None], np.arange(401)) >> np.uint64(60)
    pairs = (noise[:-1, 1:] * np.uint64(16) + noise[1:, :-1]).ravel()
    return float(stats.chisquare(np.bincount(pairs.astype(np.int64), minlength=256)).pvalue)


def column_law(field: Field) -> float:
    """One token along positions is uniform in its own right."""
    values = uniform_of(field(KEY, np.arange(100_000), np.full(100_000, 17)))
    return float(stats.kstest(values, "uniform").pvalue)


LAWS = (gumbel_law, tail_law, neighbour_law, diagonal_law, column_law)


@pytest.mark.parametrize("law", LAWS)
def test_field_obeys(law: Callable[[Field], float]) -> None:
    assert law(bits) > FALSE_ALARM


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        (gumbel_law, forgetful_of_position),
        (tail_law, of_sixteen_bits),
        (neighbour_law, forgetful_of_position),
        (diagonal_law, of_the_sum),
        (column_law, forgetful_of_position),
    ],
)
def test_broken_field_is_caught(law: Callable[[Field], float], broken: Field) -> None:
    assert law(broken) < FALSE_ALARM


def test_samples_branches_and_purposes_are_independent() -> None:
    keys = [derive_key(7, 0, 0, Purpose.PICK), derive_key(7, 1, 0, Purpose.PICK), derive_key(7, 0, 1, Purpose.PICK)]
    keys += [derive_key(7, 0, 0, purpose) for purpose in (Purpose.DRAFT, Purpose.ACCEPT, Purpose.RESIDUAL)]
    assert len(set(keys)) == len(keys)
    values = [uniform_of(bits(key, 0, np.arange(20_000))) for key in keys]
    correlations = np.asarray(np.corrcoef(values))[np.triu_indices(len(keys), 1)]
    assert float(np.abs(correlations).max()) < 5.5 / math.sqrt(20_000)


def test_no_value_repeats_over_a_large_answer() -> None:
    noise = bits(KEY, np.arange(200)[:, None], np.arange(1000)).ravel()
    assert len(np.unique(noise >> np.uint64(12))) == noise.size
    assert len(np.unique(of_sixteen_bits(KEY, np.arange(200)[:, None], np.arange(1000)) >> np.uint64(12))) < noise.size
