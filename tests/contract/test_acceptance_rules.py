"""What every registered acceptance rule promises, whatever it does: a root path, a token of the support, the same verdict twice."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.engine.acceptance.contract import AcceptanceNoise, AcceptanceRule, ProbArray, TargetRows
from outrider.engine.acceptance.registry import ACCEPTANCE_RULES, acceptance_rule
from outrider.errors import InvalidRequest
from outrider.types.sampling import NoiseAddress
from outrider.types.tree import ROOT, DraftRow, DraftTree, Verdict

VOCAB = 7


def random_probs(generator: np.random.Generator) -> ProbArray:
    """A distribution with some tokens impossible."""
    probs = generator.dirichlet(np.ones(VOCAB)) * (generator.random(VOCAB) < 0.6)
    probs[generator.integers(VOCAB)] += 0.1
    return np.asarray(probs / probs.sum())


def random_tree(generator: np.random.Generator, num_nodes: int) -> DraftTree:
    tokens: list[int] = []
    parents: list[int] = []
    while len(tokens) < num_nodes:
        parent, token = int(generator.integers(-1, len(tokens))), int(generator.integers(VOCAB))
        if (parent, token) not in set(zip(parents, tokens, strict=True)):
            tokens.append(token)
            parents.append(parent)
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32))


def random_rows(generator: np.random.Generator, tree: DraftTree) -> tuple[DraftRow, ...]:
    """Rows for about half of the parents, some of them malformed: a peer may send anything."""
    parents = [parent for parent in range(-1, tree.num_nodes) if generator.random() < 0.5]
    rows = []
    for parent in parents:
        ids = generator.permutation(VOCAB)[: int(generator.integers(1, VOCAB + 1))].astype(np.int32)
        probs = generator.dirichlet(np.ones(len(ids))).astype(np.float32)
        flaw = generator.integers(8)
        if flaw == 0:
            ids = np.zeros_like(ids)
        if flaw == 1:
            ids = ids + np.int32(VOCAB)
        if flaw == 2:
            probs = np.full_like(probs, np.nan)
        if flaw == 3:
            probs = np.zeros_like(probs)
        if flaw == 4:
            ids, probs = ids[:0], probs[:0]
        rows.append(DraftRow(parent, ids, probs))
    return tuple(rows)


def random_target(generator: np.random.Generator, tree: DraftTree) -> tuple[TargetRows, list[ProbArray]]:
    probs = [random_probs(generator) for _ in range(tree.num_nodes + 1)]
    picks = np.array([generator.choice(VOCAB, p=row) for row in probs], np.int32)
    return TargetRows(picks, lambda row: probs[row]), probs


def assert_root_path(tree: DraftTree, verdict: Verdict) -> None:
    here = ROOT
    for node in verdict.path:
        assert int(tree.parents[node]) == here
        here = node
    assert verdict.bonus == (here not in tree.parents)


@pytest.mark.parametrize("rule", ACCEPTANCE_RULES.values(), ids=list(ACCEPTANCE_RULES))
@pytest.mark.parametrize("seed", range(60))
def test_verdict_is_a_root_path_of_possible_tokens_and_repeats_itself(rule: AcceptanceRule, seed: int) -> None:
    generator = np.random.default_rng(seed)
    tree = random_tree(generator, int(generator.integers(0, 12)))
    rows = random_rows(generator, tree)
    target, probs = random_target(generator, tree)
    noise = AcceptanceNoise(NoiseAddress(seed), int(generator.integers(1000)))
    verdict = rule.accept(tree, rows, target, noise)
    assert_root_path(tree, verdict)
    row = 0
    for node in verdict.path:
        assert probs[row][tree.tokens[node]] > 0.0
        row = node + 1
    assert probs[row][verdict.emitted] > 0.0
    assert rule.accept(tree, rows, target, noise) == verdict


@pytest.mark.parametrize("rule", ACCEPTANCE_RULES.values(), ids=list(ACCEPTANCE_RULES))
def test_empty_tree_gives_one_bonus_token(rule: AcceptanceRule) -> None:
    target, probs = random_target(np.random.default_rng(1), DraftTree.empty())
    verdict = rule.accept(DraftTree.empty(), (), target, AcceptanceNoise(NoiseAddress(3), 5))
    assert verdict.path == ()
    assert verdict.bonus
    assert probs[0][verdict.emitted] > 0.0


@pytest.mark.parametrize("rule", ACCEPTANCE_RULES.values(), ids=list(ACCEPTANCE_RULES))
def test_a_certain_target_accepts_its_own_tokens_and_nothing_else(rule: AcceptanceRule) -> None:
    """Greedy decoding is the one-hot case of every rule: accepted exactly while the draft equals the argmax."""
    truth = [2, 5, 1, 1]
    certain = [np.eye(VOCAB)[token] for token in truth]
    target = TargetRows(np.array(truth, np.int32), lambda row: certain[row])
    noise = AcceptanceNoise(NoiseAddress(9), 40)
    for drafted, num_accepted in (([2, 5, 1], 3), ([2, 5, 0], 2), ([4, 5, 1], 0)):
        one_hot = tuple(DraftRow(i - 1, np.array([token], np.int32), np.ones(1, np.float32)) for i, token in enumerate(drafted))
        for rows in ((), one_hot):
            verdict = rule.accept(DraftTree.chain(drafted), rows, target, noise)
            assert verdict == Verdict(tuple(range(num_accepted)), truth[num_accepted], bonus=num_accepted == 3)


@pytest.mark.parametrize("rule", [rule for rule in ACCEPTANCE_RULES.values() if not rule.reads_probs], ids=lambda rule: rule.name)
def test_a_rule_that_reads_no_probs_never_asks_for_them(rule: AcceptanceRule) -> None:
    def refuse(row: int) -> ProbArray:
        raise AssertionError(f"asked for row {row}")

    target = TargetRows(np.array([1, 2, 3], np.int32), refuse)
    verdict = rule.accept(DraftTree.chain([1, 4]), (), target, AcceptanceNoise(NoiseAddress(0), 0))
    assert verdict == Verdict((0,), 2, bonus=False)


def test_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="'typical' is no acceptance rule; known: coupled, rejection"):
        acceptance_rule("typical")
