"""The attention of a step on a card: all sequences in one launch of our Triton kernel, over the paged cache as it lies.

Reads nothing but the step's inputs on the card, so a forward with it can be recorded and played again (engine/card_graphs.py). Must not
know segments, models or sampling. Needs Triton: import it where a card is used.
"""

from __future__ import annotations

from torch import Tensor

from outrider.engine.attention import Scoring
from outrider.engine.card_inputs import CardInputs, CardShape
from outrider.engine.paged_cache import PagedCache
from outrider_kernels.decoder_pieces import KeyPlaces
from outrider_kernels.paged_tree_attention import PagedRows
from outrider_kernels.triton_tree_attention import TreeLaunch, paged_tree_attention, program_for, useful_splits


class CardAttention:
    """StepAttention over inputs of one shape."""

    def __init__(self, cache: PagedCache, inputs: CardInputs[Tensor], shape: CardShape, block_len: int) -> None:
        self._cache = cache
        self._inputs = inputs
        self._shape = shape
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

    def attend(self, layer: int, query: Tensor, keys_values: Tensor, scoring: Scoring) -> Tensor:
        """See StepAttention."""
        self._cache.write(layer, 0, 0, self._inputs.slots, keys_values)
        return self.attend_stored(layer, query.contiguous(), scoring)

    def key_places(self, layer: int) -> KeyPlaces:
        """Where the step's keys and values of a layer go, for who stores them by itself."""
        return KeyPlaces(self._cache.keys[layer], self._cache.values[layer], self._inputs.slots)

    def attend_stored(self, layer: int, query: Tensor, scoring: Scoring) -> Tensor:
        """`attend`, of a dense query, whose rows' keys and values are in the cache already."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        num_kv_heads = keys.shape[0]
        program = program_for(query.shape[1] // num_kv_heads, self._shape.tile_len)
        num_splits = useful_splits(self._shape.tiles, num_kv_heads, self._shape.keys)
        launch = TreeLaunch(self._rows, self._inputs.tiles, program, num_splits)
        sinks = None if scoring.sinks is None else scoring.sinks.contiguous()
        return paged_tree_attention(query, keys, values, launch, scoring.scaling, scoring.window, scoring.softcap, sinks)
