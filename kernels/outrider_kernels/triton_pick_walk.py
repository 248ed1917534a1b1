"""The picks of a step matched against its trees, in Triton: the accepted path of every sequence, without a trip to the host.

From the root, the walk goes to the child whose token is the pick at the node before, as far as there is one; the pick where it ends is
emitted. The definition is `outrider.engine.pick_walk.walk_picks`. Must not know distributions. Source: coupled acceptance,
docs/architecture.md section 1.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outrider_kernels.pick_rows import Walks


def walk_picks(tokens: Tensor, parents: Tensor, picks: Tensor, node_begins: Tensor, max_nodes: int) -> Walks:
    """Walk every tree. tokens, parents: int32 [all nodes], parents counted within a tree, -1 for children of the root, before children.

    node_begins: int32 [num_seqs + 1], where each tree's nodes begin. picks: int32 [all nodes + num_seqs], of each sequence the root's
    row first, then its nodes'. max_nodes: at least the largest tree's nodes, at least 1.
    """
    num_sequences = node_begins.numel() - 1
    paths = torch.full((num_sequences, max_nodes), -1, dtype=torch.int32, device=picks.device)
    lens, emitted, bonus = torch.zeros(3, num_sequences, dtype=torch.int32, device=picks.device)
    if num_sequences:
        _walk_kernel[(num_sequences,)](
            tokens, parents, picks, node_begins, paths, lens, emitted, bonus, max_nodes, TILE_NODES=triton.next_power_of_2(max_nodes)
        )
    return Walks(paths, lens, emitted, bonus.bool())


@triton.jit
def _walk_kernel(
    tokens: tl.tensor, parents: tl.tensor, picks: tl.tensor, node_begins: tl.tensor, paths_out: tl.tensor, lens_out: tl.tensor,
    emitted_out: tl.tensor, bonus_out: tl.tensor, max_nodes: tl.tensor,
    TILE_NODES: tl.constexpr,
) -> None:  # fmt: skip
    """One sequence. A child's index is above its parent's, so the walk ends."""
    sequence = tl.program_id(0)
    begin = tl.load(node_begins + sequence)
    node = tl.arange(0, TILE_NODES)
    real = node < tl.load(node_begins + sequence + 1) - begin
    token = tl.load(tokens + begin + node, mask=real, other=0)
    parent = tl.load(parents + begin + node, mask=real, other=-2)
    own_picks = picks + begin + sequence
    here = tl.full([], -1, tl.int32)
    path_len = tl.full([], 0, tl.int32)
    picked = tl.load(own_picks)
    child = tl.max(tl.where((parent == here) & (token == picked), node, -1), axis=0)
    while child > here:
        tl.store(paths_out + sequence * max_nodes + path_len, child)
        path_len += 1
        here = child
        picked = tl.load(own_picks + here + 1)
        child = tl.max(tl.where((parent == here) & (token == picked), node, -1), axis=0)
    has_children = tl.max(tl.where(parent == here, 1, 0), axis=0)
    tl.store(lens_out + sequence, path_len)
    tl.store(emitted_out + sequence, picked)
    tl.store(bonus_out + sequence, 1 - has_children)
