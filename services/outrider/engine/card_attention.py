"""The attention of a step on a card: all sequences in one launch of our Triton kernel, over the paged cache as it lies.

Reads nothing but the step's inputs on the card, so a forward with it can be recorded and played again (engine/card_graphs.py). Must not
know segments, models or sampling. Needs Triton: import it where a card is used.
"""

from __future__ import annotations

from torch import Tensor

from outrider.engine.card_inputs import CardInputs, CardShape
from outrider.engine.paged_cache import PagedCache
from outrider_kernels.paged_tree_attention import PagedRows
from outrider_kernels.triton_tree_attention import TreeLaunch, paged_tree_attention, tile_rows_for, useful_splits


class CardAttention:
    """StepAttention over inputs of one shape. rows_per_tile: what the tiles among the inputs hold at most."""

    def __init__(self, cache: PagedCache, inputs: CardInputs[Tensor], shape: CardShape, block_len: int, rows_per_tile: int) -> None:
        self._cache = cache
        self._inputs = inputs
        self._shape = shape
        self._rows_per_tile = rows_per_tile
        self._rows = PagedRows(
            rows_per_sequence=(),
            block_table=inputs.block_table,
            committed_lens=inputs.committed_lens,
            num_nodes=inputs.num_nodes,
            node_positions=inputs.node_positions,
            row_positions=inputs.row_positions,
            row_ancestry=inputs.row_ancestry,
            block_len=block_len,
            max_keys=shape.keys,
        )

    def attend(self, layer: int, query: Tensor, keys_values: Tensor, scaling: float, window: int | None, softcap: float | None) -> Tensor:
        """See StepAttention."""
        self._cache.write(layer, 0, 0, self._inputs.slots, keys_values)
        num_kv_heads = keys_values.shape[1]
        tile_rows = tile_rows_for(query.shape[1] // num_kv_heads, self._rows_per_tile)
        num_splits = useful_splits(self._shape.tiles, num_kv_heads, self._shape.keys)
        launch = TreeLaunch(self._rows, self._inputs.tiles, tile_rows, num_splits)
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        return paged_tree_attention(query.contiguous(), keys, values, launch, scaling, window, softcap)
