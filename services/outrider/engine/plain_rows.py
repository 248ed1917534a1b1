"""The picks of a step in which nobody verifies guesses: one row a sequence, each by its sequence's own rule.

That is most steps of many sessions at a time, and what stands around a pick costs several times what the pick does. Whatever else a step
asks for is left to the general way (row_picker.py), which finds the same for these. Must not know candidates, log-probabilities or trees.
"""

from __future__ import annotations

from typing import Protocol

from outrider.engine.acceptance.contract import Guarantee
from outrider.engine.acceptance.registry import acceptance_rule
from outrider.engine.sequence_state import SequenceState
from outrider.engine.step_batch import Segment, StepBatch
from outrider.types.step import Seconds, SequenceResult
from outrider.types.tree import FloatArray, Verdict
from outrider_kernels.thin_pick import LEFT, PickRule, ThinPick, ThinPicks


class RuleOf(Protocol):
    """How a sequence is picked after, with the picks' probabilities and seconds or without."""

    def __call__(self, state: SequenceState, *, with_prob: bool, with_second: bool) -> PickRule:
        """Of an open sequence without penalties or biases."""
        ...


def plain_results(batch: StepBatch, logits: FloatArray, picker: ThinPick, rule_of: RuleOf) -> tuple[SequenceResult, ...] | None:
    """One result per segment, in order; None where a step asks for more, or a row is not decided for certain.

    logits: float32 [wanted rows, num_ids], ids of nothing at -inf.
    """
    if not all(map(_is_plain, batch.segments)):
        return None
    # behind the newest committed token: at the sequence's own end
    wanted = [one for one in batch.segments if one.num_wanted]
    rows = [(rule_of(one.state, with_prob=one.rows.pick_probs, with_second=one.rows.seconds), (one.base,)) for one in wanted]
    found = picker.run(logits, rows)
    tokens = found.tokens.tolist()
    return None if LEFT in tokens else _results(batch, found, tokens)


def _results(batch: StepBatch, found: ThinPicks, tokens: list[int]) -> tuple[SequenceResult, ...]:
    results: list[SequenceResult] = []
    begin = 0
    for segment in batch.segments:
        rows, end = segment.rows, begin + segment.num_wanted
        # A rule that promises the target's own tokens has nothing else to say of a tree without nodes.
        verdict = Verdict((), tokens[begin], bonus=True) if rows.acceptance else None
        probs = found.probs[begin:end] if rows.pick_probs else None
        seconds = seconds_of(found, begin, end) if rows.seconds else None
        results.append(SequenceResult(rows.sequence, found.tokens[begin:end], verdict=verdict, pick_probs=probs, seconds=seconds))
        begin = end
    return tuple(results)


def seconds_of(found: ThinPicks, begin: int, end: int) -> Seconds:
    """Of rows [begin, end), which were asked for them."""
    assert found.seconds is not None
    assert found.behinds is not None
    return Seconds(found.seconds[begin:end], found.behinds[begin:end])


def _is_plain(segment: Segment) -> bool:
    """Whether a segment has committed tokens alone, and nothing but their last one's pick is wanted, if anything is."""
    rows, params = segment.rows, segment.state.spec.sampling
    if len(rows.tokens) or rows.num_choices or rows.top_logprobs is not None:
        return False
    if params.has_penalties or params.logit_bias or params.top_k:  # no row of these is decided quickly
        return False
    return not rows.acceptance or acceptance_rule(rows.acceptance).guarantee is Guarantee.TOKENS
