"""The fast pick equals its slow definition always: every filter, ties on purpose, extreme temperatures, many requests in one call."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from outrider.engine.sampling import pick as pick_module
from outrider.engine.sampling import survivors
from outrider.engine.sampling.pick import pick
from outrider.engine.sampling.rows import RowSampling
from outrider.noise.field import MAX_GUMBEL, bits
from outrider.noise.reference_pick import pick_processed, reference_pick
from outrider.types.sampling import SamplingParams

Logits = npt.NDArray[np.float32]

MANY_PARAMS = (
    SamplingParams(),
    SamplingParams(temperature=0.0, top_k=3, top_p=0.5),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=0.8, top_k=20),
    SamplingParams(temperature=1.3, top_k=20, top_p=0.7, min_p=0.02),
    SamplingParams(min_p=0.05),
    SamplingParams(temperature=0.8, top_p=0.5, min_p=0.1),
    SamplingParams(temperature=0.05),
    SamplingParams(temperature=3.0, top_p=0.99),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=10.0, top_p=1e-6),
    SamplingParams(temperature=1e-8),
    SamplingParams(temperature=1e-40, top_p=0.5),
)


def random_rows(generator: np.random.Generator) -> list[RowSampling]:
    return [
        RowSampling(params, int(generator.integers(0, 1 << 63)) * 2 + 1, generator.integers(0, 10_000, int(generator.integers(1, 4))))
        for params in MANY_PARAMS
    ]


def slow_picks(logits: Logits, rows: list[RowSampling]) -> list[int]:
    addressed = [(entry, int(position)) for entry in rows for position in entry.positions]
    return [
        reference_pick(row, entry.params, entry.key, position, [], []) for row, (entry, position) in zip(logits, addressed, strict=True)
    ]


@pytest.mark.parametrize("vocab", [1, 2, 7, 50, 2021])
@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0, 10.0])
@pytest.mark.parametrize("rounded", [False, True])
def test_pick_equals_its_definition(vocab: int, scale: float, rounded: bool) -> None:
    generator = np.random.default_rng(vocab + int(10 * scale))
    rows = random_rows(generator)
    logits = (generator.standard_normal((sum(entry.num_rows for entry in rows), vocab)) * scale).astype(np.float32)
    if rounded:
        logits = np.round(logits)  # ties everywhere, also at the filters' boundaries
    assert pick(torch.from_numpy(logits), rows).tolist() == slow_picks(logits, rows)


def test_pick_with_masked_ids() -> None:
    generator = np.random.default_rng(3)
    rows = random_rows(generator)
    logits = generator.standard_normal((sum(entry.num_rows for entry in rows), 300)).astype(np.float32)
    logits[:, 5:] = -np.inf
    assert pick(torch.from_numpy(logits), rows).tolist() == slow_picks(logits, rows)


def test_near_ties_of_scores_are_decided_by_the_canonical_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits set so that the two best scores differ by less than the approximation resolves."""
    generator = np.random.default_rng(5)
    params, key, vocab = SamplingParams(temperature=0.7), 99, 40
    decided: list[int] = []

    def counting(processed: Logits, params: SamplingParams, key: int, position: int) -> int:
        decided.append(position)
        return pick_processed(processed, params, key, position)

    monkeypatch.setattr(pick_module, "pick_processed", counting)
    logits = generator.standard_normal((200, vocab)).astype(np.float32)
    positions = np.arange(200)
    for row, position in enumerate(positions):
        noise = pick_module.approximate_gumbel(bits(key, position, np.arange(vocab)))
        scores = logits[row] + 0.7 * noise
        second, best = np.argsort(scores)[-2:]
        logits[row, second] += np.float32(scores[best] - scores[second])
    rows = [RowSampling(params, key, positions)]
    assert pick(torch.from_numpy(logits), rows).tolist() == slow_picks(logits, rows)
    assert len(decided) > 150


def test_survivors_of_the_device_path_equal_those_of_the_cpu_path() -> None:
    generator = np.random.default_rng(8)
    logits = torch.from_numpy((generator.standard_normal((20, 700)) * 2).astype(np.float32))
    best = logits.amax(dim=1).numpy().astype(np.float64)
    temperatures, bounds = np.full(20, 0.9), generator.standard_normal(20)
    subkeys = generator.integers(0, 1 << 63, 20).astype(np.uint64)
    weights = survivors._weights(logits, best, temperatures, bounds)
    for left, right in zip(survivors._select_numpy(weights, subkeys), survivors._select_torch(weights, subkeys), strict=True):
        assert np.array_equal(left, right)


def test_without_the_loose_bound_winners_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison with the definition can fail: a bulk stage that drops tokens it must keep is caught."""
    generator = np.random.default_rng(11)
    logits = generator.standard_normal((300, 50)).astype(np.float32)
    rows = [RowSampling(SamplingParams(), 5, np.arange(300))]
    assert pick(torch.from_numpy(logits), rows).tolist() == slow_picks(logits, rows)
    monkeypatch.setattr(survivors, "SLACK", -0.5)
    with pytest.raises((AssertionError, IndexError)):
        assert pick(torch.from_numpy(logits), rows).tolist() == slow_picks(logits, rows)


def test_greedy_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros(2, 10)
    logits[1, [4, 7]] = 1.0
    assert pick(logits, [RowSampling(SamplingParams(temperature=0.0), 1, np.array([3, 4]))]).tolist() == [0, 4]


def test_pick_does_not_depend_on_neighbours() -> None:
    generator = np.random.default_rng(4)
    rows = random_rows(generator)
    logits = torch.from_numpy(generator.standard_normal((sum(entry.num_rows for entry in rows), 64)).astype(np.float32))
    together = pick(logits, rows).tolist()
    begin = 0
    for entry in rows:
        end = begin + entry.num_rows
        assert pick(logits[begin:end], [entry]).tolist() == together[begin:end]
        begin = end


def test_no_rows_give_no_picks() -> None:
    assert pick(torch.empty(0, 5), []).tolist() == []


def test_the_largest_gumbel_is_below_its_bound() -> None:
    extreme = pick_module.approximate_gumbel(np.array([(1 << 64) - 1], np.uint64))
    assert 36.7 < float(extreme[0]) < MAX_GUMBEL


def test_a_tiny_nucleus_in_a_flat_row_takes_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flat logits and a small top-p: almost every survivor lies outside the nucleus, and failures must rule out whole groups of them."""
    generator = np.random.default_rng(12)
    logits = (generator.standard_normal((30, 2000)) * 0.01).astype(np.float32)
    rows = [RowSampling(SamplingParams(top_p=0.02), 5, np.arange(30))]
    slow: list[int] = []

    def counting(processed: Logits, params: SamplingParams, key: int, position: int) -> int:
        slow.append(position)
        return pick_processed(processed, params, key, position)

    monkeypatch.setattr(pick_module, "pick_processed", counting)
    assert pick(torch.from_numpy(logits), rows).tolist() == slow_picks(logits, rows)
    assert len(slow) <= 3
