"""What paged tree attention means: which keys each row of several sequences sees, and the fp64 definition of the result.

A sequence's keys are logical slots: committed position t is slot t, live tree node n is slot committed_len + n. A row sees committed
keys up to its own position and the tree nodes its ancestry names; a sliding window counts positions, so siblings, which share one,
never push context out. Must not know how a device cuts up the work. Source: tree masks as in SpecInfer (Miao et al. 2024, section
4.2), block tables as in PagedAttention (Kwon et al. 2023, section 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_kernels.bit_mask import WORD_BITS
from outrider_kernels.tree_attention import reference_tree_attention


@dataclass(frozen=True, slots=True)
class PagedRows:
    """The rows of one step and where their keys are; rows of a sequence are neighbours, sequences in order.

    rows_per_sequence: rows of each sequence; empty where tiles that name them are made elsewhere. block_table: int32 [num_seqs,
    max_blocks] pool blocks. committed_lens, num_nodes: int32 [num_seqs]. node_positions: int32 [num_seqs, max_nodes >= 1].
    row_positions: int32 [num_rows]. row_ancestry: int32 [num_rows, num_words >= ceil(max_nodes / 32)] from `pack_bits`; zero for rows
    that are committed tokens themselves, which are slots below committed_len and see no node. A tree row's position is at least
    committed_len and its own node is among its ancestry. block_len: slots of a block. max_keys: at least every sequence's
    committed_len + num_nodes.
    """

    rows_per_sequence: tuple[int, ...]
    block_table: Tensor
    committed_lens: Tensor
    num_nodes: Tensor
    node_positions: Tensor
    row_positions: Tensor
    row_ancestry: Tensor
    block_len: int
    max_keys: int

    @property
    def num_rows(self) -> int:
        """Rows of all sequences."""
        return sum(self.rows_per_sequence)


def visible_keys(rows: PagedRows, sequence: int, row: int, window: int | None) -> Tensor:
    """bool [committed_len + num_nodes]: which keys of its sequence one row (counted over all sequences) sees; slow and obvious."""
    committed_len, num_nodes = int(rows.committed_lens[sequence]), int(rows.num_nodes[sequence])
    position = int(rows.row_positions[row])
    visible = torch.zeros(committed_len + num_nodes, dtype=torch.bool)
    for key in range(committed_len + num_nodes):
        if key < committed_len:
            key_position, seen = key, key <= position
        else:
            node = key - committed_len
            key_position = int(rows.node_positions[sequence, node])
            seen = bool(int(rows.row_ancestry[row, node // WORD_BITS]) >> node % WORD_BITS & 1)
        visible[key] = seen and (window is None or key_position > position - window)
    return visible


def gather_keys(pool: Tensor, rows: PagedRows, sequence: int) -> Tensor:
    """A sequence's keys (or values) in logical order: pool [kv_heads, num_slots, dim] to [kv_heads, committed_len + num_nodes, dim]."""
    num_keys = int(rows.committed_lens[sequence]) + int(rows.num_nodes[sequence])
    logical = torch.arange(num_keys)
    slots = rows.block_table[sequence].long().cpu()[logical // rows.block_len] * rows.block_len + logical % rows.block_len
    return pool[:, slots.to(pool.device)]


def reference_paged_tree_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: PagedRows,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The definition, in fp64.

    query: [num_rows, heads, dim]. keys, values: a layer's pool [kv_heads, num_slots, dim]. window: a row at position t sees positions
    > t - window. sinks: [heads], as in `reference_tree_attention`. Every row must see a key. Returns float64 [num_rows, heads, dim].
    """
    parts = []
    begin = 0
    for sequence, num_rows in enumerate(rows.rows_per_sequence):
        own = range(begin, begin + num_rows)
        begin += num_rows
        if num_rows:
            visible = torch.stack([visible_keys(rows, sequence, row, window) for row in own])
            own_keys, own_values = gather_keys(keys, rows, sequence), gather_keys(values, rows, sequence)
            parts.append(reference_tree_attention(query[own.start : own.stop], own_keys, own_values, visible, scaling, softcap, sinks))
    return torch.cat(parts)
