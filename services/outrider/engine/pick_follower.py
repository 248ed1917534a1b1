"""A sequence's own picks, followed: each is fed as the newest node's child and picked after, many to a step.

For drafting, where a step for each token would cost more than the model does. Knows one sequence's state and how to call the model for one
row; a row's bits and its pick are those that a step for it would give. Must not know batches, trees beside the chain, or drafts.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np

from outrider.engine.decoder_forward import RowForward
from outrider.engine.row_picker import RowPicker
from outrider.engine.step_batch import Segment
from outrider.types.step import Follow, SequenceResult, SequenceRows
from outrider.types.tree import ROOT, IntArray


class PickFollower:
    """max_depth: levels a tree may have. max_context: positions the model has. end_ids: tokens that end a text."""

    def __init__(self, rows: RowForward, picker: RowPicker, end_ids: tuple[int, ...], max_depth: int, max_context: int) -> None:
        self._rows = rows
        self._picker = picker
        self._end_ids = frozenset(end_ids)
        self._max_depth = max_depth
        self._max_context = max_context

    def follow(self, segment: Segment, result: SequenceResult, wish: Follow) -> SequenceResult:
        """The result with the picks that followed; as it was where there is no chain to go on with.

        May raise what the model or the pick raises, with nodes added: whoever asked for the step reverts it.
        """
        state, with_prob = segment.state, segment.rows.pick_probs
        tree, params = state.tree, state.spec.sampling
        is_chain = not len(tree) or int(tree.depths[-1]) == len(tree) - 1
        if segment.num_wanted != 1 or not is_chain or params.has_penalties or params.logit_bias or _says_more(segment.rows):
            return result
        begin_ns = time.perf_counter_ns()
        picks = [int(result.picks[0])]
        probs = [1.0 if result.pick_probs is None else float(result.pick_probs[0])]
        room = min(wish.num_more, tree.room, self._max_depth - len(tree), self._max_context - segment.base - len(tree))
        while len(picks) <= room and picks[-1] not in self._end_ids and not probs[-1] < wish.stop_below:
            position = segment.base + len(tree)
            tree.add(np.array(picks[-1:], np.int32), _parent(len(tree)))
            logits = self._rows.logits(picks[-1], position, state.table)
            pick, prob = self._picker.pick_after(logits, state.spec, position, with_prob=with_prob)
            picks.append(pick)
            probs.append(1.0 if math.isnan(prob) else float(np.float32(prob)))  # as the result says it
        found_probs = np.array(probs, np.float32) if with_prob else None
        follow_us = (time.perf_counter_ns() - begin_ns) // 1000
        return replace(result, picks=np.array(picks, np.int32), pick_probs=found_probs, follow_us=follow_us)


def _says_more(rows: SequenceRows) -> bool:
    """Whether the result says of each row what a followed pick would not have."""
    return bool(rows.num_choices or rows.acceptance) or rows.top_logprobs is not None


def _parent(num_nodes: int) -> IntArray:
    """Of the next node of a chain that has so many."""
    return np.array([num_nodes - 1 if num_nodes else ROOT], np.int32)
