"""A sequence's own picks, followed: each is fed as the newest node's child and picked after, many to a step.

For drafting, where a step for each token would cost more than the model does. Knows one sequence's state and how to call the model for
rows one after another; what that leaves undecided the general pick decides. A row's bits and its pick are those that a step for it would
give. Must not know batches, trees beside the chain, or drafts.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np

from outrider.engine.decoder_forward import RowChain
from outrider.engine.row_picker import RowPicker
from outrider.engine.step_batch import Segment
from outrider.types.step import Follow, SequenceResult, SequenceRows
from outrider.types.tree import ROOT, IntArray
from outrider_kernels.thin_chain import ChainStart


class PickFollower:
    """max_depth: levels a tree may have. max_context: positions the model has."""

    def __init__(self, chain: RowChain, picker: RowPicker, max_depth: int, max_context: int) -> None:
        self._chain = chain
        self._picker = picker
        self._max_depth = max_depth
        self._max_context = max_context

    def follow(self, segment: Segment, result: SequenceResult, wish: Follow) -> SequenceResult:
        """The result with the picks that followed; as it was where there is no chain to go on with.

        May raise what the pick raises, with nodes added: whoever asked for the step reverts it.
        """
        state, with_prob = segment.state, segment.rows.pick_probs
        tree, params = state.tree, state.spec.sampling
        is_chain = not len(tree) or int(tree.depths[-1]) == len(tree) - 1
        if segment.num_wanted != 1 or not is_chain or params.has_penalties or params.logit_bias or _says_more(segment.rows):
            return result
        begin_ns = time.perf_counter_ns()
        room = min(wish.num_more, tree.room, self._max_depth - len(tree), self._max_context - segment.base - len(tree))
        grown = _Grown([int(result.picks[0])], [1.0 if result.pick_probs is None else float(result.pick_probs[0])], with_prob)
        while len(grown.picks) <= room and self._go_on(segment, grown, room + 1 - len(grown.picks), wish.stop_below):
            pass
        found_probs = np.array(grown.probs, np.float32) if with_prob else None
        follow_us = (time.perf_counter_ns() - begin_ns) // 1000
        return replace(result, picks=np.array(grown.picks, np.int32), pick_probs=found_probs, follow_us=follow_us)

    def _go_on(self, segment: Segment, grown: _Grown, most: int, stop_below: float) -> bool:
        """At most so many picks more, and the nodes that they were made after. False where the chain has ended."""
        tree, spec = segment.state.tree, segment.state.spec
        newest, position = grown.picks[-1], segment.base + len(tree)
        rule = self._picker.rule(spec, with_prob=grown.with_prob)
        found = self._chain.follow(ChainStart(newest, grown.probs[-1], position, most, stop_below), rule, segment.state.table)
        picks = found.picks.tolist()
        fed = [newest, *picks][: len(picks) + found.is_left]
        tree.add(np.array(fed, np.int32), _parents(len(tree), len(fed)))
        grown.picks += picks
        grown.probs += found.probs.tolist()
        if found.is_left:
            pick, prob = self._picker.pick_left(self._chain.logits, spec, position + len(picks), with_prob=grown.with_prob)
            grown.picks.append(pick)
            grown.probs.append(1.0 if math.isnan(prob) else float(np.float32(prob)))  # as the result says it
        return found.is_left


@dataclass(slots=True)
class _Grown:
    """A chain's picks so far and their probabilities, 1 each where nobody asks for them."""

    picks: list[int]
    probs: list[float]
    with_prob: bool


def _says_more(rows: SequenceRows) -> bool:
    """Whether the result says of each row what a followed pick would not have."""
    return bool(rows.num_choices or rows.acceptance) or rows.top_logprobs is not None


def _parents(num_nodes: int, num_more: int) -> IntArray:
    """Of the next nodes of a chain that has so many."""
    assert ROOT == -1  # so the node before the first is the root
    return np.arange(num_nodes - 1, num_nodes - 1 + num_more, dtype=np.int32)
