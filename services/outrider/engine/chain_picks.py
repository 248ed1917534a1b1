"""One sequence's next rows and the picks after them, each pick fed as the next row: by the model's chain, and by the general pick where
that decides nothing.

Knows how to call the model for rows of one sequence one after another. Must not know batches, trees, or what becomes of the picks:
nothing of the sequence changes here but its KV, behind all that it holds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from outrider.engine.decoder_forward import RowChain
from outrider.engine.row_picker import RowPicker, sampling_of
from outrider.engine.sampling.rows import RowSampling
from outrider.engine.sequence_state import SequenceState
from outrider_kernels.thin_chain import ChainSlots, ChainStart, Followed
from outrider_kernels.thin_pick import LEFT, PickRule


@dataclass(frozen=True, slots=True)
class ChainPicks:
    """chain: of the model. picker: for the rows it leaves."""

    chain: RowChain
    picker: RowPicker

    def run(self, state: SequenceState, start: ChainStart, where: ChainSlots, rule: PickRule) -> Followed:
        """Picks behind the first rows and behind each that was fed after them, nothing left: all picks but the last were fed. The rule
        is of now: with what the committed tokens touch. Raises ModelRefused where logits are no numbers."""
        begin_ns = time.perf_counter_ns()
        found = self.chain.follow(start, rule, where)
        return self._decided(state, start, where, rule, found, begin_ns) if found.is_left else found

    def after_each(self, state: SequenceState, start: ChainStart, where: ChainSlots, rule: PickRule) -> Followed:
        """As `run`, for several wanted rows, behind which nothing is fed."""
        found = self.chain.follow(start, rule, where)
        if found.is_left:
            num_before = len(start.tokens) - start.num_wanted
            for row in np.flatnonzero(found.picks == LEFT).tolist():
                own = _sampling_after(state, start, start.tokens[: num_before + row + 1])
                left = self._pick_left(row, own, rule)
                found.picks[row], found.probs[row] = left[:2]
                if found.seconds is not None and found.behinds is not None:
                    found.seconds[row], found.behinds[row] = left[2:]
        return found

    def _pick_left(self, row: int, left: RowSampling, rule: PickRule) -> tuple[int, float, int, float]:
        """The pick after a row that is left, its probability, its second and how far that lies behind."""
        logits = self.chain.logits[row]
        with torch.inference_mode():
            pick, prob = self.picker.pick_left(logits, left, with_prob=rule.with_prob)
            second, behind = self.picker.second_left(logits, left) if rule.with_second else (LEFT, math.nan)
        return pick, prob, second, behind

    def _decided(
        self, state: SequenceState, start: ChainStart, where: ChainSlots, rule: PickRule, found: Followed, begin_ns: int
    ) -> Followed:
        """Each pick that is left, and on from there."""
        parts, num_found, base = [found], len(found.picks), start.position + len(start.tokens)
        tokens, first_ns = [*start.tokens, *found.picks.tolist()], found.first_ns
        while found.is_left:
            pick, prob, second, behind = self._pick_left(0, _sampling_after(state, start, tokens), rule)
            prob = 1.0 if math.isnan(prob) else float(np.float32(prob))  # as the result says it
            parts.append(_one_pick(pick, prob, second, behind))
            num_found += 1
            if num_found == 1:
                first_ns = time.perf_counter_ns() - begin_ns
            if num_found >= start.most or not self.chain.feeds(pick, prob, start.stop_below):
                break
            before = (*start.before, *tokens)
            again = ChainStart((pick,), base + num_found - 1, start.most - num_found, start.stop_below, before=before)
            found = self.chain.follow(again, rule, where)
            parts.append(found)
            num_found += len(found.picks)
            tokens += [pick, *found.picks.tolist()]
        whole = _joined(parts, with_second=rule.with_second)
        return replace(whole, forward_ns=parts[0].forward_ns, first_ns=first_ns, hidden_ns=parts[0].hidden_ns)


def _sampling_after(state: SequenceState, start: ChainStart, tokens: Sequence[int]) -> RowSampling:
    """Of the row of the last of these tokens, which a start begins with."""
    position = start.position + len(tokens)
    return sampling_of(state, np.array([position], np.int64), ([*start.before, *tokens],) if state.is_penalised else ())


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
