"""Gumbel-top-k choices, processed probabilities and logprobs against their slow definitions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from outrider.engine.sampling import choices as choices_module
from outrider.engine.sampling.choices import top_choices
from outrider.engine.sampling.logprobs import logprobs
from outrider.engine.sampling.penalty_state import PenaltyState
from outrider.engine.sampling.pick import pick
from outrider.engine.sampling.probs import processed_probs
from outrider.engine.sampling.rows import RowSampling
from outrider.noise.reference_pick import perturbed, reference_probs, support
from outrider.types.sampling import SamplingParams

Logits = npt.NDArray[np.float32]

MANY_PARAMS = (
    SamplingParams(),
    SamplingParams(temperature=0.0, top_k=2),
    SamplingParams(temperature=0.8, top_p=0.9),
    SamplingParams(temperature=0.8, top_k=3),
    SamplingParams(temperature=1.3, top_k=20, top_p=0.7, min_p=0.02),
    SamplingParams(temperature=0.8, top_p=0.5, min_p=0.1),
    SamplingParams(temperature=3.0, top_p=0.99),
    SamplingParams(temperature=0.1),
    SamplingParams(temperature=1e-10),
)


def slow_choices(logits: Logits, params: SamplingParams, key: int, position: int) -> npt.NDArray[np.int64]:
    """Every draw the distribution allows, in order."""
    if params.temperature == 0.0:
        return np.argsort(-logits, kind="stable")
    kept = support(logits, params)
    return kept[np.argsort(-perturbed(logits, kept, params.temperature, key, position), kind="stable")]


def random_case(vocab: int, scale: float, rounded: bool) -> tuple[Logits, list[RowSampling]]:
    generator = np.random.default_rng(vocab + int(10 * scale))
    rows = [RowSampling(params, int(generator.integers(0, 1 << 62)), generator.integers(0, 9999, 2)) for params in MANY_PARAMS]
    logits = (generator.standard_normal((2 * len(rows), vocab)) * scale).astype(np.float32)
    return (np.round(logits) if rounded else logits), rows


@pytest.mark.parametrize("vocab", [1, 3, 40, 1500])
@pytest.mark.parametrize("scale", [0.0, 1.0, 6.0])
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("k", [1, 4])
def test_choices_equal_their_definition(vocab: int, scale: float, rounded: bool, k: int) -> None:
    logits, rows = random_case(vocab, scale, rounded)
    found = top_choices(torch.from_numpy(logits), rows, k)
    assert found.ids.shape == (len(logits), min(k, vocab))
    assert found.ids[:, 0].tolist() == pick(torch.from_numpy(logits), rows).tolist()
    addressed = [(entry, int(position)) for entry in rows for position in entry.positions]
    for row, (entry, position) in enumerate(addressed):
        expected = slow_choices(logits[row], entry.params, entry.key, position)[:k].tolist()
        assert found.ids[row, : len(expected)].tolist() == expected
        assert len(set(found.ids[row].tolist())) == found.ids.shape[1]
        assert torch.isfinite(found.scores[row]).tolist() == [True] * len(expected) + [False] * (found.ids.shape[1] - len(expected))
        assert not found.probs[row, len(expected) :].any()


@pytest.mark.parametrize("scale", [0.5, 5.0])
def test_probs_and_entropy_are_those_of_the_processed_distribution(scale: float) -> None:
    logits, rows = random_case(400, scale, rounded=False)
    found = top_choices(torch.from_numpy(logits), rows, 4)
    exact = processed_probs(torch.from_numpy(logits), rows).numpy()
    for row, params in enumerate([entry.params for entry in rows for _ in entry.positions]):
        expected = reference_probs(logits[row], params)
        assert np.allclose(exact[row], expected, rtol=1e-12, atol=0.0)
        if params.temperature == 0.0:
            expected = reference_probs(logits[row], SamplingParams())  # confidence, since a point mass says nothing
        ids = found.ids[row].numpy()
        assert np.allclose(found.probs[row].numpy(), expected[ids], rtol=1e-4, atol=1e-7)
        positive = expected[expected > 0.0]
        assert float(found.entropy[row]) == pytest.approx(float(-(positive * np.log(positive)).sum()), abs=1e-4)


def test_near_ties_of_draws_are_decided_by_the_canonical_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a margin that calls everything a near tie the canonical way decides all, and nothing changes."""
    logits, rows = random_case(100, 2.0, rounded=False)
    quick = top_choices(torch.from_numpy(logits), rows, 4)
    monkeypatch.setattr(choices_module, "score_margin", lambda temperatures, best: np.full(len(temperatures), 1e9))
    canonical = top_choices(torch.from_numpy(logits), rows, 4)
    assert torch.equal(quick.ids, canonical.ids)
    assert torch.allclose(quick.scores, canonical.scores, atol=1e-5)


def test_scores_that_only_rounding_makes_equal_go_to_the_lowest_id() -> None:
    """So cold that the noise drops out of the sum: equal logits tie, and topk fetches any of them."""
    generator = np.random.default_rng(9)
    logits = np.round(generator.standard_normal((400, 10))).astype(np.float32) + np.float32(3.0)
    params, positions = SamplingParams(temperature=1e-25), np.arange(400)
    found = top_choices(torch.from_numpy(logits), [RowSampling(params, 77, positions)], 1).ids.tolist()
    assert found == [slow_choices(row, params, 77, position)[:1].tolist() for position, row in enumerate(logits)]


def test_choices_follow_the_path() -> None:
    logits = torch.zeros(2, 6)
    logits[:, 2] = 1.0
    params = SamplingParams(temperature=0.0, frequency_penalty=2.0)
    rows = [RowSampling(params, 1, np.array([7, 8]), PenaltyState(params), ([], [2]))]
    assert top_choices(logits, rows, 3).ids.tolist() == [[2, 0, 1], [0, 1, 3]]
    assert processed_probs(logits, rows).argmax(dim=1).tolist() == [2, 0]


def test_logprobs_are_raw() -> None:
    generator = np.random.default_rng(2)
    logits = torch.from_numpy(generator.standard_normal((3, 20)).astype(np.float32))
    chosen, top_ids, top = logprobs(logits, torch.tensor([4, 5, 6]), 2)
    expected = torch.log_softmax(logits, dim=1)
    assert torch.allclose(chosen, expected[torch.arange(3), torch.tensor([4, 5, 6])], atol=1e-6)
    assert torch.equal(top_ids, expected.topk(2, dim=1).indices)
    assert torch.allclose(top, expected.topk(2, dim=1).values, atol=1e-6)
    assert logprobs(logits, torch.tensor([4, 5, 6]), 0)[1].shape == (3, 0)
