"""A step of one sequence whose rows are the next of a chain, with one pick wanted: the rows, the pick and what follows it in one call.

That is what a drafter beside one session does all the time, and a target that decodes plainly. Whatever is not clearly such a step, wrong
plans among them, is left to the general way, which checks and refuses; what both can do has the same bits. Must not know other sequences,
sessions or drafts.
"""

from __future__ import annotations

import time

from outrider.engine.acceptance.contract import AcceptanceNoise, ProbArray, TargetRows
from outrider.engine.acceptance.registry import ACCEPTANCE_RULES
from outrider.engine.chain_picks import ChainPicks
from outrider.engine.contract import EngineLimits
from outrider.engine.decoder_forward import RowChain
from outrider.engine.pick_follower import PickFollower
from outrider.engine.row_picker import RowPicker
from outrider.engine.sequence_state import SequenceState
from outrider.types.step import SequenceResult, SequenceRows, StepResult
from outrider.types.tree import DraftTree, IntArray, Verdict
from outrider_kernels.thin_chain import ChainStart


class LoneStep:
    """num_ids: emittable ids. follower: for the room a chain has."""

    def __init__(self, chain: RowChain, picker: RowPicker, follower: PickFollower, limits: EngineLimits, num_ids: int) -> None:
        self._picks = ChainPicks(chain, picker)
        self._follower = follower
        self._most_rows = limits.max_rows
        self._num_ids = num_ids

    def step(self, rows: SequenceRows, state: SequenceState, started_ns: int) -> StepResult | None:
        """The whole step, begun at started_ns (perf_counter_ns); None, with nothing changed, for the general way.

        Raises ModelRefused (logits that are no numbers) with nothing changed.
        """
        if not self._is_plain(rows, state):
            return None
        num_committed, num_live = len(rows.committed), len(state.tree)
        tokens = (rows.committed if num_committed else rows.tokens).tolist()
        base = state.cached_len + num_committed
        room = self._follower.room(state, base, num_live + len(rows.tokens))
        if room < 0 or min(tokens) < 0 or max(tokens) >= self._num_ids:
            return None
        wish = rows.follow
        most, stop_below = (1, 0.0) if wish is None else (1 + min(wish.num_more, room), wish.stop_below)
        called_ns = time.perf_counter_ns()
        start = ChainStart(tokens, state.cached_len + num_live, most, stop_below)
        found = self._picks.run(state, start, with_prob=rows.pick_probs)
        if num_committed:
            state.append(rows.committed)
        else:
            state.tree.extend(rows.tokens)
        state.tree.extend(found.picks[:-1])
        verdict = _verdict(rows, state, base, found.picks) if rows.acceptance else None
        probs = found.probs if rows.pick_probs else None
        ended_ns = time.perf_counter_ns()
        follow_us = (ended_ns - called_ns - found.first_ns) // 1000 if len(found.picks) > 1 else 0
        result = SequenceResult(rows.sequence, found.picks, verdict=verdict, pick_probs=probs, follow_us=follow_us)
        forward_us = (called_ns - started_ns + found.forward_ns) // 1000
        return StepResult((result,), forward_us, (ended_ns - started_ns) // 1000, len(tokens))

    def _is_plain(self, rows: SequenceRows, state: SequenceState) -> bool:
        """Whether rows and results are of the kind, and in keeping with what the sequence holds."""
        num_committed, num_nodes, num_live = len(rows.committed), len(rows.tokens), len(state.tree)
        params = state.spec.sampling
        if not rows.wanted or params.has_penalties or params.logit_bias or rows.num_choices or rows.top_logprobs is not None:
            return False
        if num_committed:
            has_room = state.cached_len + num_committed <= state.spec.max_len and num_committed <= self._most_rows
            return has_room and not (num_nodes or num_live or len(rows.parents)) and _is_judged_by_picks(rows)
        if num_nodes != 1 or len(rows.parents) != 1 or rows.acceptance or not state.cached_len:
            return False
        return state.tree.is_chain and int(rows.parents[0]) == num_live - 1


def _is_judged_by_picks(rows: SequenceRows) -> bool:
    """Whether no rule is asked, or one that looks at nothing but picks."""
    if not rows.acceptance:
        return True
    rule = ACCEPTANCE_RULES.get(rows.acceptance)
    return rule is not None and not rule.reads_probs and rows.follow is None


def _verdict(rows: SequenceRows, state: SequenceState, base: int, picks: IntArray) -> Verdict:
    tree, target = DraftTree(rows.tokens, rows.parents), TargetRows(picks, _no_probs)
    return ACCEPTANCE_RULES[rows.acceptance].accept(tree, rows.draft_rows, target, AcceptanceNoise(state.spec.noise, base))


def _no_probs(row: int) -> ProbArray:
    raise AssertionError(f"a rule that says it reads no probabilities asked for those of row {row}")
