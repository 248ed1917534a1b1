"""One sequence's next rows and the picks after them, each pick fed as the next row: by the model's chain, and by the general pick where
that decides nothing.

Knows how to call the model for rows of one sequence one after another. Must not know batches, trees, or what becomes of the picks:
nothing of the sequence changes here but its KV, behind all that it holds.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import torch

from outrider.engine.decoder_forward import RowChain
from outrider.engine.row_picker import RowPicker
from outrider.engine.sequence_state import SequenceState
from outrider_kernels.thin_chain import ChainStart, Followed
from outrider_kernels.thin_pick import LEFT, PickRule


@dataclass(frozen=True, slots=True)
class ChainPicks:
    """chain: of the model. picker: for the rows it leaves."""

    chain: RowChain
    picker: RowPicker

    def run(self, state: SequenceState, start: ChainStart, *, with_prob: bool) -> Followed:
        """Picks behind the first rows and behind each that was fed after them, nothing left: all picks but the last were fed. Of a
        sequence without penalties and biases. Raises ModelRefused where logits are no numbers."""
        rule = self.picker.rule_of(state, with_prob=with_prob)
        begin_ns = time.perf_counter_ns()
        found = self.chain.follow(start, rule, state.table.chain_slots)
        return self._decided(state, start, rule, found, begin_ns) if found.is_left else found

    def after_each(self, state: SequenceState, start: ChainStart, *, with_prob: bool) -> Followed:
        """As `run`, for several wanted rows, behind which nothing is fed."""
        found = self.chain.follow(start, self.picker.rule_of(state, with_prob=with_prob), state.table.chain_slots)
        if found.is_left:
            first = start.position + len(start.tokens) - start.num_wanted
            for row in np.flatnonzero(found.picks == LEFT).tolist():
                with torch.inference_mode():
                    left = self.picker.pick_left(self.chain.logits[row], state.spec, first + row, with_prob=with_prob)
                found.picks[row], found.probs[row] = left
        return found

    def _decided(self, state: SequenceState, start: ChainStart, rule: PickRule, found: Followed, begin_ns: int) -> Followed:
        """Each pick that is left, and on from there."""
        picks, probs = found.picks.tolist(), found.probs.tolist()
        first_ns, forward_ns, base = found.first_ns, found.forward_ns, start.position + len(start.tokens)
        while found.is_left:
            with torch.inference_mode():
                left = self.picker.pick_left(self.chain.logits[0], state.spec, base + len(picks) - 1, with_prob=rule.with_prob)
            picks.append(left[0])
            probs.append(1.0 if math.isnan(left[1]) else float(np.float32(left[1])))  # as the result says it
            if len(picks) == 1:
                first_ns = time.perf_counter_ns() - begin_ns
            if len(picks) >= start.most or not self.chain.feeds(picks[-1], probs[-1], start.stop_below):
                break
            again = ChainStart((picks[-1],), base + len(picks) - 1, start.most - len(picks), start.stop_below)
            found = self.chain.follow(again, rule, state.table.chain_slots)
            picks += found.picks.tolist()
            probs += found.probs.tolist()
        return Followed(np.array(picks, np.int32), np.array(probs, np.float32), False, forward_ns, first_ns)
