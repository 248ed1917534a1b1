"""Paged tree attention in Triton, interpreted on the CPU: against its fp64 definition for odd shapes, with an error at most twice that
of plain torch in the same dtype; kernels whose window or ancestry rule is broken must be caught by the same comparison.

Run: pytest tests/kernels/test_triton_attention.py
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fakes_broken_kernel import broken_kernel
from fakes_kernel_places import INTERPRETED, PLACES, KernelPlace, kernel_place
from outrider_kernels.bit_mask import pack_bits
from outrider_kernels.interpreted_process import InterpretedProcess, InterpretedProcessDied
from outrider_kernels.paged_tree_attention import PagedRows, gather_keys, reference_paged_tree_attention, visible_keys
from outrider_kernels.triton_tree_attention import plan_launch

KERNEL = "outrider_kernels.triton_tree_attention"
BLOCK_LEN = 16
SCALING = 0.3


@dataclass(frozen=True)
class Sequence:
    """committed_len cached tokens, the last num_committed_rows of which are rows of this step; then a random tree, nodes all rows."""

    committed_len: int
    num_committed_rows: int
    num_nodes: int


@dataclass(frozen=True)
class Case:
    """A step and a layer."""

    sequences: tuple[Sequence, ...]
    heads: int
    kv_heads: int
    dim: int
    window: int | None = None
    softcap: float | None = None
    dtype: torch.dtype = torch.float32
    num_splits: int = 1
    sinks: tuple[float, ...] = ()  # of the heads, or none


CASES = [
    Case((Sequence(1, 1, 0),), 4, 4, 40),
    Case((Sequence(15, 1, 3),), 6, 2, 64, softcap=3.0),
    Case((Sequence(16, 1, 9),), 7, 1, 96, window=5),
    Case((Sequence(17, 17, 0),), 3, 1, 40, window=4),
    Case((Sequence(129, 1, 3),), 14, 2, 64, num_splits=3),
    Case((Sequence(65, 2, 34),), 3, 1, 40, window=21),
    Case((Sequence(129, 0, 6), Sequence(1, 1, 5), Sequence(17, 2, 0), Sequence(64, 1, 33)), 3, 1, 40, window=30),
    Case((Sequence(16, 4, 2), Sequence(0, 0, 2), Sequence(129, 1, 1)), 7, 1, 64, softcap=20.0, num_splits=4),
    Case((Sequence(129, 2, 3), Sequence(15, 1, 1)), 6, 2, 64, dtype=torch.bfloat16, num_splits=2),
    Case((Sequence(65, 1, 3), Sequence(16, 1, 1)), 14, 2, 96, window=40, softcap=5.0, dtype=torch.bfloat16),
    Case((Sequence(129, 2, 3), Sequence(15, 1, 1)), 3, 1, 40, window=50, dtype=torch.float16, num_splits=2),
    Case((Sequence(33, 1, 3),), 36, 2, 64, dtype=torch.float16, softcap=5.0),
    Case((Sequence(70, 9, 4),), 2, 1, 40),  # a block of keys whose last some rows must not see
    Case((Sequence(200, 90, 5), Sequence(130, 1, 40)), 2, 2, 64, dtype=torch.bfloat16, num_splits=2),
    Case((Sequence(65, 2, 34),), 4, 2, 40, window=21, sinks=(-1.0, 3.0, 0.5, 2.0)),
    Case((Sequence(129, 0, 6), Sequence(1, 1, 5)), 6, 2, 64, dtype=torch.bfloat16, num_splits=4, sinks=(-1.0, 4.0, 0.5, 2.0, -20.0, 1.0)),
    # Many blocks of keys without a mask, one behind the other.
    Case((Sequence(1500, 1, 3), Sequence(900, 20, 10)), 8, 2, 128, dtype=torch.bfloat16),
    Case((Sequence(1500, 1, 3), Sequence(900, 20, 10)), 8, 2, 128, dtype=torch.bfloat16, num_splits=4),
]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> KernelPlace:
    """Interpreted, and on a card where there is one."""
    return kernel_place(request.param)


def tree(num_nodes: int, chance: random.Random) -> tuple[Tensor, list[int]]:
    """A random tree with many siblings: ancestry bool [nodes, nodes], and depths."""
    ancestry = torch.zeros(num_nodes, num_nodes, dtype=torch.bool)
    depths: list[int] = []
    for node in range(num_nodes):
        parent = chance.randrange(max(-1, node - 6), node)
        if parent >= 0:
            ancestry[node] = ancestry[parent]
        ancestry[node, node] = True
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return ancestry, depths


def paged_rows(sequences: tuple[Sequence, ...], chance: random.Random) -> PagedRows:
    """Rows of all sequences over scattered blocks."""
    num_keys = [sequence.committed_len + sequence.num_nodes for sequence in sequences]
    num_blocks = [-(-count // BLOCK_LEN) for count in num_keys]
    blocks = chance.sample(range(sum(num_blocks) + 5), sum(num_blocks))
    table = torch.zeros(len(sequences), max(num_blocks), dtype=torch.int32)
    max_nodes = max(1, *(sequence.num_nodes for sequence in sequences), 1)
    node_positions = torch.zeros(len(sequences), max_nodes, dtype=torch.int32)
    positions: list[int] = []
    ancestries = []
    for index, sequence in enumerate(sequences):
        own = [blocks.pop() for _ in range(num_blocks[index])]
        table[index, : len(own)] = torch.tensor(own, dtype=torch.int32)
        ancestry, depths = tree(sequence.num_nodes, chance)
        at = [sequence.committed_len + depth for depth in depths]
        node_positions[index, : len(at)] = torch.tensor(at, dtype=torch.int32)
        positions += [*range(sequence.committed_len - sequence.num_committed_rows, sequence.committed_len), *at]
        padded = torch.zeros(sequence.num_committed_rows + sequence.num_nodes, max_nodes, dtype=torch.bool)
        padded[sequence.num_committed_rows :, : sequence.num_nodes] = ancestry
        ancestries.append(padded)
    return PagedRows(
        rows_per_sequence=tuple(sequence.num_committed_rows + sequence.num_nodes for sequence in sequences),
        block_table=table,
        committed_lens=torch.tensor([sequence.committed_len for sequence in sequences], dtype=torch.int32),
        num_nodes=torch.tensor([sequence.num_nodes for sequence in sequences], dtype=torch.int32),
        node_positions=node_positions,
        row_positions=torch.tensor(positions, dtype=torch.int32),
        row_ancestry=pack_bits(torch.cat(ancestries)),
        block_len=BLOCK_LEN,
        max_keys=max(num_keys),
    )


def plain_torch(query: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, case: Case) -> Tensor:
    """The same attention by ordinary torch operations in the query's dtype."""
    parts = []
    begin = 0
    for sequence, num_rows in enumerate(rows.rows_per_sequence):
        visible = torch.stack([visible_keys(rows, sequence, row, case.window) for row in range(begin, begin + num_rows)])
        group_len = case.heads // case.kv_heads
        own_keys = gather_keys(keys, rows, sequence).repeat_interleave(group_len, 0)
        own_values = gather_keys(values, rows, sequence).repeat_interleave(group_len, 0)
        scores = query[begin : begin + num_rows].transpose(0, 1) @ own_keys.transpose(1, 2) * SCALING
        if case.softcap is not None:
            scores = torch.tanh(scores / case.softcap) * case.softcap
        scores = scores.masked_fill(~visible, -torch.inf)
        if case.sinks:
            of_sinks = torch.tensor(case.sinks, dtype=case.dtype).view(-1, 1, 1).expand(-1, num_rows, 1)
            weights = torch.softmax(torch.cat((scores, of_sinks), dim=-1), dim=-1)[..., :-1]
        else:
            weights = torch.softmax(scores, dim=-1)
        parts.append((weights @ own_values).transpose(0, 1))
        begin += num_rows
    return torch.cat(parts)


@cache
def prepared(case: Case) -> tuple[tuple[Tensor, Tensor, Tensor], PagedRows, Tensor, Tensor]:
    """Query, keys and values; rows; the definition's result; plain torch's."""
    torch.set_num_threads(1)
    rows = paged_rows(case.sequences, random.Random(case.dim + len(case.sequences)))
    num_slots = (int(rows.block_table.max()) + 2) * BLOCK_LEN
    generator = torch.Generator().manual_seed(case.heads)
    query = torch.randn(rows.num_rows, case.heads, case.dim, generator=generator).to(case.dtype)
    keys, values = torch.randn(2, case.kv_heads, num_slots, case.dim, generator=generator).to(case.dtype)
    expected = reference_paged_tree_attention(query, keys, values, rows, SCALING, case.window, case.softcap, sinks_of(case))
    return (query, keys, values), rows, expected, plain_torch(query, keys, values, rows, case)


def sinks_of(case: Case) -> Tensor | None:
    return torch.tensor(case.sinks, dtype=case.dtype) if case.sinks else None


def errors(place: KernelPlace, case: Case, kernel: str = KERNEL) -> tuple[float, float]:
    """Largest error of the kernel, and of plain torch in the same dtype."""
    inputs, rows, expected, plain = prepared(case)
    launch = place.call(KERNEL, "plan_launch", rows, case.heads, case.kv_heads, case.dtype, case.num_splits)
    got = place.call(kernel, "paged_tree_attention", *inputs, launch, SCALING, case.window, case.softcap, sinks_of(case))
    assert got.shape == inputs[0].shape
    assert got.dtype == case.dtype
    return float((got.double() - expected).abs().max()), float((plain.double() - expected).abs().max())


@pytest.mark.parametrize("case", CASES)
def test_kernel_is_at_most_twice_as_far_off_as_plain_torch(place: KernelPlace, case: Case) -> None:
    kernel, plain = errors(place, case)
    assert kernel <= 2 * plain + 1e-7


MUTANTS = [
    # Windows that count slots: siblings push context out, or a node sees too far up its own path.
    (
        "(key_position[None, :] > position[:, None] - window)",
        "(key_position[None, :] > (position + row - tl.min(row, axis=0))[:, None] - window)",
    ),
    ("tl.where(node >= 0, at, key)", "key"),
    # One position too many.
    ("(key_position[None, :] > position[:, None] - window)", "(key_position[None, :] >= position[:, None] - window)"),
    # Every node sees its siblings and cousins, or nodes beyond the first 32 are taken for the first ones.
    ("& 1) != 0", "| 1) != 0"),
    ("(node // 32)[None, :]", "(node // 64)[None, :]"),
    # Rows of a prompt chunk see what comes after them.
    ("in_path, key[None, :] <= position[:, None])", "in_path, key[None, :] >= 0)"),
]
MUTANT_CASE = Case((Sequence(17, 3, 0), Sequence(20, 0, 36)), 3, 1, 40, window=4)
WHOLE_MUTANTS = [
    # Blocks that are read without a mask though some rows, or all nodes, do not see all of them.
    ("tl.minimum(oldest, committed_len - 1)", "tl.minimum(newest, committed_len - 1)"),
    ("tl.minimum(oldest, committed_len - 1)", "oldest + BLOCK_KEYS - 1"),
    ("tl.minimum(end, tl.minimum(oldest", "tl.minimum(end + BLOCK_KEYS, tl.minimum(newest"),
]
WHOLE_CASE = Case((Sequence(70, 9, 0), Sequence(60, 0, 68)), 2, 1, 40)
SINK_MUTANTS = [
    ("real & (split == 0)", "real"),  # each split has them anew
    ("place % num_heads", "place // num_heads % num_heads"),  # a row's instead of a head's
    ("tl.float32) * LOG2_E", "tl.float32)"),  # taken for powers of two
    ('top, tl.where(top == float("-inf"), 0.0, 1.0)', "top, tl.zeros([MEMBERS], tl.float32)"),  # a maximum that weighs nothing
]
SINK_CASE = Case((Sequence(17, 3, 0), Sequence(600, 0, 6)), 6, 2, 40, num_splits=2, sinks=(-1.0, 4.0, 0.5, 2.0, 3.0, 1.0))


@pytest.mark.parametrize("case", [MUTANT_CASE, WHOLE_CASE, SINK_CASE])
def test_the_kernel_the_mutants_come_from_is_right(place: KernelPlace, case: Case) -> None:
    kernel, plain = errors(place, case)
    assert kernel <= 2 * plain + 1e-7


BROKEN = ((MUTANTS, MUTANT_CASE), (WHOLE_MUTANTS, WHOLE_CASE), (SINK_MUTANTS, SINK_CASE))


@pytest.mark.parametrize(("mutation", "case"), [(mutation, case) for mutations, case in BROKEN for mutation in mutations])
def test_a_broken_rule_is_caught(mutation: tuple[str, str], case: Case, tmp_path: Path) -> None:
    place = kernel_place(INTERPRETED)
    broken = broken_kernel("triton_tree_attention", mutation, tmp_path)
    kernel, plain = errors(place, case, broken)
    assert kernel > 100 * plain


def test_bits_of_the_ancestry_survive_packing() -> None:
    ancestry = torch.rand(5, 70, generator=torch.Generator().manual_seed(1)) < 0.5
    words = pack_bits(ancestry)
    assert words.shape == (5, 3)
    for row in range(5):
        assert [bool(int(words[row, node // 32]) >> node % 32 & 1) for node in range(70)] == ancestry[row].tolist()
    assert pack_bits(torch.zeros(2, 0, dtype=torch.bool)).tolist() == [[0], [0]]


def test_a_step_without_rows_gives_nothing(place: KernelPlace) -> None:
    rows = paged_rows((Sequence(5, 0, 0),), random.Random(0))
    pool = torch.zeros(1, 64, 16)
    launch = place.call(KERNEL, "plan_launch", rows, 2, 1, torch.float32)
    assert place.call(KERNEL, "paged_tree_attention", torch.zeros(0, 2, 16), pool, pool, launch, SCALING).shape == (0, 2, 16)


def test_few_long_sequences_are_split_and_many_are_not() -> None:
    long = paged_rows((Sequence(3000, 1, 0),), random.Random(0))
    assert plan_launch(long, 8, 1, torch.bfloat16).num_splits == 8  # a power of two, of at least 256 keys each
    short = paged_rows((Sequence(129, 1, 0),), random.Random(0))
    assert plan_launch(short, 8, 1, torch.bfloat16).num_splits == 1
    many = paged_rows((Sequence(3000, 1, 0),) * 100, random.Random(0))
    assert plan_launch(many, 64, 8, torch.bfloat16).num_splits == 1


def test_a_dying_interpreter_is_reported_and_replaced() -> None:
    with InterpretedProcess() as process:
        with pytest.raises(InterpretedProcessDied, match="ZeroDivisionError"):
            process.call("operator", "truediv", 1, 0)
        with pytest.raises(InterpretedProcessDied, match="exit code -6"):
            process.call("os", "abort")
        assert process.call("operator", "truediv", 1, 2) == 0.5
