"""Coupled acceptance against its theory: the picks follow the exact distribution, and P(a = b) is the formula of 2408.07978.

init: a small vocabulary whose distribution is enumerated by hand; test: chi-square of 20,000 picks; check: p above 1e-6 for ours and
below for a deliberately broken twin. Fixed addresses, so a result never changes.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from outrider.engine.acceptance.contract import AcceptanceNoise, ProbArray, TargetRows
from outrider.engine.acceptance.coupled import CoupledAcceptance
from outrider.engine.sampling import single_pick
from outrider.engine.sampling.choices import top_choices
from outrider.engine.sampling.penalty_state import PenaltyState
from outrider.engine.sampling.pick import pick
from outrider.engine.sampling.rows import RowSampling
from outrider.engine.sampling.single_pick import pick_single
from outrider.noise.keys import Purpose, derive_key
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import DraftTree

FALSE_ALARM = 1e-6
NUM_DRAWS = 20_000
KEY = derive_key(408, 0, 0, Purpose.PICK)
LOGITS: npt.NDArray[np.float32] = np.array([2.0, 1.5, 1.5, 1.0, 0.3, -0.2, -1.0, -1.0, -2.0, -3.5], np.float32)
PROMPT, OUTPUT, PATH = [0, 4, 4], [1, 1, 6], [2, 1]
PENALISED = SamplingParams(
    temperature=0.9, top_p=0.95, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2, logit_bias=((3, 0.8),)
)
PARAMS = (
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.7, top_k=4),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.12),
    SamplingParams(temperature=1.2, top_k=8, top_p=0.9, min_p=0.08),
    PENALISED,
)


def enumerated(params: SamplingParams) -> ProbArray:
    """The exact distribution in plain arithmetic, written from docs/noise.md and sharing no code with the engine."""
    counts, values = Counter(OUTPUT + PATH), []
    for token, logit in enumerate(LOGITS.tolist()):
        value = logit + dict(params.logit_bias).get(token, 0.0)
        if counts[token] or token in PROMPT:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        values.append(value - params.frequency_penalty * counts[token] - (params.presence_penalty if counts[token] else 0.0))
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    weights = {token: math.exp(values[token] / params.temperature) for token in order}
    kept = order[: params.top_k or None]
    mass, total, nucleus = 0.0, sum(weights[token] for token in kept), []
    for token in kept:
        if mass < params.top_p * total:
            nucleus.append(token)
        mass += weights[token]
    survivors = [token for token in nucleus if weights[token] >= params.min_p * weights[order[0]]]
    total = sum(weights[token] for token in survivors)
    return np.array([weights[token] / total if token in survivors else 0.0 for token in range(len(values))])


def chi_square(samples: npt.NDArray[np.int64], probs: ProbArray) -> float:
    """The p-value, or 0 when an impossible outcome was seen."""
    observed = np.bincount(samples, minlength=len(probs))
    possible = probs > 0.0
    if observed[~possible].any():
        return 0.0
    return float(stats.chisquare(observed[possible], len(samples) * probs[possible]).pvalue) if possible.sum() > 1 else 1.0


def picks_of(params: SamplingParams, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    rows = [RowSampling(params, KEY, positions, PenaltyState(params, PROMPT, OUTPUT), (PATH,) * len(positions))]
    return pick(torch.from_numpy(np.tile(LOGITS, (len(positions), 1))), rows).numpy()


@pytest.mark.parametrize("params", PARAMS)
def test_picks_follow_the_exact_distribution(params: SamplingParams) -> None:
    assert chi_square(picks_of(params, np.arange(NUM_DRAWS)), enumerated(params)) > FALSE_ALARM


@pytest.mark.parametrize("params", PARAMS)
def test_noise_that_forgets_the_position_is_caught(params: SamplingParams) -> None:
    assert chi_square(picks_of(params, np.zeros(NUM_DRAWS, np.int64)), enumerated(params)) < FALSE_ALARM


def one_row_picks_of(params: SamplingParams) -> npt.NDArray[np.int64]:
    """The one-row way, as an engine uses it: what it leaves undecided goes to the general pick."""
    singles = [pick_single(LOGITS, params, KEY, position, with_prob=False) for position in range(NUM_DRAWS)]
    picks = np.array([-1 if single is None else single.token for single in singles], np.int64)
    undecided = np.flatnonzero(picks < 0)
    picks[undecided] = picks_of(params, undecided)
    return picks


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=0.6), SamplingParams(top_p=0.8), SamplingParams(min_p=0.12)]
)
def test_one_row_picks_follow_the_exact_distribution(params: SamplingParams) -> None:
    assert chi_square(one_row_picks_of(params), enumerated(params)) > FALSE_ALARM


def test_one_row_picks_with_a_bound_too_tight_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_pick, "SLACK", -0.5)
    monkeypatch.setattr(single_pick, "score_margin", lambda temperatures, best: np.zeros(1))
    original = np.flatnonzero

    def never_empty(found: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        tokens = original(found)
        return np.array([int(LOGITS.argmax())]) if not len(tokens) and len(found) == len(LOGITS) else tokens

    monkeypatch.setattr(single_pick.np, "flatnonzero", never_empty)  # type: ignore[attr-defined]
    assert chi_square(one_row_picks_of(SamplingParams()), enumerated(SamplingParams())) < FALSE_ALARM


def test_forgotten_penalties_are_caught() -> None:
    assert chi_square(picks_of(SamplingParams(temperature=0.9, top_p=0.95), np.arange(NUM_DRAWS)), enumerated(PENALISED)) < FALSE_ALARM


def test_successive_picks_are_independent() -> None:
    probs = enumerated(SamplingParams())
    picks = picks_of(SamplingParams(), np.arange(2 * NUM_DRAWS))
    assert chi_square(picks[::2] * len(probs) + picks[1::2], np.outer(probs, probs).ravel()) > FALSE_ALARM


def test_choices_are_draws_without_replacement() -> None:
    """Pairs (first, second) of Gumbel-top-2 against p_i * p_j / (1 - p_i); order matters, so the transposed law is caught."""
    probs = enumerated(SamplingParams(top_k=5))
    rows = [RowSampling(SamplingParams(top_k=5), KEY, np.arange(NUM_DRAWS))]
    ids = top_choices(torch.from_numpy(np.tile(LOGITS, (NUM_DRAWS, 1))), rows, 2).ids.numpy()
    pairs = ids[:, 0] * len(probs) + ids[:, 1]
    law = np.outer(probs / np.maximum(1.0 - probs, 1e-300), probs)
    np.fill_diagonal(law, 0.0)
    assert chi_square(pairs, law.ravel()) > FALSE_ALARM
    assert chi_square(pairs, law.T.ravel()) < FALSE_ALARM


DRAFT_LOGITS: npt.NDArray[np.float32] = np.array([0.5, 1.9, 0.2, 1.6, 0.3, 0.9, -1.5, 0.0, -2.0, -1.0], np.float32)


def coupled_probability(target: ProbArray, draft: ProbArray) -> float:
    """P(a = b) = sum_i 1 / sum_j max(target_j / target_i, draft_j / draft_i); ALGORITHMS.md G."""
    ratios = np.maximum(target[None, :] / target[:, None], draft[None, :] / draft[:, None])
    return float((1.0 / ratios.sum(axis=1)).sum())


def test_acceptance_is_the_coupling_formula_and_lies_within_its_bounds() -> None:
    num_draws = 100_000
    target, draft = (np.exp(logits.astype(np.float64)) for logits in (LOGITS, DRAFT_LOGITS))
    target, draft = target / target.sum(), draft / draft.sum()
    distance = 0.5 * float(np.abs(target - draft).sum())
    expected = coupled_probability(target, draft)
    assert (1 - distance) / (1 + distance) <= expected <= 1 - distance
    rows = [RowSampling(SamplingParams(), KEY, np.arange(num_draws))]
    picks, guesses = (pick(torch.from_numpy(np.tile(logits, (num_draws, 1))), rows).numpy() for logits in (LOGITS, DRAFT_LOGITS))
    rule, noise = CoupledAcceptance(), AcceptanceNoise(NoiseAddress(0), 0)
    accepted = int((picks == guesses).sum())
    assert stats.binomtest(accepted, num_draws, expected).pvalue > FALSE_ALARM
    assert stats.binomtest(accepted, num_draws, 1 - distance).pvalue < FALSE_ALARM  # maximal coupling is another rule's
    for truth, guess in zip(picks[:300].tolist(), guesses[:300].tolist(), strict=True):
        target_rows = TargetRows(np.array([truth, 0], np.int32), lambda row: target)
        assert len(rule.accept(DraftTree.chain([guess]), (), target_rows, noise).path) == int(truth == guess)


def test_siblings_are_more_guesses() -> None:
    """Gumbel-top-k siblings of a draft hold the pick more often than maximal coupling of one draft could (architecture.md section 1)."""
    num_draws = 20_000
    rows = [RowSampling(SamplingParams(), KEY, np.arange(num_draws))]
    picks = pick(torch.from_numpy(np.tile(LOGITS, (num_draws, 1))), rows)
    siblings = top_choices(torch.from_numpy(np.tile(DRAFT_LOGITS, (num_draws, 1))), rows, 4).ids
    target, draft = enumerated_softmax(LOGITS), enumerated_softmax(DRAFT_LOGITS)
    maximal = float(np.minimum(target, draft).sum())
    shares = [(siblings[:, :k] == picks[:, None]).any(dim=1).double().mean().item() for k in (1, 2, 4)]
    assert shares[0] < maximal < shares[1] < shares[2]


def enumerated_softmax(logits: npt.NDArray[np.float32]) -> ProbArray:
    weights = np.exp(logits.astype(np.float64))
    return np.asarray(weights / weights.sum())
