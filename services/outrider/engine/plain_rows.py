"""The picks of a step whose sequences ask for nothing beside them but probabilities, seconds, log-probabilities, and verdicts that look at
picks alone.

That is most steps of many sessions at a time, with guesses or without, and what stands around a pick costs several times what the pick
does. Each sequence's rows are picked after by its own rule, all in one call. Whatever else a step asks for is left to the general way
(row_picker.py), which finds the same for these. Must not know candidates or distributions.
"""

from __future__ import annotations

from typing import Protocol

from outrider.engine.judged_picks import is_judged_by_picks, judged_picks
from outrider.engine.sequence_state import SequenceState
from outrider.engine.step_batch import Segment, StepBatch
from outrider.types.step import Seconds, SequenceResult, SequenceRows, TokenLogprobs
from outrider.types.tree import FloatArray, IntArray, Verdict
from outrider_kernels.thin_pick import LEFT, MAX_TOP_K, PickRule, ThinPick, ThinPicks


class RuleOf(Protocol):
    """How a sequence is picked after, with the picks' probabilities and seconds or without."""

    def __call__(self, state: SequenceState, *, with_prob: bool, with_second: bool) -> PickRule:
        """Of an open sequence, with what its committed tokens touch."""
        ...


class Scored(Protocol):
    """Log-probabilities of a sequence's picks, or of what a verdict made of them."""

    def __call__(self, logits: FloatArray, picks: IntArray, rows: SequenceRows, verdict: Verdict | None) -> TokenLogprobs:
        """logits: of the sequence's wanted rows."""
        ...


def plain_results(
    batch: StepBatch, logits: FloatArray, picker: ThinPick, rule_of: RuleOf, scored: Scored
) -> tuple[SequenceResult, ...] | None:
    """One result per segment, in order; None where a step asks for more, or a row is not decided for certain.

    logits: float32 [wanted rows, num_ids], ids of nothing at -inf.
    """
    positions = (batch.positions + 1).tolist()  # of the picks: each is the token after its row
    groups: list[tuple[PickRule, list[int]]] = []
    paths: dict[int, list[IntArray]] = {}
    for place, segment in enumerate(batch.segments):
        if not _is_plain(segment):
            return None
        rows = segment.rows
        if segment.state.is_penalised:
            paths[place] = segment.paths()
        rule = rule_of(segment.state, with_prob=rows.pick_probs, with_second=rows.seconds)
        groups.append((rule, positions[segment.end - segment.num_wanted : segment.end]))
    found = picker.run(logits, groups, paths)
    tokens = found.tokens.tolist()
    return None if LEFT in tokens else _results(batch, logits, found, tokens, scored)


def _results(batch: StepBatch, logits: FloatArray, found: ThinPicks, tokens: list[int], scored: Scored) -> tuple[SequenceResult, ...]:
    results: list[SequenceResult] = []
    begin = 0
    for segment in batch.segments:
        rows, end = segment.rows, begin + segment.num_wanted
        picks = found.tokens[begin:end]
        verdict = _verdict(segment, picks, tokens[begin]) if rows.acceptance else None
        probs = found.probs[begin:end] if rows.pick_probs else None
        seconds = seconds_of(found, begin, end) if rows.seconds else None
        is_scored = rows.top_logprobs is not None and end > begin
        told = scored(logits[begin:end], picks, rows, verdict) if is_scored else None
        results.append(SequenceResult(rows.sequence, picks, None, told, verdict, probs, seconds=seconds))
        begin = end
    return tuple(results)


def _verdict(segment: Segment, picks: IntArray, first: int) -> Verdict:
    """Of a rule that is asked. first: the first of the picks."""
    if not len(segment.rows.tokens):  # a rule that promises the target's own tokens has nothing else to say of a tree without nodes
        return Verdict((), first, bonus=True)
    return judged_picks(segment.rows, segment.state.spec.noise, segment.base, picks)


def seconds_of(found: ThinPicks, begin: int, end: int) -> Seconds:
    """Of rows [begin, end), which were asked for them."""
    assert found.seconds is not None
    assert found.behinds is not None
    return Seconds(found.seconds[begin:end], found.behinds[begin:end])


def _is_plain(segment: Segment) -> bool:
    """Whether nothing but picks is wanted of a segment, and what follows from them, and no row of it is sure to be left."""
    rows, params = segment.rows, segment.state.spec.sampling
    if rows.num_choices:
        return False
    if params.top_k > MAX_TOP_K:  # no row of these is decided quickly
        return False
    return is_judged_by_picks(rows)
