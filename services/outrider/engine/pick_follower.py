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
from outrider.types.step import Follow, Seconds, SequenceResult, SequenceRows
from outrider.types.tree import ROOT
from outrider_kernels.thin_chain import ChainStart, Followed


class PickFollower:
    """max_depth: levels a tree may have. max_context: positions the model has."""

    def __init__(self, chain: RowChain, picker: RowPicker, max_depth: int, max_context: int) -> None:
        self._picks = ChainPicks(chain, picker)
        self._max_depth = max_depth
        self._max_context = max_context

    def room(self, state: SequenceState, num_nodes: int, depth: int, position: int) -> int:
        """Nodes that the sequence may still get as a chain. num_nodes: that live; depth, position: of the first of them."""
        return min(state.spec.max_nodes - num_nodes, self._max_depth - depth, self._max_context - position)

    def follow(self, segment: Segment, result: SequenceResult, wish: Follow) -> SequenceResult:
        """The result with the picks that followed; as it was where there is no chain to go on with.

        May raise what the pick raises, with nothing added.
        """
        state, rows = segment.state, segment.rows
        tree = state.tree
        if segment.num_wanted != 1 or says_more(rows):
            return result
        above = len(tree) - 1 if len(rows.tokens) else ROOT  # of the picks: the row's own node
        begin_ns = time.perf_counter_ns()
        first, prob = int(result.picks[0]), 1.0 if result.pick_probs is None else float(result.pick_probs[0])
        depth = tree.depth_below(above)
        room = min(wish.num_more, self.room(state, len(tree), depth, segment.base + depth))
        if room < 1 or not self._picks.chain.feeds(first, prob, wish.stop_below):
            return result
        start = ChainStart((first,), segment.base + depth, room, wish.stop_below, before=state.uncounted(above))
        rule = self._picks.picker.rule_of(state, with_prob=rows.pick_probs, with_second=rows.seconds)
        found = self._picks.run(state, start, state.chain_slots(above), rule)
        picks = np.concatenate((result.picks, found.picks))
        tree.extend_below(above, picks[:-1])
        probs = np.concatenate((result.pick_probs, found.probs)) if result.pick_probs is not None else None
        seconds = _joined(result.seconds, seconds_of_chain(found)) if result.seconds is not None else None
        spent_us = (time.perf_counter_ns() - begin_ns) // 1000
        return replace(result, picks=picks, pick_probs=probs, seconds=seconds, follow_us=spent_us)


def seconds_of_chain(found: Followed) -> Seconds:
    """Of a chain whose rule asked for them."""
    assert found.seconds is not None
    assert found.behinds is not None
    return Seconds(found.seconds, found.behinds)


def _joined(first: Seconds, rest: Seconds) -> Seconds:
    return Seconds(np.concatenate((first.ids, rest.ids)), np.concatenate((first.behind, rest.behind)))


def says_more(rows: SequenceRows) -> bool:
    """Whether the result says of each row what a followed pick would not have."""
    return bool(rows.num_choices or rows.acceptance) or rows.top_logprobs is not None
