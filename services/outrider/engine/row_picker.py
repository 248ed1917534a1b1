"""From the wanted rows' logits to results: the pick, candidates, logprobs and the verdict of the named acceptance rule.

Knows which position and which history each row has: the token after a row at position t is t + 1, and a node's history is the committed
tokens and its own path. One call per kind of work and step, not per sequence. Must not know models or the cache.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.engine.acceptance.contract import AcceptanceNoise, ProbArray, TargetRows
from outrider.engine.acceptance.registry import acceptance_rule
from outrider.engine.plain_rows import plain_results, seconds_of
from outrider.engine.sampling.choices import top_choices
from outrider.engine.sampling.logprobs import logprobs
from outrider.engine.sampling.penalties import apply_penalties, is_touched
from outrider.engine.sampling.pick import pick
from outrider.engine.sampling.pick_probs import pick_probs
from outrider.engine.sampling.probs import processed_probs
from outrider.engine.sampling.quick_picks import QuickRows, pick_rule, quick_picks
from outrider.engine.sampling.rows import RowSampling
from outrider.engine.sampling.sanity import check_best_logits
from outrider.engine.sequence_state import SequenceState
from outrider.engine.step_batch import LongArray, Segment, StepBatch
from outrider.noise.keys import Purpose, key_of
from outrider.types.step import Choices, Seconds, SequenceResult, SequenceRows, SequenceSpec, StepPlan, TokenLogprobs
from outrider.types.tree import DraftTree, FloatArray, IntArray, Verdict
from outrider_kernels.thin_logprobs import ThinLogprobs
from outrider_kernels.thin_pick import LEFT, MAX_TOP_K, PickRule, ThinPick, ThinPicks

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _WantedRows:
    """One segment's rows [begin, end) of the logits matrix."""

    segment: Segment
    begin: int
    end: int
    sampling: RowSampling


@dataclass(frozen=True, slots=True)
class Decided:
    """What was picked beside the logits. picks: int32 [wanted rows], LEFT where the general pick must decide. probs: float32 [wanted rows],
    NaN where it must. found: with the seconds of rows that were asked for them and are not left; None where all such rows are."""

    picks: IntArray
    probs: FloatArray
    found: ThinPicks | None = None


class RowPicker:
    """Picks at wanted rows. num_ids: emittable ids; columns beyond are padding. missing_ids: ids below that stand for nothing.

    picker: decides most rows on a CPU; None where it cannot be.
    """

    def __init__(self, num_ids: int, device: str, missing_ids: tuple[int, ...] = (), picker: ThinPick | None = None) -> None:
        self._num_ids = num_ids
        self._picker = picker
        self._scorer = None if picker is None else ThinLogprobs(picker.team)
        self._missing_ids = list(missing_ids)
        self._missing = torch.tensor(missing_ids, dtype=torch.int64, device=device) if missing_ids else None

    def check(self, plan: StepPlan) -> None:
        """Raise InvalidRequest when a plan names an acceptance rule that does not exist."""
        for rows in plan.sequences:
            if rows.acceptance:
                acceptance_rule(rows.acceptance)

    def rule(self, spec: SequenceSpec, *, with_prob: bool, with_second: bool = False) -> PickRule:
        """How a sequence without penalties or biases is picked after, a row at a time."""
        return pick_rule(spec.sampling, key_of(spec.noise, Purpose.PICK), with_prob, with_second)

    def rule_of(self, state: SequenceState, *, with_prob: bool, with_second: bool = False) -> PickRule:
        """How an open sequence is, with what its committed tokens touch; looked up once."""
        touched = state.counted().touched if is_touched(state.spec.sampling) else None  # first, for it may forget rules
        rule = state.pick_rules.get((with_prob, with_second))
        if rule is None:
            bare = self.rule(state.spec, with_prob=with_prob, with_second=with_second)
            rule = state.pick_rules[with_prob, with_second] = bare if touched is None else replace(bare, touched=touched)
        return rule

    def pick_left(self, logits: FloatArray, left: RowSampling, *, with_prob: bool) -> tuple[int, float]:
        """The pick after one row that the rule left, and its probability (NaN: not asked for).

        logits: float32 [num_logits], ids that stand for nothing at -inf. Raises ModelRefused where they are no numbers.
        """
        rows = torch.from_numpy(logits[None, : self._num_ids])
        picked = pick(rows, [left]).numpy()
        prob = float(pick_probs(apply_penalties(rows, [left]), [left.params.temperature], picked)[0]) if with_prob else math.nan
        return int(picked[0]), prob

    def second_left(self, logits: FloatArray, left: RowSampling) -> tuple[int, float]:
        """The next best draw after such a row, LEFT where there is none, and how far it lies behind (else NaN)."""
        found = _second_draws(torch.from_numpy(logits[None, : self._num_ids]), [left])
        return int(found.ids[0]), float(found.behind[0])

    def results(self, batch: StepBatch, logits: Tensor | FloatArray) -> tuple[SequenceResult, ...]:
        """One result per segment, in order. logits: float32 [wanted rows, num_logits]; on a CPU, ids that stand for nothing are set to -inf
        in them. Raises ModelRefused where they are no numbers."""
        if isinstance(logits, Tensor):
            if logits.device.type != "cpu":
                return self._card_results(batch, logits)
            logits = logits.numpy()
        if logits.shape[1] != self._num_ids:
            logits = logits[:, : self._num_ids]
        if self._missing_ids:
            logits[:, self._missing_ids] = -np.inf
        plain = None if self._picker is None or not len(logits) else plain_results(batch, logits, self._picker, self.rule_of, self.scored)
        if plain is not None:
            return plain
        with torch.inference_mode():
            return self._general_results(batch, torch.from_numpy(logits))

    def _card_results(self, batch: StepBatch, logits: Tensor) -> tuple[SequenceResult, ...]:
        if logits.shape[1] != self._num_ids:
            logits = logits[:, : self._num_ids]
        if self._missing is not None:
            logits = logits.index_fill(1, self._missing, -torch.inf)
        return self._general_results(batch, logits)

    def _general_results(self, batch: StepBatch, logits: Tensor) -> tuple[SequenceResult, ...]:
        wanted = _wanted(batch)
        choices = _choices(logits, wanted)
        return self._results(logits, wanted, choices, _quickly(logits, wanted, choices, self._picker))

    def decided_results(self, batch: StepBatch, logits: Tensor, decided: Decided) -> tuple[SequenceResult, ...]:
        """As `results`, for rows most of which are picked. logits: float32 [wanted rows, num_ids], ids of nothing at -inf."""
        wanted = _wanted(batch)
        return self._results(logits, wanted, _choices(logits, wanted), decided)

    def scored(self, logits: FloatArray | Tensor, picks: IntArray, rows: SequenceRows, verdict: Verdict | None) -> TokenLogprobs:
        """Log-probabilities of each wanted row's pick; with a verdict, of each token of path and emitted, at the row before it.

        logits: float32 [wanted rows of the sequence, num_logits], ids of nothing at -inf.
        """
        places, ids, num_top = list(range(len(picks))), picks.tolist(), rows.top_logprobs or 0
        if verdict is not None:
            places = [0, *(node + 1 for node in verdict.path)]
            ids = [*(int(rows.tokens[node]) for node in verdict.path), verdict.emitted]
        logits = logits[:, : self._num_ids]
        if self._scorer is not None and num_top <= min(MAX_TOP_K, self._num_ids):
            on_host = logits.numpy() if isinstance(logits, Tensor) else logits
            found = self._scorer.run(on_host, places, ids, num_top)
            if found is not None:
                return TokenLogprobs(*found)
        tensor = logits if isinstance(logits, Tensor) else torch.from_numpy(logits)
        if verdict is not None:
            tensor = tensor[torch.tensor(places, device=tensor.device)]
        chosen, top_ids, top = logprobs(tensor, torch.tensor(ids), num_top)
        return TokenLogprobs(chosen.cpu().numpy(), top_ids.cpu().numpy().astype(np.int32), top.cpu().numpy())

    def _results(
        self, logits: Tensor, wanted: list[_WantedRows], choices: dict[int, Choices], decided: Decided
    ) -> tuple[SequenceResult, ...]:
        is_left = decided.picks == LEFT
        picks, probs = _picks(logits, wanted, choices, decided)
        results = []
        for entry in wanted:
            rows, own = entry.segment.rows, logits[entry.begin : entry.end]
            own_picks = picks[entry.begin : entry.end]
            verdict = _verdict(entry, own, own_picks) if rows.acceptance else None
            scored = self.scored(own, own_picks, rows, verdict) if rows.top_logprobs is not None and entry.end > entry.begin else None
            own_probs = probs[entry.begin : entry.end] if rows.pick_probs else None
            seconds = _seconds(entry, own, decided.found, is_left) if rows.seconds else None
            results.append(
                SequenceResult(rows.sequence, own_picks, choices.get(rows.sequence), scored, verdict, own_probs, seconds=seconds)
            )
        return tuple(results)


def _seconds(entry: _WantedRows, logits: Tensor, found: ThinPicks | None, is_left: BoolArray) -> Seconds:
    """Of the rows that were picked quickly what came along, of those that were left the second draw. logits: the entry's own."""
    num_rows, left = entry.end - entry.begin, entry.begin + np.flatnonzero(is_left[entry.begin : entry.end])
    if found is None:
        seconds = Seconds(np.full(num_rows, LEFT, np.int32), np.full(num_rows, np.nan, np.float32))
    else:
        seconds = seconds_of(found, entry.begin, entry.end)
    part = _among(entry, left) if len(left) else None
    if part is not None:
        own = left - entry.begin
        drawn = _second_draws(_rows_at(logits, own), [part])
        seconds.ids[own], seconds.behind[own] = drawn.ids, drawn.behind
    return seconds


def _second_draws(logits: Tensor, rows: list[RowSampling]) -> Seconds:
    top = top_choices(logits, rows, 2)
    if top.ids.shape[1] < 2:  # one id is all there is
        return Seconds(np.full(len(logits), LEFT, np.int32), np.full(len(logits), np.nan, np.float32))
    scores = top.scores.numpy()
    there = np.isfinite(scores[:, 1])
    behind = np.where(there, scores[:, 0] - np.where(there, scores[:, 1], 0.0), np.nan)
    return Seconds(np.where(there, top.ids[:, 1].numpy(), LEFT).astype(np.int32), behind.astype(np.float32))


def _verdict(entry: _WantedRows, logits: Tensor, picks: IntArray) -> Verdict:
    """What the named rule makes of the segment's tree; the root's row is row 0. logits: float32 [1 + nodes, num_ids]."""
    rows, sampling, state = entry.segment.rows, entry.sampling, entry.segment.state

    def probs(row: int) -> ProbArray:
        paths = sampling.paths[row : row + 1]
        one = RowSampling(sampling.params, sampling.key, sampling.positions[row : row + 1], sampling.penalties, paths)
        return processed_probs(logits[row : row + 1], [one])[0].cpu().numpy()

    noise = AcceptanceNoise(state.spec.noise, entry.segment.base)
    return acceptance_rule(rows.acceptance).accept(DraftTree(rows.tokens, rows.parents), rows.draft_rows, TargetRows(picks, probs), noise)


def _wanted(batch: StepBatch) -> list[_WantedRows]:
    entries = []
    begin = 0
    for segment in batch.segments:
        end = begin + segment.num_wanted
        entries.append(_WantedRows(segment, begin, end, row_sampling(segment, batch)))
        begin = end
    return entries


def _choices(logits: Tensor, wanted: list[_WantedRows]) -> dict[int, Choices]:
    """Candidates by sequence, one call for all sequences that ask for the same number."""
    groups: dict[int, list[_WantedRows]] = defaultdict(list)
    for entry in wanted:
        if entry.segment.rows.num_choices > 0 and entry.end > entry.begin:
            groups[entry.segment.rows.num_choices].append(entry)
    found: dict[int, Choices] = {}
    for num_choices, entries in groups.items():
        top = top_choices(_rows_of(logits, entries), [entry.sampling for entry in entries], num_choices)
        ids, scores = top.ids.numpy().astype(np.int32), top.scores.numpy()
        probs, entropy = top.probs.numpy(), top.entropy.numpy()
        begin = 0
        for entry in entries:
            own = slice(begin, begin + entry.end - entry.begin)
            found[entry.segment.rows.sequence] = Choices(ids[own], scores[own], probs[own], entropy[own])
            begin = own.stop
    return found


def _quickly(logits: Tensor, wanted: list[_WantedRows], choices: dict[int, Choices], picker: ThinPick | None) -> Decided:
    groups: list[QuickRows] = []
    for entry in wanted:
        rows = entry.segment.rows
        groups.append(QuickRows(entry.sampling, rows.pick_probs, rows.seconds, rows.sequence in choices))
    found = quick_picks(logits, groups, picker)
    return Decided(found.tokens, found.probs, None if found.seconds is None else found)


def _picks(logits: Tensor, wanted: list[_WantedRows], choices: dict[int, Choices], decided: Decided) -> tuple[IntArray, FloatArray]:
    """int32 [wanted rows], where candidates were drawn the first of them; and float32 [wanted rows] probabilities of those asked for."""
    picks, probs = decided.picks, decided.probs
    for entry in wanted:
        drawn = choices.get(entry.segment.rows.sequence)
        if drawn is not None:
            picks[entry.begin : entry.end] = drawn.ids[:, 0]
    if LEFT in picks.tolist():
        left = np.flatnonzero(picks == LEFT)
        picks[left] = _pick_left(_rows_at(logits, left), [part for entry in wanted if (part := _among(entry, left))])
    asking = [entry.begin + np.flatnonzero(np.isnan(probs[entry.begin : entry.end])) for entry in wanted if entry.segment.rows.pick_probs]
    if asking and len(rows := np.concatenate(asking)):
        asked = [part for entry in wanted if (part := _among(entry, rows))]
        temperatures = [part.params.temperature for part in asked for _ in range(part.num_rows)]
        probs[rows] = pick_probs(apply_penalties(_rows_at(logits, rows), asked), temperatures, picks[rows])
    return picks, probs


def _among(entry: _WantedRows, left: LongArray) -> RowSampling | None:
    """The sampling of those of an entry's rows that are left."""
    first, last = np.searchsorted(left, (entry.begin, entry.end))
    if first == last:
        return None
    sampling, rows = entry.sampling, left[first:last] - entry.begin
    paths = tuple(sampling.paths[row] for row in rows.tolist()) if sampling.paths else ()
    return RowSampling(sampling.params, sampling.key, sampling.positions[rows], sampling.penalties, paths)


def _pick_left(logits: Tensor, left: list[RowSampling]) -> IntArray:
    """By the definition, for rows that follow one another."""
    if all(sampling.params.temperature == 0.0 and not is_touched(sampling.params) for sampling in left):
        best = logits.max(dim=1)
        check_best_logits(best.values.cpu().numpy())
        return best.indices.cpu().numpy().astype(np.int32)  # the first index among ties, as the pick defines it
    return pick(logits, left).numpy().astype(np.int32)


def _rows_at(logits: Tensor, rows: LongArray) -> Tensor:
    return logits if len(rows) == len(logits) else logits[torch.from_numpy(rows).to(logits.device)]


def _rows_of(logits: Tensor, entries: list[_WantedRows]) -> Tensor:
    num_rows = sum(entry.end - entry.begin for entry in entries)
    if num_rows == len(logits):
        return logits
    return torch.cat([logits[entry.begin : entry.end] for entry in entries])


def row_sampling(segment: Segment, batch: StepBatch) -> RowSampling:
    """The sampling of a segment's wanted rows."""
    positions, paths = batch.positions[segment.wanted_begin : segment.end] + 1, _paths(segment)
    return sampling_of(segment.state, positions, paths)


def sampling_of(state: SequenceState, positions: LongArray, paths: Sequence[Sequence[int]]) -> RowSampling:
    """Of rows of an open sequence. positions: int64, of the tokens to be picked; paths: where it is penalised."""
    params = state.spec.sampling
    counts = state.counted() if is_touched(params) else None
    return RowSampling(params, key_of(state.spec.noise, Purpose.PICK), positions, counts, tuple(paths))


def _paths(segment: Segment) -> list[list[int]]:
    return [path.tolist() for path in segment.paths()] if segment.state.is_penalised else []
