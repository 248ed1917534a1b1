"""The fused pick in Triton, interpreted on the CPU: noise bit for bit that of the definition, picks those of the reference, over any
cut of the vocabulary; broken twins are caught.

Run: pytest tests/kernels/test_triton_pick.py
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fakes_broken_kernel import broken_kernel
from fakes_kernel_places import INTERPRETED, PLACES, KernelPlace, kernel_place
from outrider.noise.field import bits, gumbel
from outrider.noise.reference_pick import reference_pick
from outrider.types.sampling import SamplingParams
from outrider_kernels.bit_mask import pack_bits
from outrider_kernels.pick_rows import PickRows

PICK = "outrider_kernels.triton_pick"
NUM_ROWS = 7
NUM_IDS = 1027  # two tiles, the second with three tokens
TEMPERATURES = [0.0, 0.3, 0.7, 1.0, 1e-6, 0.0, 5.0]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> KernelPlace:
    """Interpreted, and on a card where there is one."""
    return kernel_place(request.param)


def as_int64(keys: list[int]) -> Tensor:
    return torch.from_numpy(np.array(keys, np.uint64).view(np.int64))


def test_noise_is_the_definition_bit_for_bit(place: KernelPlace) -> None:
    chance = random.Random(3)
    keys = [0, 2**64 - 1, *(chance.getrandbits(64) for _ in range(2998))]
    positions = [0, 2**31, *(chance.randrange(1 << 20) for _ in range(2998))]
    tokens = [0, 2**31 - 1, *(chance.randrange(1 << 18) for _ in range(2998))]
    arguments = (as_int64(keys), torch.tensor(positions), torch.tensor(tokens))
    got_bits, got = place.call("outrider_kernels.triton_noise", "gumbel", *arguments)
    assert np.array_equal(got_bits.numpy().view(np.uint64), bits(keys, positions, tokens))
    assert np.array_equal(got.numpy().view(np.int32), gumbel(keys, positions, tokens).view(np.int32))


class Rows:
    """Rows with many ties (logits in eighths), some with bias and masks, and what the reference picks."""

    def __init__(self, dtype: torch.dtype, masked: bool) -> None:
        generator = torch.Generator().manual_seed(11)
        chance = random.Random(5)
        self.keys = [chance.getrandbits(64) for _ in range(NUM_ROWS)]
        self.positions = [chance.randrange(5000) for _ in range(NUM_ROWS)]
        self.logits = (torch.randn(NUM_ROWS, NUM_IDS, generator=generator) * 16).round().div(8).to(dtype)
        self.bias = torch.randn(NUM_ROWS, NUM_IDS, generator=generator) if masked else None
        self.visible = torch.rand(NUM_ROWS, NUM_IDS, generator=generator) < 0.2 if masked else None

    def arguments(self, begin: int, end: int) -> tuple[Tensor, PickRows, int]:
        """The shard of ids [begin, end)."""
        rows = PickRows(
            as_int64(self.keys),
            torch.tensor(self.positions),
            torch.tensor(TEMPERATURES, dtype=torch.float64),
            None if self.bias is None else self.bias[:, begin:end].contiguous(),
            None if self.visible is None else pack_bits(self.visible[:, begin:end]),
        )
        return self.logits[:, begin:end], rows, begin

    def expected(self) -> list[int]:
        """The reference's picks."""
        logits = self.logits.float()
        if self.bias is not None and self.visible is not None:
            logits = (logits + self.bias).masked_fill(~self.visible, -torch.inf)
        return [
            reference_pick(logits[row].numpy(), SamplingParams(temperature=temperature), self.keys[row], self.positions[row], [], [])
            for row, temperature in enumerate(TEMPERATURES)
        ]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_picks_are_the_reference(place: KernelPlace, dtype: torch.dtype, masked: bool) -> None:
    rows = Rows(dtype, masked)
    assert place.call(PICK, "pick", *rows.arguments(0, NUM_IDS)).tokens.tolist() == rows.expected()


CUTS = [0, 1, 700, NUM_IDS]


def sharded(place: KernelPlace, rows: Rows, kernel: str = PICK) -> list[int]:
    """Picks merged from shards of very different sizes, the last first."""
    shards = [place.call(kernel, "pick", *rows.arguments(begin, end)) for begin, end in pairwise(CUTS)]
    merged: list[int] = place.call(PICK, "merge_shards", shards[::-1]).tokens.tolist()
    return merged


def test_shards_of_the_vocabulary_pick_what_the_whole_picks(place: KernelPlace) -> None:
    rows = Rows(torch.float32, True)
    assert sharded(place, rows) == rows.expected()


MUTANTS = [
    ("vocab_begin + column, _NO_TOKEN", "column, _NO_TOKEN"),  # noise by the shard's own ids
    ("leads & (logit == best_logit)", "logit == logit"),  # the lowest id of all
    ("score + temperature * noise", "score + noise"),
]


@pytest.mark.parametrize("mutation", MUTANTS)
def test_a_broken_pick_is_caught(mutation: tuple[str, str], tmp_path: Path) -> None:
    place = kernel_place(INTERPRETED)
    rows = Rows(torch.float32, True)
    assert sharded(place, rows, broken_kernel("triton_pick", mutation, tmp_path)) != rows.expected()
