"""A step of one sequence whose rows are the next of a chain: the rows and their picks in one call, and what follows the only one.

That is what a drafter beside one session does all the time, and a target that decodes plainly or verifies a chain. Whatever is not clearly
such a step, wrong plans among them, is left to the general way, which checks and refuses; what both can do has the same bits. Must not know
other sequences, sessions or drafts.
"""

from __future__ import annotations

import time

import numpy as np

from outrider.engine.chain_picks import ChainPicks
from outrider.engine.contract import EngineLimits
from outrider.engine.decoder_forward import RowChain
from outrider.engine.judged_picks import is_judged_by_picks, judged_picks
from outrider.engine.pick_follower import PickFollower, seconds_of_chain
from outrider.engine.row_picker import RowPicker
from outrider.engine.sequence_state import SequenceState
from outrider.types.step import SequenceResult, SequenceRows, StepResult
from outrider.types.tree import ROOT
from outrider_kernels.thin_chain import ChainStart, Followed


class LoneStep:
    """num_ids: emittable ids. follower: for the room a chain has."""

    def __init__(self, chain: RowChain, picker: RowPicker, follower: PickFollower, limits: EngineLimits, num_ids: int) -> None:
        self._picks = ChainPicks(chain, picker)
        self._follower = follower
        self._most_rows = limits.max_rows
        self._most_together = min(limits.max_rows, chain.most_rows)
        self._num_ids = num_ids

    def step(self, rows: SequenceRows, state: SequenceState, started_ns: int) -> StepResult | None:
        """The whole step, begun at started_ns (perf_counter_ns); None, with nothing changed, for the general way.

        Raises ModelRefused (logits that are no numbers) with nothing changed.
        """
        if not self._is_plain(rows, state):
            return None
        num_committed, num_live = len(rows.committed), len(state.tree)
        tokens = rows.committed.tolist() + rows.tokens.tolist()
        base, above = state.cached_len + num_committed, int(rows.parents[0]) if len(rows.parents) else ROOT
        depth = state.tree.depth_below(above) + len(rows.tokens)
        room = self._follower.room(state, num_live + len(rows.tokens), depth, base + depth)
        if room < 0 or min(tokens) < 0 or max(tokens) >= self._num_ids:
            return None
        called_ns = time.perf_counter_ns()
        found = self._found(rows, state, tokens, above, room)
        verdict = judged_picks(rows, state.spec.noise, base, found.picks) if rows.acceptance else None
        scored = None
        if rows.top_logprobs is not None:
            scored = self._picks.picker.scored(self._picks.chain.logits[: len(found.picks)], found.picks, rows, verdict)
        if num_committed:
            state.append(rows.committed)
        fed = np.concatenate((rows.tokens, found.picks[:-1])) if rows.follow is not None else rows.tokens
        state.tree.extend_below(above, fed)
        seconds = seconds_of_chain(found) if rows.seconds else None
        probs = found.probs if rows.pick_probs else None
        ended_ns = time.perf_counter_ns()
        has_followed = rows.follow is not None and len(found.picks) > 1
        ended_ns += found.hidden_ns  # what a step costs is what was computed, whenever that was
        follow_us = (ended_ns - called_ns - found.first_ns) // 1000 if has_followed else 0
        result = SequenceResult(rows.sequence, found.picks, None, scored, verdict, probs, follow_us, seconds)
        forward_us = (called_ns - started_ns + found.forward_ns) // 1000
        return StepResult((result,), forward_us, (ended_ns - started_ns) // 1000, len(tokens), was_ahead=found.hidden_ns > 0)

    def _found(self, rows: SequenceRows, state: SequenceState, tokens: list[int], above: int, room: int) -> Followed:
        """The picks after the newest committed token and each guess, or after the only one, below this node, and what follows it."""
        position, wish = state.cached_len + state.tree.depth_below(above), rows.follow
        rule = self._picks.picker.rule_of(state, with_prob=rows.pick_probs, with_second=rows.seconds)
        where, is_scored = state.chain_slots(above), rows.top_logprobs is not None
        num_wanted, before = min(1, len(rows.committed)) + len(rows.tokens), state.uncounted(above)
        if num_wanted > 1:
            return self._picks.after_each(state, ChainStart(tokens, position, num_wanted, 0.0, num_wanted, (), is_scored), where, rule)
        most, stop_below = (1, 0.0) if wish is None else (1 + min(wish.num_more, room), wish.stop_below)
        return self._picks.run(state, ChainStart(tokens, position, most, stop_below, 1, before, is_scored), where, rule)

    def _is_plain(self, rows: SequenceRows, state: SequenceState) -> bool:
        """Whether rows and results are of the kind, and in keeping with what the sequence holds."""
        num_committed, num_nodes, num_live = len(rows.committed), len(rows.tokens), len(state.tree)
        if not rows.wanted or rows.num_choices or (rows.top_logprobs is not None and rows.follow is not None):
            return False
        if state.is_penalised and state.cached_len < state.spec.num_prompt:  # tokens of the prompt count otherwise
            return False
        if state.cached_len + num_committed > state.held_len:
            return False
        if num_committed:
            return num_committed <= self._most_rows and not num_live and self._are_guesses(rows) and _is_judged_here(rows)
        if num_nodes != 1 or len(rows.parents) != 1 or rows.acceptance or not state.cached_len:
            return False
        return ROOT <= int(rows.parents[0]) < num_live

    def _are_guesses(self, rows: SequenceRows) -> bool:
        """Whether the nodes are a chain below the committed tokens, or none."""
        num_nodes = len(rows.tokens)
        if not num_nodes:
            return not len(rows.parents)
        is_chain = rows.parents.tolist() == list(range(-1, num_nodes - 1))
        return is_chain and rows.follow is None and len(rows.committed) + num_nodes <= self._most_together


def _is_judged_here(rows: SequenceRows) -> bool:
    """Whether no rule is asked, or one that looks at nothing but the picks of a step that goes no further."""
    return not rows.acceptance or (rows.follow is None and is_judged_by_picks(rows))
