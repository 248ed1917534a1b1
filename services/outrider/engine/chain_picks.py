"""One sequence's next rows and the picks after them, each pick fed as the next row: by the model's chain, and by the general pick where
that decides nothing.

Knows how to call the model for rows of one sequence one after another. Must not know batches, trees, or what becomes of the picks:
nothing of the sequence changes here but its KV, behind all that it holds.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from outrider.engine.decoder_forward import RowChain
from outrider.engine.row_picker import RowPicker
from outrider.engine.sequence_state import SequenceState
from outrider_kernels.thin_chain import ChainSlots, ChainStart, Followed
from outrider_kernels.thin_pick import LEFT, PickRule


@dataclass(frozen=True, slots=True)
class ChainPicks:
    """chain: of the model. picker: for the rows it leaves."""

    chain: RowChain
    picker: RowPicker

    def run(self, state: SequenceState, start: ChainStart, where: ChainSlots, rule: PickRule) -> Followed:
        """Picks behind the first rows and behind each that was fed after them, nothing left: all picks but the last were fed. Of a
        sequence without penalties and biases. Raises ModelRefused where logits are no numbers."""
        begin_ns = time.perf_counter_ns()
        found = self.chain.follow(start, rule, where)
        return self._decided(state, start, where, rule, found, begin_ns) if found.is_left else found

    def after_each(self, state: SequenceState, start: ChainStart, where: ChainSlots, rule: PickRule) -> Followed:
        """As `run`, for several wanted rows, behind which nothing is fed."""
        found = self.chain.follow(start, rule, where)
        if found.is_left:
            first = start.position + len(start.tokens) - start.num_wanted
            for row in np.flatnonzero(found.picks == LEFT).tolist():
                left = self._pick_left(state, row, first + row, rule)
                found.picks[row], found.probs[row] = left[:2]
                if found.seconds is not None and found.behinds is not None:
                    found.seconds[row], found.behinds[row] = left[2:]
        return found

    def _pick_left(self, state: SequenceState, row: int, position: int, rule: PickRule) -> tuple[int, float, int, float]:
        """The pick after a row that is left, its probability, its second and how far that lies behind."""
        logits, spec = self.chain.logits[row], state.spec
        with torch.inference_mode():
            pick, prob = self.picker.pick_left(logits, spec, position, with_prob=rule.with_prob)
            second, behind = self.picker.second_left(logits, spec, position) if rule.with_second else (LEFT, math.nan)
        return pick, prob, second, behind

    def _decided(
        self, state: SequenceState, start: ChainStart, where: ChainSlots, rule: PickRule, found: Followed, begin_ns: int
    ) -> Followed:
        """Each pick that is left, and on from there."""
        parts, num_found, base = [found], len(found.picks), start.position + len(start.tokens)
        first_ns = found.first_ns
        while found.is_left:
            pick, prob, second, behind = self._pick_left(state, 0, base + num_found - 1, rule)
            prob = 1.0 if math.isnan(prob) else float(np.float32(prob))  # as the result says it
            parts.append(_one_pick(pick, prob, second, behind))
            num_found += 1
            if num_found == 1:
                first_ns = time.perf_counter_ns() - begin_ns
            if num_found >= start.most or not self.chain.feeds(pick, prob, start.stop_below):
                break
            again = ChainStart((pick,), base + num_found - 1, start.most - num_found, start.stop_below)
            found = self.chain.follow(again, rule, where)
            parts.append(found)
            num_found += len(found.picks)
        whole = _joined(parts, with_second=rule.with_second)
        return replace(whole, forward_ns=parts[0].forward_ns, first_ns=first_ns, hidden_ns=parts[0].hidden_ns)


def _one_pick(pick: int, prob: float, second: int, behind: float) -> Followed:
    seconds = np.array([second], np.int32), np.array([behind], np.float32)
    return Followed(np.array([pick], np.int32), np.array([prob], np.float32), False, 0, 0, *seconds)


def _joined(parts: list[Followed], *, with_second: bool) -> Followed:
    picks, probs = np.concatenate([part.picks for part in parts]), np.concatenate([part.probs for part in parts])
    if not with_second:
        return Followed(picks, probs, False)
    seconds = [part.seconds for part in parts if part.seconds is not None]
    behinds = [part.behinds for part in parts if part.behinds is not None]
    return Followed(picks, probs, False, 0, 0, np.concatenate(seconds), np.concatenate(behinds))
