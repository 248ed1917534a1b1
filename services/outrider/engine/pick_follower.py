"""A sequence's own picks, followed: each is fed as the newest node's child and picked after, many to a step.

For drafting, where a step for each token would cost more than the model does. Knows what a step has made of one sequence's rows. A row's
bits and its pick are those that a step for it would give. Must not know batches, trees beside the chain, or drafts.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from outrider.engine.chain_picks import ChainPicks
from outrider.engine.decoder_forward import RowChain
from outrider.engine.row_picker import RowPicker
from outrider.engine.sequence_state import SequenceState
from outrider.engine.step_batch import Segment
from outrider.types.step import Follow, SequenceResult, SequenceRows
from outrider_kernels.thin_chain import ChainStart


class PickFollower:
    """max_depth: levels a tree may have. max_context: positions the model has."""

    def __init__(self, chain: RowChain, picker: RowPicker, max_depth: int, max_context: int) -> None:
        self._picks = ChainPicks(chain, picker)
        self._max_depth = max_depth
        self._max_context = max_context

    def room(self, state: SequenceState, base: int, num_nodes: int) -> int:
        """Nodes that the sequence may still get behind a chain of num_nodes. base: position of the first of them."""
        own_room = state.spec.max_nodes - num_nodes
        return min(own_room, self._max_depth - num_nodes, self._max_context - base - num_nodes)

    def follow(self, segment: Segment, result: SequenceResult, wish: Follow) -> SequenceResult:
        """The result with the picks that followed; as it was where there is no chain to go on with.

        May raise what the pick raises, with nothing added.
        """
        state, with_prob = segment.state, segment.rows.pick_probs
        tree, params = state.tree, state.spec.sampling
        if segment.num_wanted != 1 or not tree.is_chain or params.has_penalties or params.logit_bias or says_more(segment.rows):
            return result
        begin_ns = time.perf_counter_ns()
        first, prob = int(result.picks[0]), 1.0 if result.pick_probs is None else float(result.pick_probs[0])
        room = min(wish.num_more, self.room(state, segment.base, len(tree)))
        if room < 1 or not self._picks.chain.feeds(first, prob, wish.stop_below):
            return result
        start = ChainStart((first,), segment.base + len(tree), room, wish.stop_below)
        found = self._picks.run(state, start, with_prob=with_prob)
        picks = np.concatenate((result.picks, found.picks))
        tree.extend(picks[:-1])
        probs = np.concatenate((result.pick_probs, found.probs)) if result.pick_probs is not None else None
        return replace(result, picks=picks, pick_probs=probs, follow_us=(time.perf_counter_ns() - begin_ns) // 1000)


def says_more(rows: SequenceRows) -> bool:
    """Whether the result says of each row what a followed pick would not have."""
    return bool(rows.num_choices or rows.acceptance) or rows.top_logprobs is not None
