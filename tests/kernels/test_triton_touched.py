"""Bias, penalties and allowed tokens inside the fused picks in Triton: what is picked, with and without filters and over any cut of the
vocabulary, is the reference's; the kernels' own definition is the library's. Broken twins are caught.

Run: pytest tests/kernels/test_triton_touched.py
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

import outrider_kernels
from fakes_kernel_places import INTERPRETED, PLACES, KernelPlace, kernel_place
from mostly_slow import mostly_slow
from outrider.noise import reference_pick as noise
from outrider.types.sampling import SamplingParams
from outrider.types.tree import FloatArray
from outrider_kernels.bit_mask import pack_bits
from outrider_kernels.pick_rows import PickRows, TouchedTokens
from outrider_kernels.processed_logits import processed_logits
from outrider_kernels.thin_pick import LEFT
from outrider_kernels.thin_touched import UNSEEN

NUM_IDS = 1027  # two tiles, the second with three tokens
CUTS = [0, 1, 700, NUM_IDS]
WHOLE = (0, NUM_IDS)
BoolArray = npt.NDArray[np.bool_]
PICK, FILTERED = "outrider_kernels.triton_pick", "outrider_kernels.triton_filtered_pick"


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> KernelPlace:
    """Interpreted, and on a card where there is one."""
    return kernel_place(request.param)


SAMPLINGS = (
    SamplingParams(temperature=0.0, repetition_penalty=1.7),
    SamplingParams(temperature=0.8, presence_penalty=1.5, frequency_penalty=0.7),
    SamplingParams(temperature=0.9, repetition_penalty=0.8, frequency_penalty=-0.3, top_k=40),
    SamplingParams(temperature=0.7, logit_bias=((0, 3.0), (5, -100.0), (1023, 2.5), (1026, 4.0)), top_p=0.9),
    SamplingParams(temperature=1.0, repetition_penalty=1.2, presence_penalty=-1.0, logit_bias=((3, 1.25), (700, 3.0)), min_p=0.02),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.0, frequency_penalty=2.0, logit_bias=((1026, 9.0),)),
)


@dataclass(frozen=True)
class Row:
    """One row: raw logits, what was said before, and which tokens it may say."""

    logits: FloatArray
    params: SamplingParams
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    allowed: BoolArray
    key: int
    position: int

    @property
    def masked(self) -> FloatArray:
        """The logits of allowed tokens."""
        return np.where(self.allowed, self.logits, np.float32(-np.inf)).astype(np.float32)

    @property
    def expected(self) -> int:
        """The reference's pick among those."""
        return noise.reference_pick(self.masked, self.params, self.key, self.position, self.prompt, self.output)

    def entries(self) -> list[tuple[int, int, float]]:
        """Touched tokens, ascending, with counts and biases."""
        counts, biases = Counter(self.output), dict(self.params.logit_bias)
        seen = set(self.prompt) | set(self.output)
        return [(token, counts[token] if token in seen else UNSEEN, biases.get(token, 0.0)) for token in sorted(seen | set(biases))]


@cache
def all_rows(dtype: torch.dtype = torch.float32, masked: bool = True) -> tuple[Row, ...]:
    """Rows whose best tokens were said already, so that penalties decide."""
    chance, generator = random.Random(6), torch.Generator().manual_seed(2)
    rows = []
    for params in SAMPLINGS:
        logits = (torch.randn(NUM_IDS, generator=generator) * 2).to(dtype).float()
        best = logits.topk(60).indices.tolist()
        output = (*chance.choices(best[:25], k=40), 1023, 1024, 1026)
        prompt = (*chance.choices(best, k=20), *chance.choices(range(NUM_IDS), k=200))
        allowed = torch.rand(NUM_IDS, generator=generator) < (0.6 if masked else 2.0)
        arguments = logits.numpy(), params, prompt, output, allowed.numpy(), chance.getrandbits(64), chance.randrange(4000)
        rows.append(Row(*arguments))
    return (*rows, *certain_rows())


def drawn_rows() -> tuple[Row, ...]:
    """Those with a temperature, of every filter and of none."""
    return tuple(row for row in all_rows() if row.params.temperature)


def certain_rows() -> list[Row]:
    """A bias that alone is no reason to divide, nor to count; and the last token of a tile, said too often."""
    everything = np.ones(NUM_IDS, np.bool_)
    biased, repeated = np.zeros((2, NUM_IDS), np.float32)
    biased[9], repeated[1023], repeated[1] = 3.0, 5.0, 3.0
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, frequency_penalty=-1.5, logit_bias=((3, 4.0),))
    often = SamplingParams(temperature=0.0, frequency_penalty=1.0)
    rows = [Row(biased, params, (), (), everything, 1, 2), Row(repeated, often, (), (1023,) * 3, everything, 1, 2)]
    assert [row.expected for row in rows] == [3, 1]
    return rows


def touched(rows: tuple[Row, ...]) -> TouchedTokens:
    """The entries in a table with nonsense behind them, whose rows are not side by side."""
    entries = [row.entries() for row in rows]
    most = max(len(own) for own in entries) + 3
    tokens, counts = torch.full((2, len(rows), most + 5), 7, dtype=torch.int32)
    biases = torch.full((len(rows), most + 2), 50.0, dtype=torch.float64)
    for index, own in enumerate(entries):
        for place, (token, count, bias) in enumerate(own):
            tokens[index, place], counts[index, place], biases[index, place] = token, count, bias
    names = ("repetition_penalty", "frequency_penalty", "presence_penalty")
    return TouchedTokens(
        torch.tensor([len(own) for own in entries], dtype=torch.int32), tokens[:, :most], counts[:, :most], biases[:, :most],
        *(torch.tensor([getattr(row.params, name) for row in rows], dtype=torch.float64) for name in names),
    )  # fmt: skip


def columns(rows: tuple[Row, ...]) -> list[Tensor]:
    """Keys, positions, temperatures, and the filters."""
    params = [row.params for row in rows]
    return [
        torch.from_numpy(np.array([row.key for row in rows], np.uint64).view(np.int64)),
        torch.tensor([row.position for row in rows]),
        torch.tensor([one.temperature for one in params], dtype=torch.float64),
        torch.tensor([one.top_k for one in params]),
        torch.tensor([one.top_p for one in params], dtype=torch.float64),
        torch.tensor([noise.min_p_gap(one) for one in params], dtype=torch.float64),
    ]


def logits_of(rows: tuple[Row, ...]) -> Tensor:
    return torch.from_numpy(np.stack([row.logits for row in rows]))


def allowed_of(rows: tuple[Row, ...]) -> Tensor:
    return torch.from_numpy(np.stack([row.allowed for row in rows]))


def plain_rows(rows: tuple[Row, ...]) -> PickRows:
    """Nothing but noise and temperature."""
    keys, positions, temperatures = columns(rows)[:3]
    return PickRows(keys, positions, temperatures)


def pick_rows(rows: tuple[Row, ...], begin: int = 0, end: int = NUM_IDS) -> PickRows:
    return replace(plain_rows(rows), allowed=pack_bits(allowed_of(rows)[:, begin:end]), touched=touched(rows))


def unfiltered(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The same without filters."""
    return tuple(replace(row, params=replace(row.params, top_k=0, top_p=1.0, min_p=0.0)) for row in rows)


def test_the_kernels_definition_is_the_librarys() -> None:
    rows = all_rows(masked=False)
    found = processed_logits(logits_of(rows), pick_rows(rows))
    expected = np.stack([noise.processed_logits(row.logits, row.params, row.prompt, row.output) for row in rows])
    assert np.array_equal(found.numpy(), expected)
    shards = [processed_logits(logits_of(rows)[:, begin:end], pick_rows(rows, begin, end), begin) for begin, end in pairwise(CUTS)]
    assert torch.equal(torch.cat(shards, dim=1), found)


def test_a_dense_bias_is_added_once() -> None:
    rows = all_rows()
    bias = torch.randn(len(rows), NUM_IDS, generator=torch.Generator().manual_seed(0))
    given = replace(plain_rows(rows), bias=bias, allowed=pack_bits(allowed_of(rows)))
    assert torch.equal(processed_logits(logits_of(rows), given), (logits_of(rows) + bias).masked_fill(~allowed_of(rows), -torch.inf))
    with pytest.raises(AssertionError):
        replace(given, touched=touched(rows))


@pytest.mark.parametrize("dtype", mostly_slow([torch.bfloat16, torch.float32], 1))
def test_picks_are_the_reference(place: KernelPlace, dtype: torch.dtype) -> None:
    rows = unfiltered(all_rows(dtype))
    expected = [row.expected for row in rows]
    assert place.call(PICK, "pick", logits_of(rows).to(dtype), pick_rows(rows)).tokens.tolist() == expected
    plain = place.call(PICK, "pick", logits_of(rows).to(dtype), plain_rows(rows)).tokens.tolist()
    assert sum(one != other for one, other in zip(plain, expected, strict=True)) > len(rows) // 2


def sharded_picks(place: KernelPlace, rows: tuple[Row, ...], kernel: str = PICK) -> list[int]:
    shards = [
        place.call(kernel, "pick", logits_of(rows)[:, begin:end], pick_rows(rows, begin, end), begin) for begin, end in pairwise(CUTS)
    ]
    merged: list[int] = place.call(PICK, "merge_shards", shards[::-1]).tokens.tolist()
    return merged


def test_shards_of_the_vocabulary_pick_what_the_whole_picks(place: KernelPlace) -> None:
    rows = unfiltered(all_rows())
    assert sharded_picks(place, rows) == [row.expected for row in rows]


def filtered_there(
    logits: Tensor, given: list[Tensor], masks: list[Tensor], table: TouchedTokens, cuts: list[int]
) -> tuple[Tensor, Tensor]:
    """Called where kernels run: the filtered pick over shards of the vocabulary. masks: packed, one a shard."""
    from outrider_kernels import triton_filtered_pick as kernel
    from outrider_kernels.triton_pick import merge_shards, pick

    tokens = torch.full((len(logits),), -7, dtype=torch.int32, device=logits.device)
    probs = torch.full((len(logits),), 7.0, device=logits.device)
    keys, positions, temperatures, top_ks, top_ps, gaps = given
    whole = kernel.FilteredRows(keys, positions, temperatures, top_ks, top_ps, gaps, touched=table)
    rows = [replace(whole, allowed=mask) for mask in masks]
    if len(masks) == 1:
        kernel.filtered_pick(logits, rows[0], tokens, probs)
        return tokens, probs
    spans = list(zip(rows, pairwise(cuts), strict=True))
    winners = merge_shards([pick(logits[:, begin:end], own.unfiltered(), begin) for own, (begin, end) in spans])
    masses = [kernel.reduced(kernel.judge(logits[:, begin:end], own, winners, begin), own.temperatures) for own, (begin, end) in spans]
    assert all(part.sums.shape == (kernel.NUM_SUMS, len(logits), 1) for part in masses)
    kernel.decide(kernel.merge_masses(masses[::-1]), winners, rows[0], tokens, probs)
    return tokens, probs


def filtered(place: KernelPlace, rows: tuple[Row, ...], cuts: list[int]) -> tuple[list[int], FloatArray]:
    masks = [pack_bits(allowed_of(rows)[:, begin:end]) for begin, end in pairwise(cuts)]
    tokens, probs = place.call(__file__, "filtered_there", logits_of(rows), columns(rows), masks, touched(rows), cuts)
    return tokens.tolist(), probs.numpy()


@pytest.fixture(scope="module", params=PLACES)
def over_cuts(request: pytest.FixtureRequest) -> dict[tuple[int, ...], tuple[list[int], FloatArray]]:
    """The filtered picks of some rows, over the whole vocabulary and over its shards."""
    return {cuts: filtered(kernel_place(request.param), drawn_rows(), list(cuts)) for cuts in (WHOLE, tuple(CUTS))}


@pytest.mark.parametrize("cuts", [WHOLE, tuple(CUTS)])
def test_filtered_picks_are_the_reference_or_left_over_any_cut(
    over_cuts: dict[tuple[int, ...], tuple[list[int], FloatArray]], cuts: tuple[int, ...]
) -> None:
    rows, (tokens, probs) = drawn_rows(), over_cuts[cuts]
    decided = [(row, token, prob) for row, token, prob in zip(rows, tokens, probs, strict=True) if token != LEFT]
    assert len(decided) > len(rows) // 2
    assert [token for _, token, _ in decided] == [row.expected for row, _, _ in decided]
    for row, token, prob in decided:
        processed = torch.from_numpy(noise.processed_logits(row.masked, row.params, row.prompt, row.output))
        softmax = torch.softmax(processed.double() / (row.params.temperature or 1.0), 0)
        assert prob == pytest.approx(float(softmax[token]), rel=1e-4)
    assert all(math.isnan(prob) for token, prob in zip(tokens, probs, strict=True) if token == LEFT)


def test_shards_leave_the_rows_that_the_whole_leaves(over_cuts: dict[tuple[int, ...], tuple[list[int], FloatArray]]) -> None:
    """Filters are wide of their edges here, so that sums in another order decide alike."""
    assert over_cuts[tuple(CUTS)][0] == over_cuts[WHOLE][0]


def test_a_row_that_allows_nothing_is_left(place: KernelPlace) -> None:
    first = all_rows()[1]
    none = replace(first, allowed=np.zeros_like(first.allowed))
    assert filtered(place, (none,), [0, NUM_IDS])[0] == [LEFT]


def broken_pick(mutation: tuple[str, str], folder: Path) -> str:
    """The path of a copy of the pick whose bias, penalties and masks are those of a copy with one thing changed."""
    kernels = Path(outrider_kernels.__path__[0])
    source = (kernels / "triton_touched.py").read_text(encoding="utf-8")
    assert source.count(mutation[0]) == 1
    name = f"broken_touched_{abs(hash(mutation))}"
    (folder / f"{name}.py").write_text(source.replace(*mutation), encoding="utf-8")
    kernel_place(INTERPRETED).call(str(folder / f"{name}.py"), "rule_constants", plain_rows(all_rows()))  # known by its name from now on
    pick = (kernels / "triton_pick.py").read_text(encoding="utf-8")
    path = folder / f"pick_with_{name}.py"
    path.write_text(pick.replace("outrider_kernels.triton_touched", name), encoding="utf-8")
    return str(path)


MUTANTS = [
    ("value / repetition, value * repetition", "value * repetition, value / repetition"),
    ("tl.where(count >= 0, repeated, value)", "tl.where(count > 0, repeated, value)"),  # the prompt does not count
    ("tl.where(count >= 0, repeated, value)", "repeated"),  # a bias alone counts
    ("frequency * tl.maximum(count, 0)", "frequency * tl.minimum(count, 1)"),
    ("frequency * tl.maximum(count, 0)", "frequency * count"),
    ("tl.where(count > 0, presence, 0.0)", "tl.where(count >= 0, presence, 0.0)"),
    ("+ tl.load(biases", "- tl.load(biases"),
    ("mask=entry < tl.load(lens + row)", "mask=entry < TILE_TOUCHED - TILE_TOUCHED + 9"),  # some of the entries
    ("tl.max(column, axis=0) + 1, num_ids)", "tl.max(column, axis=0), num_ids)"),  # not the last of a tile
    ("column == own_column", "column == own_column + vocab_begin"),
    ("column // 32, mask=real", "column // 64, mask=real"),
]


@pytest.mark.parametrize("mutation", mostly_slow(MUTANTS, 2))
def test_a_broken_rule_is_caught(mutation: tuple[str, str], tmp_path: Path) -> None:
    place, rows, kernel = kernel_place(INTERPRETED), unfiltered(all_rows()), broken_pick(mutation, tmp_path)
    whole = place.call(kernel, "pick", logits_of(rows), pick_rows(rows)).tokens.tolist()
    expected = [row.expected for row in rows]
    assert whole != expected or sharded_picks(place, rows, kernel) != expected


def test_the_copy_the_twins_come_from_is_right(tmp_path: Path) -> None:
    rows = unfiltered(all_rows())
    same = broken_pick(("# fmt: skip\n    return (", "# fmt: skip\n    return  ("), tmp_path)
    assert sharded_picks(kernel_place(INTERPRETED), rows, same) == [row.expected for row in rows]
