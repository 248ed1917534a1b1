"""The fused pick under filters, interpreted on the CPU: what it decides is the reference's pick, what it must leave it leaves, and its
probabilities are those of the softmax; filters on either side of the winner, ties, and rows that are no numbers. Broken twins are caught.

Run: pytest tests/kernels/test_triton_filtered_pick.py
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes_broken_kernel import broken_kernel
from fakes_kernel_places import INTERPRETED, PLACES, KernelPlace, kernel_place
from mostly_slow import mostly_slow
from outrider.noise.reference_pick import min_p_gap, reference_pick, relative_weights
from outrider.types.sampling import SamplingParams
from outrider.types.tree import FloatArray
from outrider_kernels.thin_pick import LEFT

KERNEL = "outrider_kernels.triton_filtered_pick"
NUM_IDS = 1030  # two tiles, the second with six tokens
EDGE = 0.01  # of mass, well beyond what the kernel leaves open


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> KernelPlace:
    """Interpreted, and on a card where there is one."""
    return kernel_place(request.param)


@dataclass(frozen=True)
class Row:
    """One row and what must come of it."""

    name: str
    logits: FloatArray
    params: SamplingParams
    key: int
    position: int
    is_decided: bool

    @property
    def expected(self) -> int:
        """LEFT, or the reference's pick."""
        return reference_pick(self.logits, self.params, self.key, self.position, [], []) if self.is_decided else LEFT


def around(name: str, logits: FloatArray, key: int, position: int, temperature: float) -> list[Row]:
    """Filters that just keep the winner over all tokens, and filters that just do not."""
    free = SamplingParams(temperature=temperature)
    winner = reference_pick(logits, free, key, position, [], [])
    order = np.argsort(-logits, kind="stable")
    rank = int(np.flatnonzero(order == winner)[0])
    weights = relative_weights(logits[order], temperature)
    before = float(weights[:rank].sum() / weights.sum())
    min_p = math.exp((float(logits[winner]) - float(logits.max())) / temperature)
    assert rank > 0
    assert EDGE < before < 1 - EDGE, before
    kinds = {
        "free": (free, True),
        "top k keeps": (replace(free, top_k=rank + 1), True),
        "top k drops": (replace(free, top_k=rank), False),
        "top p keeps": (replace(free, top_p=before + EDGE), True),
        "top p drops": (replace(free, top_p=before - EDGE), False),
        "min p keeps": (replace(free, min_p=min_p * 0.999), True),
        "min p drops": (replace(free, min_p=min(0.9999, min_p * 1.001)), False),
        "two keep": (replace(free, top_p=before + EDGE, min_p=min_p * 0.999), True),
        "one of two drops": (replace(free, top_k=rank + 1, min_p=min(0.9999, min_p * 1.001)), False),
        "nucleus behind top k": (replace(free, top_k=rank + 50, top_p=0.999), False),  # its mass is not known well enough
    }
    return [Row(f"{name}, {kind}", logits, params, key, position, decided) for kind, (params, decided) in kinds.items()]


@cache
def all_rows() -> tuple[Row, ...]:
    """Many rows, small enough for one call."""
    generator, chance = np.random.default_rng(4), random.Random(8)
    rows: list[Row] = []
    for name, spread in (("flat", 0.5), ("ties", 1.0)):
        logits = generator.normal(0.0, spread, NUM_IDS).astype(np.float32)
        if name == "ties":
            logits = np.round(logits * 2) / np.float32(2)
        rows += around(name, logits, chance.getrandbits(64), chance.randrange(5000), 0.9)
    peak = generator.normal(0.0, 1.0, NUM_IDS).astype(np.float32)
    peak[1027] = 30.0
    few = np.full(NUM_IDS, -20.0, np.float32)
    few[[3, 90, 500, 1026, 1029]] = 3.0, 2.9, 2.8, 2.7, 2.6
    both = SamplingParams(temperature=1.0, top_k=5, top_p=0.95)
    rows += [Row(f"nucleus behind top k, {key}", few, both, key, 3, True) for key in range(4)]
    assert len({row.expected for row in rows[-4:]} - {3}) > 1
    strict = SamplingParams(temperature=0.7, top_k=1, top_p=0.01, min_p=0.99)
    rows.append(Row("the first is in every filter", peak, strict, 5, 6, True))
    rows.append(Row("greedy under filters", logits, SamplingParams(temperature=0.0, top_k=3, top_p=0.5), 1, 2, True))
    for name, value, place in (("NaN", np.nan, 1026), ("infinity", np.inf, 3)):
        spoilt = logits.copy()
        spoilt[place] = value
        rows += [Row(name, spoilt, SamplingParams(temperature=t), 1, 2, False) for t in (0.0, 1.0)]
    rows.append(Row("nothing", np.full(NUM_IDS, -np.inf, np.float32), SamplingParams(), 1, 2, False))
    masked = np.full(NUM_IDS, -np.inf, np.float32)
    masked[[2, 1028]] = 1.0, 1.5
    rows.append(Row("two tokens", masked, SamplingParams(temperature=0.5), 9, 9, True))
    return tuple(rows)


def found(place: KernelPlace, rows: tuple[Row, ...], kernel: str = KERNEL) -> tuple[list[int], FloatArray]:
    """Tokens and probabilities; a last row is nobody's."""
    signed = np.array([row.key for row in rows] + [0], np.uint64).view(np.int64)
    temperatures = [row.params.temperature for row in rows] + [math.nan]
    columns = [
        torch.from_numpy(signed),
        torch.tensor([row.position for row in rows] + [0]),
        torch.tensor(temperatures, dtype=torch.float64),
        torch.tensor([row.params.top_k for row in rows] + [0]),
        torch.tensor([row.params.top_p for row in rows] + [1.0], dtype=torch.float64),
        torch.tensor([min_p_gap(row.params) for row in rows] + [math.inf], dtype=torch.float64),
    ]
    logits = torch.from_numpy(np.stack([row.logits for row in rows] + [rows[0].logits]))
    tokens, probs = place.call(__file__, "picked_there", kernel, logits, columns)
    return tokens.tolist(), probs.numpy()


def picked_there(kernel: str, logits: Tensor, columns: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Called where kernels run."""
    from outrider_kernels.interpreted_process import _module

    module = _module(kernel)
    tokens = torch.full((len(logits),), -7, dtype=torch.int32, device=logits.device)
    probs = torch.full((len(logits),), 7.0, device=logits.device)
    module.filtered_pick(logits, module.FilteredRows(*columns), tokens, probs)
    return tokens, probs


def test_the_pick_is_the_references_or_is_left_to_it(place: KernelPlace) -> None:
    rows = all_rows()
    tokens, probs = found(place, rows)
    assert {row.name: token for row, token in zip(rows, tokens, strict=False)} == {row.name: row.expected for row in rows}
    assert tokens[-1] == LEFT
    for row, token, prob in zip(rows, tokens, probs, strict=False):
        if token == LEFT:
            assert math.isnan(prob)
            continue
        softmax = torch.softmax(torch.from_numpy(row.logits).double() / (row.params.temperature or 1.0), 0)
        assert prob == pytest.approx(float(softmax[token]), rel=1e-4), row.name


MUTANTS = [
    ("(num_before < top_k)", "(num_before <= top_k)"),
    ("& (token < winner_token)", "& (token > winner_token)"),  # ties the other way round
    ("(top_p - _CLEAR_MARGIN) * whole", "(top_p + 0.02) * whole"),
    ("tl.where(top_k == 0, mass, before + own)", "mass"),  # the nucleus of all tokens, behind top-k
    ("tl.where(top_k == 0, mass, before + own)", "before + own"),  # leaves what it could decide
    ("winner_logit.to(tl.float64) <= tl.load(min_p_gaps", "winner_logit.to(tl.float64) >= tl.load(min_p_gaps"),
    ("num_not_numbers == 0", "num_not_numbers >= 0"),
    ("& (best < _INFINITY)\n", "\n"),
    ("is_decided = is_number & is_inside & (temperature == temperature)", "is_decided = is_number & is_inside"),
]


@pytest.mark.parametrize("mutation", mostly_slow(MUTANTS, 2))
def test_a_broken_filter_is_caught(mutation: tuple[str, str], tmp_path: Path) -> None:
    place = kernel_place(INTERPRETED)
    broken = broken_kernel("triton_filtered_pick", mutation, tmp_path)
    rows = tuple(row for row in all_rows() if not row.name.startswith("flat"))  # those with ties tell as much
    tokens, _ = found(place, rows, broken)
    assert tokens != [*(row.expected for row in rows), LEFT]
