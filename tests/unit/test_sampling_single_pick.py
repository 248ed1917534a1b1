"""The one-row pick either equals the definition or says that it cannot tell; probabilities are softmax's own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from outrider.engine.sampling.pick_probs import pick_probs
from outrider.engine.sampling.single_pick import SinglePick, pick_single
from outrider.noise.reference_pick import pick_processed
from outrider.types.sampling import SamplingParams

Logits = npt.NDArray[np.float32]

PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=0.8, top_p=0.3),
    SamplingParams(temperature=1.0, min_p=0.1),
    SamplingParams(temperature=1.5, top_p=0.95, min_p=0.02),
    SamplingParams(temperature=0.05),
    SamplingParams(temperature=8.0),
    SamplingParams(temperature=1e-5),
)


def random_logits(generator: np.random.Generator, vocab: int, scale: float, rounded: bool) -> Logits:
    logits = (generator.standard_normal(vocab) * scale).astype(np.float32)
    return np.round(logits) if rounded else logits


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("rounded", [False, True])
def test_it_equals_the_definition_wherever_it_decides(params: SamplingParams, rounded: bool) -> None:
    generator = np.random.default_rng(11)
    decided = 0
    for case in range(300):
        logits = random_logits(generator, (1, 2, 50, 2021)[case % 4], (0.3, 3.0, 10.0)[case % 3], rounded)
        single = pick_single(logits, params, 987_654_321, case, with_prob=False)
        if single is not None:
            decided += 1
            assert single.token == pick_processed(logits, params, 987_654_321, case)
    assert decided > (270 if params.top_p == 1.0 else 120)


def test_masked_ids_are_never_picked() -> None:
    generator = np.random.default_rng(2)
    for position in range(200):
        logits = random_logits(generator, 300, 2.0, rounded=False)
        logits[5:] = -np.inf
        single = pick_single(logits, SamplingParams(), 5, position, with_prob=True)
        assert single is not None
        assert single.token == pick_processed(logits, SamplingParams(), 5, position)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 4.0])
def test_probabilities_are_those_of_softmax(temperature: float) -> None:
    generator = np.random.default_rng(4)
    logits = np.stack([random_logits(generator, 2021, 3.0, rounded=False) for _ in range(40)])
    params = SamplingParams(temperature=temperature)
    singles = [pick_single(row, params, 77, position, with_prob=True) for position, row in enumerate(logits)]
    found = [single if single is not None else pytest.fail("undecided") for single in singles]
    exact = torch.softmax(torch.from_numpy(logits).double() / (temperature or 1.0), dim=1).numpy()
    wanted = [float(row[single.token]) for row, single in zip(exact, found, strict=True)]
    np.testing.assert_allclose([single.prob for single in found], wanted, rtol=1e-4)
    picks = np.array([single.token for single in found], np.int32)
    np.testing.assert_allclose(pick_probs(torch.from_numpy(logits), [temperature] * 40, picks), wanted, rtol=1e-4)


def test_top_k_and_near_ties_are_left_to_the_general_pick() -> None:
    logits = random_logits(np.random.default_rng(1), 100, 1.0, rounded=False)
    assert pick_single(logits, SamplingParams(top_k=5), 1, 1, with_prob=False) is None
    twin = np.zeros(2, np.float32)
    undecided = [pick_single(twin, SamplingParams(temperature=1e-6), 3, position, with_prob=False) for position in range(50)]
    assert any(isinstance(single, SinglePick) for single in undecided)  # noise decides equal logits
    assert all(
        single is None or single.token == pick_processed(twin, SamplingParams(temperature=1e-6), 3, position)
        for position, single in enumerate(undecided)
    )
