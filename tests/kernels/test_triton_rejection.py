"""Classical rejection of chains in Triton: what the engine's own rule says of the same chains, the definition for odd sizes and types, and
the target's law over many draws; broken twins are caught by both.

Run: pytest tests/kernels/test_triton_rejection.py
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from fakes_broken_kernel import broken_kernel
from fakes_kernel_places import INTERPRETED, PLACES, KernelPlace, kernel_place
from mostly_slow import mostly_slow, mostly_slow_rows
from outrider.engine.acceptance.contract import AcceptanceNoise, TargetRows
from outrider.engine.acceptance.rejection import RejectionAcceptance
from outrider.noise.field import bits, uniform_of
from outrider.noise.keys import Purpose, key_of
from outrider.types.sampling import NoiseAddress
from outrider.types.tree import DraftRow, DraftTree, Verdict
from outrider_kernels.rejection import NO_TOKEN, DraftChains, Judged, reference_judge_chains

KERNEL = "outrider_kernels.triton_rejection"
BASE = 40
FEW_DRAWS, MANY_DRAWS = 130, 330  # the interpreter takes some 30 ms for one
CERTAIN, ORDINARY = 1e-7, 1e-3  # p-values: a law that is wrong for certain, and one that need not be


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> KernelPlace:
    """Interpreted, and on a card where there is one."""
    return kernel_place(request.param)


def judged(place: KernelPlace, chains: DraftChains, kernel: str = KERNEL) -> Judged:
    """By the kernel; sequence i has the keys of seed i and begins at position BASE + i."""
    found: Judged = place.call(__file__, "judged_there", kernel, chains, *noise_of(chains))
    return found


def judged_there(kernel: str, chains: DraftChains, accept: Tensor, residual: Tensor, bases: Tensor) -> Judged:
    """Called where kernels run."""
    from outrider_kernels.interpreted_process import _module

    module = _module(kernel)
    result: Judged = module.judge_chains(chains, module.ChainNoise(accept, residual, bases))
    return result


def keys_of(chains: DraftChains, purpose: Purpose) -> Tensor:
    keys = [key_of(NoiseAddress(seed), purpose) for seed in range(chains.begins.numel() - 1)]
    return torch.from_numpy(np.array(keys, np.uint64).view(np.int64))


def noise_of(chains: DraftChains) -> tuple[Tensor, Tensor, Tensor]:
    bases = BASE + torch.arange(chains.begins.numel() - 1)
    return keys_of(chains, Purpose.ACCEPT), keys_of(chains, Purpose.RESIDUAL), bases


def reference(chains: DraftChains) -> Judged:
    """By the definition, with the same uniforms from the library's own field."""
    accept, residual, bases = noise_of(chains)
    begins = chains.begins.tolist()
    by_chain = [(chain, end - begin) for chain, (begin, end) in enumerate(pairwise(begins))]

    def uniforms(keys: Tensor, extra: int) -> Tensor:
        at = [(int(keys[chain]) % 2**64, int(bases[chain]) + depth) for chain, count in by_chain for depth in range(count + extra)]
        found = [float(uniform_of(bits(np.uint64(key), position, 0))[0]) for key, position in at]
        return torch.tensor(found, dtype=torch.float64)

    return reference_judge_chains(chains, uniforms(accept, 0), uniforms(residual, 1))


def same(left: Judged, right: Judged) -> bool:
    return all(torch.equal(getattr(left, name), getattr(right, name)) for name in ("accepted_lens", "emitted", "bonus"))


def spread(num_rows: int, num_ids: int, seed: int) -> Tensor:
    """float64 rows that sum to 1, with many tokens that cannot be."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(num_rows, num_ids, generator=generator, dtype=torch.float64) ** 4
    weights[torch.rand(weights.shape, generator=generator) < 0.4] = 0.0
    weights[:, seed % num_ids] += 0.05
    return weights / weights.sum(1, keepdim=True)


def some_chains(lens: list[int], num_ids: int, seed: int, nearness: float = 0.7) -> DraftChains:
    """Chains drawn from rows that share much with the target's."""
    begins = torch.tensor([0, *np.cumsum(lens).tolist()], dtype=torch.int32)
    targets, own = spread(sum(lens) + len(lens), num_ids, seed), spread(sum(lens), num_ids, seed + 1)
    rows = [
        begin + chain + depth for chain, (begin, count) in enumerate(zip(begins.tolist(), lens, strict=False)) for depth in range(count)
    ]
    drafts = nearness * targets[rows] + (1.0 - nearness) * own
    drawn = torch.multinomial(drafts, 1, generator=torch.Generator().manual_seed(seed)).flatten() if rows else torch.empty(0)
    return DraftChains(drawn.int(), begins, targets, drafts)


class EngineRule:
    """What the engine's rule says of the same chains, in the kernel's terms."""

    def __init__(self, chains: DraftChains) -> None:
        verdicts = [self._verdict(chains, chain) for chain in range(chains.begins.numel() - 1)]
        self.judged = Judged(
            torch.tensor([len(verdict.path) for verdict in verdicts], dtype=torch.int32),
            torch.tensor([verdict.emitted for verdict in verdicts], dtype=torch.int32),
            torch.tensor([verdict.bonus for verdict in verdicts]),
        )

    def _verdict(self, chains: DraftChains, chain: int) -> Verdict:
        begin, end = chains.begins.tolist()[chain : chain + 2]
        tree = DraftTree.chain(chains.tokens[begin:end].tolist())
        ids = np.arange(chains.targets.shape[1], dtype=np.int32)
        rows = tuple(DraftRow(depth - 1, ids, chains.drafts[begin + depth].float().numpy()) for depth in range(end - begin))
        target = TargetRows(np.zeros(end - begin + 1, np.int32), lambda row: chains.targets[begin + chain + row].numpy())
        return RejectionAcceptance().accept(tree, rows, target, AcceptanceNoise(NoiseAddress(chain), BASE + chain))


def as_drafted(chains: DraftChains) -> DraftChains:
    """Drafts as the engine reads them from a message: float32, made to sum to 1."""
    wide = chains.drafts.float().double()
    return replace(chains, drafts=wide / wide.sum(1, keepdim=True))


LENS = [3, 0, 1, 8, 2, 5, 0, 4]


@pytest.mark.parametrize("num_ids", [2, 37, 1024, 1025, 2051])
def test_chains_are_judged_as_the_engine_judges_them(place: KernelPlace, num_ids: int) -> None:
    chains = as_drafted(some_chains(LENS, num_ids, num_ids))
    expected = EngineRule(chains).judged
    assert same(judged(place, chains), expected)
    assert same(reference(chains), expected)
    assert {0, 1} == set(expected.bonus.int().tolist())
    assert len(set(expected.accepted_lens.tolist())) > 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_numbers_are_judged_by_the_definition(place: KernelPlace, dtype: torch.dtype) -> None:
    """Sums are then not 1, which changes nothing that is compared; and rows may be parts of wider ones."""
    chains = some_chains(LENS, 700, 3)
    wide = torch.zeros(len(chains.targets), 800, dtype=dtype)
    wide[:, :700] = chains.targets.to(dtype)
    chains = replace(chains, targets=wide[:, :700], drafts=chains.drafts.to(dtype))
    assert same(judged(place, chains), reference(chains))


def rows(*probs: list[float]) -> Tensor:
    return torch.tensor(probs, dtype=torch.float64)


EDGES: dict[str, tuple[DraftChains, list[int], list[set[int]]]] = {
    "equal rows keep everything": (
        DraftChains(torch.tensor([1, 2], dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32),
                    rows([0.2, 0.5, 0.3], [0.1, 0.1, 0.8], [0.0, 0.0, 1.0]), rows([0.2, 0.5, 0.3], [0.1, 0.1, 0.8])),
        [2], [{2}],
    ),
    "the target cannot say it": (
        DraftChains(torch.tensor([0], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32),
                    rows([0.0, 0.4, 0.6], [1.0, 0.0, 0.0]), rows([0.2, 0.8, 0.0])),
        [0], [{2}],
    ),
    "the drafter cannot have said it: the whole target is left": (
        DraftChains(torch.tensor([0], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32),
                    rows([0.0, 1.0, 0.0], [1.0, 0.0, 0.0]), rows([0.0, 1.0, 0.0])),
        [0], [{1}],
    ),
    "nothing is left but by rounding: the target itself": (
        DraftChains(torch.tensor([0], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32),
                    rows([0.0, 0.5, 0.0], [1.0, 0.0, 0.0]), rows([0.5, 0.5, 0.0])),
        [0], [{1}],
    ),
    "a candidate that nobody drew": (
        DraftChains(torch.tensor([1], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32),
                    rows([0.5, 0.0, 0.5], [1.0, 0.0, 0.0]), rows([0.0, 1.0, 0.0])),
        [0], [{0, 2}],
    ),
    "a target without mass": (
        DraftChains(torch.empty(0, dtype=torch.int32), torch.tensor([0, 0], dtype=torch.int32), rows([0.0, 0.0, 0.0]), torch.empty(0, 3)),
        [0], [{NO_TOKEN}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_edges(place: KernelPlace, name: str) -> None:
    chains, lens, possible = EDGES[name]
    got = judged(place, chains)
    assert same(got, reference(chains))
    assert got.accepted_lens.tolist() == lens
    assert all(token in tokens for token, tokens in zip(got.emitted.tolist(), possible, strict=True))


def test_no_sequences_are_judged_to_nothing(place: KernelPlace) -> None:
    nothing = DraftChains(torch.empty(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), torch.empty(0, 5), torch.empty(0, 5))
    assert judged(place, nothing).emitted.tolist() == []


TARGET = [0.05, 0.4, 0.0, 0.25, 0.2, 0.1]
DRAFT = [0.3, 0.15, 0.2, 0.05, 0.2, 0.1]


def law_p_value(place: KernelPlace, num_draws: int, kernel: str = KERNEL) -> float:
    """Of the first and the second token of many sequences, with drafts from another source than the rule's own uniforms."""
    begins = torch.arange(num_draws + 1, dtype=torch.int32) * 2
    drawn = torch.from_numpy(np.random.default_rng(12).choice(len(DRAFT), 2 * num_draws, p=DRAFT).astype(np.int32))
    targets, drafts = rows(TARGET).expand(3 * num_draws, -1), rows(DRAFT).expand(2 * num_draws, -1)
    got = judged(place, DraftChains(drawn, begins, targets, drafts), kernel)
    texts = [
        [*drawn[2 * chain : 2 * chain + length].tolist(), token]
        for chain, (length, token) in enumerate(zip(got.accepted_lens.tolist(), got.emitted.tolist(), strict=True))
    ]
    firsts, seconds = [text[0] for text in texts], [text[1] for text in texts if len(text) > 1]
    return min(against_target(firsts), against_target(seconds))


def against_target(tokens: list[int]) -> float:
    counts = np.bincount(tokens, minlength=len(TARGET))
    possible = np.array(TARGET) > 0
    if counts[~possible].any():
        return 0.0
    return float(stats.chisquare(counts[possible], len(tokens) * np.array(TARGET)[possible]).pvalue)


@pytest.mark.parametrize("num_draws", mostly_slow([FEW_DRAWS, MANY_DRAWS], 1))
def test_the_text_has_the_targets_law(place: KernelPlace, num_draws: int) -> None:
    assert law_p_value(place, num_draws) > ORDINARY


LAW_TWINS = [
    (("r * drafted < wanted", "r < wanted"), FEW_DRAWS),  # the test without the draft
    (("tl.where(target > draft, target - draft, 0.0)", "target"), MANY_DRAWS),  # the replacement from the target itself
    (("tl.load(keys + chain), position)", "tl.load(keys), position * 0)"), MANY_DRAWS),  # one uniform for every draw
]


@pytest.mark.parametrize(("mutation", "num_draws"), mostly_slow_rows(LAW_TWINS, 1))
def test_a_broken_law_is_seen(mutation: tuple[str, str], num_draws: int, tmp_path: Path) -> None:
    place = kernel_place(INTERPRETED)
    assert law_p_value(place, num_draws, broken_kernel("triton_rejection", mutation, tmp_path)) < CERTAIN


TWINS = [
    ("base + (node - begin)", "base"),
    ("(node + chain).to(tl.int64) * target_stride", "node.to(tl.int64) * target_stride"),
    ("targets + (node + chain) * target_stride", "targets + (node + chain + 1) * target_stride"),
    ("before + tl.cumsum", "tl.cumsum"),
    ("part == tile - 1", "part == tile"),
    ("column < num_ids", "column < num_ids - 1"),
    ("tl.load(bases + chain) + tl.load(lens + chain)", "tl.load(bases + chain)"),
    ("(node == end).to", "(node < end).to"),
]


@pytest.mark.parametrize("mutation", mostly_slow(TWINS, 4))
def test_a_broken_twin_is_caught(mutation: tuple[str, str], tmp_path: Path) -> None:
    place = kernel_place(INTERPRETED)
    kernel = broken_kernel("triton_rejection", mutation, tmp_path)
    several = [some_chains(LENS * 2, 2051, seed, nearness=0.4) for seed in (1, 2)]
    assert any(not same(judged(place, chains, kernel), reference(chains)) for chains in several)


def test_edges_have_twins_of_their_own(tmp_path: Path) -> None:
    """A draft of nothing that is subtracted all the same, and a draw from nothing that is left."""
    place = kernel_place(INTERPRETED)
    drafter = EDGES["the drafter cannot have said it: the whole target is left"][0]
    subtracts = ("subtracts = ((drafted > 0.0) & (is_kept == 0))", "subtracts = ((drafted >= 0.0) & (is_kept == 0))")
    subtracting = broken_kernel("triton_rejection", subtracts, tmp_path)
    both = replace(drafter, targets=rows([0.0, 0.6, 0.4], [1.0, 0.0, 0.0]))
    assert judged(place, both).emitted.tolist() == reference(both).emitted.tolist()
    assert judged(place, both, subtracting).emitted.tolist() == [2]
    rounding = EDGES["nothing is left but by rounding: the target itself"][0]
    empty = broken_kernel("triton_rejection", ("tl.where(is_empty, target, left)", "left"), tmp_path)
    assert judged(place, rounding, empty).emitted.tolist() == [NO_TOKEN]
