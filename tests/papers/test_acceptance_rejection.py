"""Rejection acceptance against its theory: whole rounds give the exact joint law of two tokens, and acceptance is what enumeration says.

init: a target over few tokens whose second token depends on the first, and a draft that differs; test: 4,000 answers of two tokens, each
made of as many rounds as it takes, drafts drawn by addressed DRAFT noise as the drafter does; check: chi-square against the enumerated
joint law, above 1e-6 for ours and below for each deliberately broken twin (ALGORITHMS.md A.1, D.1). Fixed addresses: results never change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from outrider.engine.acceptance import rejection
from outrider.engine.acceptance.contract import AcceptanceNoise, ProbArray, TargetRows
from outrider.engine.acceptance.rejection import RejectionAcceptance, dense_draft, draw, judge_family
from outrider.engine.sampling.penalty_state import PenaltyState
from outrider.engine.sampling.probs import processed_probs
from outrider.engine.sampling.rows import RowSampling
from outrider.noise.field import bits, uniform, uniform_of
from outrider.noise.keys import Purpose, key_of
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import ROOT, DraftRow, DraftTree

FALSE_ALARM = 1e-6
NUM_ANSWERS = 4_000
STRIDE = 3  # positions between answers: no two of them share noise
VOCAB = 5
ADDRESS = NoiseAddress(2302)
NO_PICKS = np.zeros(1, np.int32)
TARGET_LOGITS: npt.NDArray[np.float32] = (np.random.default_rng(1).standard_normal((VOCAB + 1, VOCAB)) * 1.3).astype(np.float32)
DRAFT_LOGITS: npt.NDArray[np.float32] = (TARGET_LOGITS + np.random.default_rng(2).standard_normal((VOCAB + 1, VOCAB)) * 2.0).astype(
    np.float32
)
PLAIN = SamplingParams()
FILTERED = SamplingParams(
    temperature=1.2, top_k=4, top_p=0.95, min_p=0.05, repetition_penalty=1.5, presence_penalty=0.4, frequency_penalty=0.3
)
PROMPT = [3, 3, 1]

MAX_FAMILIES = 3  # the root's and those of its two children: siblings' children need noise of their own

Drafter = Callable[[SamplingParams, int, int], tuple[DraftTree, tuple[DraftRow, ...]]]


@lru_cache(maxsize=256)
def target_probs(params: SamplingParams, prefix: tuple[int, ...]) -> ProbArray:
    """The target after `prefix` (at most one output token), by the engine's own processing."""
    row = RowSampling(params, 0, np.zeros(1, np.int64), PenaltyState(params, PROMPT), (list(prefix),))
    logits = TARGET_LOGITS[prefix[-1] if prefix else VOCAB]
    return processed_probs(torch.from_numpy(logits[None]), [row])[0].numpy()


@lru_cache(maxsize=256)
def draft_probs(params: SamplingParams, last: int) -> ProbArray:
    """The draft's distribution; like our drafter it leaves penalties to the target."""
    plain = SamplingParams(params.temperature, params.top_k, params.top_p, params.min_p)
    return processed_probs(torch.from_numpy(DRAFT_LOGITS[last][None]), [RowSampling(plain, 0, np.zeros(1, np.int64))])[0].numpy()


@lru_cache(maxsize=256)
def draft_row(params: SamplingParams, last: int, parent: int) -> DraftRow:
    """The draft's distribution as it travels: its support only."""
    probs = draft_probs(params, last)
    return DraftRow(parent, np.flatnonzero(probs).astype(np.int32), probs[probs > 0].astype(np.float32))


@lru_cache(maxsize=256)
def draft_log_probs(params: SamplingParams, last: int) -> ProbArray:
    """-inf outside the support."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(draft_probs(params, last)))


@lru_cache(maxsize=1)
def draft_noise() -> npt.NDArray[np.float64]:
    """Gumbel values of the DRAFT key for every position of this file: [position, family of a tree, token]."""
    ordinals = np.arange(MAX_FAMILIES * VOCAB)
    noise_bits = bits(key_of(ADDRESS, Purpose.DRAFT), np.arange(STRIDE * NUM_ANSWERS)[:, None], ordinals)
    return np.asarray(-np.log(-np.log(uniform_of(noise_bits)))).reshape(-1, MAX_FAMILIES, VOCAB)


def drawn_tree(widths: tuple[int, ...], *, with_rows: bool) -> Drafter:
    """Children drawn without replacement (Gumbel-top-k in draw order) at each depth; widths (1, 1) is a chain."""

    def draft(params: SamplingParams, last: int, base: int) -> tuple[DraftTree, tuple[DraftRow, ...]]:
        tokens: list[int] = []
        parents: list[int] = []
        rows: list[DraftRow] = []
        level = [(ROOT, last)]
        for depth, width in enumerate(widths):
            below = []
            for parent, token in level:
                rows.append(draft_row(params, token, parent))
                order = np.argsort(-(draft_log_probs(params, token) + draft_noise()[base + depth, parent + 1]))
                order = order[: min(width, len(rows[-1].ids))]
                for child in order.tolist():
                    below.append((len(tokens), child))
                    tokens.append(child)
                    parents.append(parent)
            level = below
        tree = DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32))
        return tree, tuple(rows) if with_rows else ()

    return draft


def likeliest_tree(params: SamplingParams, last: int, base: int) -> tuple[DraftTree, tuple[DraftRow, ...]]:
    """Deterministic candidates: the two likeliest tokens, then the likeliest after each; no rows."""
    first = np.argsort(-draft_probs(params, last), kind="stable")[:2].tolist()
    second = [int(draft_probs(params, token).argmax()) for token in first]
    return DraftTree(np.array(first + second, np.int32), np.array([ROOT, ROOT, 0, 1], np.int32)), ()


CHAIN, BUSHY = drawn_tree((1, 1), with_rows=True), drawn_tree((2, 2), with_rows=True)


def answer(params: SamplingParams, drafter: Drafter, base: int) -> tuple[int, int]:
    """Two tokens from position `base` on, by as many rounds as it takes."""
    rule = RejectionAcceptance()
    committed: tuple[int, ...] = ()
    while len(committed) < 2:
        tree, rows = drafter(params, committed[-1] if committed else VOCAB, base + len(committed))

        def probs(row: int, committed: tuple[int, ...] = committed, tree: DraftTree = tree) -> ProbArray:
            path: list[int] = []
            node = row - 1
            while node != ROOT:
                path.insert(0, int(tree.tokens[node]))
                node = int(tree.parents[node])
            return target_probs(params, (committed + tuple(path))[:2])

        noise = AcceptanceNoise(ADDRESS, base + len(committed))
        verdict = rule.accept(tree, rows, TargetRows(NO_PICKS, probs), noise)
        committed += (*(int(tree.tokens[node]) for node in verdict.path), verdict.emitted)
    return committed[0], committed[1]


def joint_p_value(params: SamplingParams, drafter: Drafter) -> float:
    observed = np.zeros((VOCAB, VOCAB))
    for i in range(NUM_ANSWERS):
        observed[answer(params, drafter, STRIDE * i)] += 1
    law = np.stack([target_probs(params, ())[first] * target_probs(params, (first,)) for first in range(VOCAB)])
    possible = law > 0.0
    if observed[~possible].any():
        return 0.0
    return float(stats.chisquare(observed[possible], NUM_ANSWERS * law[possible]).pvalue)


@pytest.mark.parametrize("params", [PLAIN, FILTERED], ids=["plain", "filtered"])
@pytest.mark.parametrize("drafter", [CHAIN, BUSHY, likeliest_tree], ids=["chain", "without-replacement", "deterministic"])
def test_answers_follow_the_exact_joint_law(params: SamplingParams, drafter: Drafter) -> None:
    assert joint_p_value(params, drafter) > FALSE_ALARM


def test_shared_uniform_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """PEARL's reference code tests two successive tokens with one uniform (ALGORITHMS.md A.1)."""
    monkeypatch.setattr(rejection, "uniform", lambda key, position, ordinal=0: uniform(key, position - position % STRIDE, ordinal))
    assert joint_p_value(PLAIN, CHAIN) < FALSE_ALARM


def test_siblings_sharing_a_uniform_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "uniform", lambda key, position, ordinal=0: uniform(key, position))
    assert joint_p_value(PLAIN, BUSHY) < FALSE_ALARM


def test_wrong_draft_distribution_is_caught() -> None:
    """Rows of another temperature than the one the tokens were drawn at."""

    def drafter(params: SamplingParams, last: int, base: int) -> tuple[DraftTree, tuple[DraftRow, ...]]:
        tree, rows = CHAIN(params, last, base)
        flattened = [row.probs**0.4 for row in rows]
        return tree, tuple(DraftRow(row.parent, row.ids, probs / probs.sum()) for row, probs in zip(rows, flattened, strict=True))

    assert joint_p_value(PLAIN, drafter) < FALSE_ALARM


def test_children_out_of_draw_order_are_caught() -> None:
    def drafter(params: SamplingParams, last: int, base: int) -> tuple[DraftTree, tuple[DraftRow, ...]]:
        tree, rows = drawn_tree((3,), with_rows=True)(params, last, base)
        return DraftTree(tree.tokens[::-1].copy(), tree.parents), rows

    assert joint_p_value(PLAIN, drafter) < FALSE_ALARM


def test_draft_that_keeps_the_refused_token_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without replacement the draft must be renormalised after each refusal; rule 1 of D.1 on such children is wrong."""
    monkeypatch.setattr(rejection, "_without", lambda probs, token, otherwise: probs)
    assert joint_p_value(PLAIN, BUSHY) < FALSE_ALARM


def test_candidate_that_stays_after_its_refusal_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "_without", lambda probs, token, otherwise: probs)
    assert joint_p_value(PLAIN, likeliest_tree) < FALSE_ALARM


def test_unfiltered_target_is_caught() -> None:
    """A rule that is given the target before top-k and penalties makes another law."""
    observed = np.zeros((VOCAB, VOCAB))
    for i in range(NUM_ANSWERS):
        observed[answer(PLAIN, CHAIN, STRIDE * i)] += 1
    law = np.stack([target_probs(FILTERED, ())[first] * target_probs(FILTERED, (first,)) for first in range(VOCAB)])
    assert observed[law == 0.0].any()


def enumerated_acceptance(target: ProbArray, draft: ProbArray, width: int) -> tuple[float, ProbArray]:
    """Exact P(some child accepted) and output law of D.1 rule 2, summed over every sequence of draws without replacement."""
    accepted, law = 0.0, np.zeros(len(target))
    for draws in product(range(len(target)), repeat=width):
        if len(set(draws)) < width:
            continue
        reach, rest, ours, open_share = 1.0, draft.copy(), target.copy(), 1.0
        for token in draws:
            reach *= rest[token] / rest.sum()
            rest[token] = 0.0
        rest = draft.copy()
        for token in draws:
            share = min(1.0, ours[token] / rest[token])
            accepted += reach * open_share * share
            law[token] += reach * open_share * share
            open_share *= 1.0 - share
            left = np.maximum(ours - rest, 0.0)
            ours = left / left.sum() if left.sum() > 0 else ours
            rest[token] = 0.0
            rest /= rest.sum()
        law += reach * open_share * ours
    return accepted, law


@pytest.mark.parametrize("width", [1, 2, 3])
def test_acceptance_is_what_enumeration_says(width: int) -> None:
    """One child: 1 - TV. More: the without-replacement numbers that D.1 lists for its own example, here for ours."""
    target, draft = target_probs(PLAIN, ()), draft_probs(PLAIN, VOCAB)
    expected, law = enumerated_acceptance(target, draft, width)
    assert np.allclose(law, target, atol=1e-12)  # the rule is lossless, exactly
    if width == 1:
        assert expected == pytest.approx(float(np.minimum(target, draft).sum()))
    num_accepted = 0
    drafter, key = drawn_tree((width,), with_rows=True), key_of(ADDRESS, Purpose.ACCEPT)
    for i in range(NUM_ANSWERS):
        tree, rows = drafter(PLAIN, VOCAB, i)
        num_accepted += judge_family(target, tree.tokens.tolist(), rows[0], key, i)[1] is not None
    assert stats.binomtest(num_accepted, NUM_ANSWERS, expected).pvalue > FALSE_ALARM
    assert stats.binomtest(num_accepted, NUM_ANSWERS, expected - 0.08).pvalue < FALSE_ALARM


def test_deterministic_candidates_are_accepted_with_their_target_mass() -> None:
    """D.1 rule 5: P(accept) = target(candidates)."""
    target, key = target_probs(PLAIN, ()), key_of(ADDRESS, Purpose.ACCEPT)
    num_accepted = sum(judge_family(target, [1, 4], None, key, i)[1] is not None for i in range(NUM_ANSWERS))
    assert stats.binomtest(num_accepted, NUM_ANSWERS, float(target[[1, 4]].sum())).pvalue > FALSE_ALARM


def test_impossible_tokens_are_never_accepted_nor_emitted() -> None:
    target = np.array([0.0, 0.5, 0.0, 0.5, 0.0])
    row = DraftRow(ROOT, np.array([0, 2], np.int32), np.array([0.5, 0.5], np.float32))
    for i in range(500):
        for rows in ((row,), ()):
            verdict = RejectionAcceptance().accept(
                DraftTree(np.array([0, 2], np.int32), np.array([ROOT, ROOT], np.int32)),
                rows,
                TargetRows(NO_PICKS, lambda row: target),
                AcceptanceNoise(ADDRESS, i),
            )
            assert verdict.path == ()
            assert verdict.emitted in (1, 3)


def test_equal_distributions_leave_an_empty_residual_and_still_emit() -> None:
    """The residual's sum is 0 when draft and target agree; the target itself stands in."""
    target = np.array([0.25, 0.75])
    left, accepted = judge_family(target, [0, 1], DraftRow(ROOT, np.array([0, 1], np.int32), np.array([0.25, 0.75], np.float32)), 1, 0)
    assert accepted == 0
    always_refused = rejection._normalised(np.maximum(target - target, 0.0), otherwise=target)
    assert np.array_equal(always_refused, target)
    assert np.array_equal(left, target)


def test_draw_never_leaves_the_support() -> None:
    probs = np.array([0.0, 0.3, 0.0, 0.7, 0.0])
    assert [draw(probs, r) for r in (2.0**-53, 0.29, 0.31, 1.0 - 2.0**-53)] == [1, 1, 3, 3]


NO_DISTRIBUTIONS: list[tuple[list[int], list[float]]] = [
    ([0, 0], [0.5, 0.5]),
    ([0, 9], [0.5, 0.5]),
    ([-1, 1], [0.5, 0.5]),
    ([0, 1], [np.inf, 0.5]),
    ([0, 1], [1.5, -0.5]),
    ([0, 1], [0.0, 0.0]),
    ([], []),
]


@pytest.mark.parametrize(("ids", "probs"), NO_DISTRIBUTIONS)
def test_a_row_that_is_no_distribution_makes_candidates_of_its_children(ids: list[int], probs: list[float]) -> None:
    assert dense_draft(DraftRow(ROOT, np.array(ids, np.int32), np.array(probs, np.float32)), VOCAB) is None
