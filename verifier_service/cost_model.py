"""What a step costs as a function of its rows: measured once at start, refined by every decode step after that. And what each further
sequence adds to it, which steps of several tell: a row more of the same one costs a half of that, and less.

Knows an engine by its protocol and times by its results. Must not know sessions. The curve never falls with rows: noise that says so is
flattened, because policies divide by differences of it.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from outrider.engine.contract import Engine
from outrider.errors import DoesNotFit, Overloaded
from outrider.session.pacing.contract import CostCurve
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import ROOT, IntArray

_LOG = logging.getLogger(__name__)
MEASURED_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512)
MOST_OF_ONE = 64  # rows of a sequence: more are of several, as they come, for they would all attend to one another
# A step that is expected to take longer is not measured: there every row costs what the last ones do, and a start is waited for.
MOST_US = 250_000.0
NUM_REPEATS = 3
NUM_PROMPT = 16
MOST_STEPS = 1 + NUM_REPEATS * len(MEASURED_ROWS)  # of a scratch sequence
REFINE_RATE = 1 / 16
MEASURED_TRUST = 16  # steps that a curve counts for which was measured as it is
COPIED_TRUST = 4  # and one that is taken over from other circumstances
MAX_SURPRISE = 2.0
OWN_STEPS = 4  # after so many steps of its own a point believes half of what others say of the machine
# Times as many rows, or as few, of which others say as much as of their own; of more distant ones they say less, for what a step takes
# beside its rows is no row's. Of many rows they say little: there only the rows count.
NEAR_ROWS, NEAR_MANY_ROWS = 16, 2
CHAIN_LEN = 16  # `invariant` numerics bound the levels of a tree
_NOTHING: IntArray = np.empty(0, np.int32)


class CostModel:
    """Points (rows, us) that follow what is observed."""

    def __init__(self, points: dict[int, float], num_trusted: int = MEASURED_TRUST) -> None:
        assert points
        self._num_trusted = num_trusted
        self._rows = sorted(points)
        self._points = [points[rows] for rows in self._rows]
        self._least = list(self._points)  # as measured, in a quiet moment
        self._num_seen = [0] * len(self._rows)
        self._edges = row_edges(self._rows)
        # By the point that a step moves: the others, and how far each of them goes along while it has seen no step of its own.
        self._others = [
            [(at, OWN_STEPS * _nearness(rows, near)) for at, rows in enumerate(self._rows) if rows != near] for near in self._rows
        ]
        self._first_of_many = bisect.bisect_right(self._rows, MOST_OF_ONE)
        self._curve = self._flattened()

    def observe(self, num_rows: int, step_us: int) -> None:
        """A step without prefill took so long; it moves the nearest measured point (by ratio of rows), and the others by the same factor
        as far as they have seen few steps: the machine was quiet when all were measured, and what is dearer now is so for any rows. Only
        steps of many rows make many rows cheaper than they were measured.

        One step that took a hundred times as long (a machine that stalled) counts as MAX_SURPRISE times.
        """
        nearest, curve = bisect.bisect_left(self._edges, num_rows), self._curve
        surprise = min(MAX_SURPRISE, step_us / max(1.0, curve.verify_us(num_rows)))
        # From the curve's value, not the point's own: a point hidden under a dearer one of fewer rows would drift away unseen.
        target = curve.verify_us(self._rows[nearest]) * surprise
        rate = max(REFINE_RATE, 1.0 / self._num_trusted)
        self._num_trusted += 1
        points, num_seen, moved = self._points, self._num_seen, surprise - 1.0
        for other, weight in self._others[nearest]:  # with each step: nothing is called for any of them
            points[other] *= 1.0 + weight / (OWN_STEPS + num_seen[other]) * rate * moved
        points[nearest] += rate * (target - points[nearest])
        num_seen[nearest] += 1
        self._curve = self._flattened()

    def curve(self) -> CostCurve:
        """The present curve, never falling."""
        return self._curve

    @property
    def rows(self) -> frozenset[int]:
        """That there are points of."""
        return frozenset(self._rows)

    def among(self, rows: Collection[int]) -> CostModel:
        """The points of these rows, as they were measured; of at least one."""
        return CostModel({each: us for each, us in zip(self._rows, self._least, strict=True) if each in rows})

    def twin(self) -> CostModel:
        """The same curve, to follow other observations from now on: quickly at first, for nothing was measured in their circumstances."""
        return CostModel(dict(self._curve.points), COPIED_TRUST)

    def _flattened(self) -> CostCurve:
        believed = list(self._points)
        for at in range(self._first_of_many, len(believed)):
            if self._num_seen[at] < OWN_STEPS:
                believed[at] = max(believed[at], self._least[at])
        return rising(self._rows, believed)


def _nearness(rows: int, others: int) -> float:
    """How much steps of so many rows say of steps of so many others, at most 1."""
    fewer, more = min(rows, others), max(rows, others)
    return min(1.0, (NEAR_ROWS if more <= MOST_OF_ONE else NEAR_MANY_ROWS) * fewer / more)


def rising(rows: Sequence[int], times_us: Iterable[float]) -> CostCurve:
    """A curve through these points, of ascending rows, that never falls: a point below one of fewer rows is raised to it."""
    return CostCurve(tuple(zip(rows, itertools.accumulate(times_us, max), strict=True)))


def row_edges(rows: Sequence[int]) -> list[int]:
    """The most rows, by bisect_left, to which each of these ascending counts but the last is the nearest, by ratio.

    Below the geometric mean of two the smaller is nearer.
    """
    return [math.isqrt(fewer * more) for fewer, more in itertools.pairwise(rows)]


class SequenceCost:
    """What each further sequence of a step adds to what its rows cost, in microseconds: running estimates by the number of sequences (of
    many, the caches no longer lie near). Followed in steps of a row each, in which nothing else tells."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}  # by the power of two below the number of sequences
        self._num_seen: dict[int, int] = {}

    def us(self, num_sequences: int) -> float:
        """As known of so many, or of the number nearest to it; 0 before any step of several."""
        if not self._known:
            return 0.0
        at = num_sequences.bit_length()
        return self._known[at] if at in self._known else self._known[min(self._known, key=lambda one: abs(one - at))]

    def observe(self, num_sequences: int, added_us: float) -> None:
        """A step of so many, of a row each, took so much longer than so many rows of one."""
        each_us, at = max(0.0, added_us / (num_sequences - 1)), num_sequences.bit_length()
        self._num_seen[at] = num_seen = self._num_seen.get(at, 0) + 1
        known_us = self._known.get(at, each_us)
        self._known[at] = known_us + max(REFINE_RATE, 1.0 / num_seen) * (each_us - known_us)


class StepCosts:
    """Steps while every drafter rested, and steps while one may have been at work: on shared cores they are two curves. And steps over a
    draft that were computed ahead, on fewer threads than others: a third; None until there was one. (Nearly every plain step is, where any
    can be: that is what one costs there.) What further sequences add is one for all.

    Kept as one, the curve of whichever pace is in use would hide what the other could do.
    """

    def __init__(self, alone: CostModel) -> None:
        self.alone = alone
        self.drafting = alone.twin()
        self.ahead: CostModel | None = None
        self.sequences = SequenceCost()

    def observe(self, num_rows: int, step_us: int, *, drafting: bool, was_ahead: bool = False, num_sequences: int = 1) -> None:
        """A step without prefill; drafting: some drafter had leave to go on meanwhile. was_ahead: as in StepResult."""
        if was_ahead and num_rows > 1:
            self.ahead = self.ahead or self.alone.twin()
            self.ahead.observe(num_rows, step_us)
        elif num_sequences == 1:
            (self.drafting if drafting else self.alone).observe(num_rows, step_us)
        elif num_rows == num_sequences and not drafting:
            rows_us, added_us = self.alone.curve().verify_us(num_rows), self._added_us(num_sequences)
            # a machine that stalled counts as MAX_SURPRISE times what was expected, as ever
            self.sequences.observe(num_sequences, min(step_us, MAX_SURPRISE * (rows_us + added_us)) - rows_us)
        else:
            (self.drafting if drafting else self.alone).observe(num_rows, max(1, step_us - round(self._added_us(num_sequences))))

    def _added_us(self, num_sequences: int) -> float:
        return (num_sequences - 1) * self.sequences.us(num_sequences)


def measure_cost(engine: Engine, lent_threads: int = 0) -> CostModel:
    """Of the least of `time_steps`, whose parameters these are; of one row that costs nothing, where the cache is too small to measure
    in: the first steps will."""
    try:
        return CostModel({rows: min(times_us) for rows, times_us in time_steps(engine, lent_threads).items()})
    except (DoesNotFit, Overloaded):
        return CostModel({1: 1.0})


def time_steps(engine: Engine, lent_threads: int = 0) -> dict[int, list[float]]:
    """By rows, microseconds of NUM_REPEATS steps of scratch sequences in the calling thread, which owns the engine; nothing is held
    afterwards. More than MOST_OF_ONE rows are measured as far as the cache has room, and a step is short enough.

    lent_threads: as in StepPlan, of each step. Raises DoesNotFit and Overloaded where the cache is too small for one sequence.
    """
    most, num_prompt = (
        min(engine.limits.max_rows, engine.limits.max_context - NUM_PROMPT - MOST_STEPS),
        min(NUM_PROMPT, engine.limits.max_rows),
    )
    row_counts = [rows for rows in MEASURED_ROWS if rows <= min(most, MOST_OF_ONE)] or [1]
    with ExitStack() as stack:
        scratch = [stack.enter_context(_opened(engine, 0, max(row_counts)))]
        _time_step(engine, scratch, num_prompt, 1, lent_threads)  # warms the first shapes, and gives the sequence a context
        # One of each at a time: a moment in which the machine is slow, as it mostly is when work begins, is then nobody's alone.
        rounds_us = [[_time_step(engine, scratch, 1, rows, lent_threads) for rows in row_counts] for _ in range(NUM_REPEATS)]
        times_us = {rows: list(each) for rows, *each in zip(row_counts, *rounds_us, strict=True)}
        many = engine.limits.max_rows if row_counts[-1] == MOST_OF_ONE else 0  # where one has room for that, so have several
        for rows in (rows for rows in MEASURED_ROWS if MOST_OF_ONE < rows <= many):
            before = rows // 2
            if min(times_us[before]) * rows / before > MOST_US:
                break
            try:
                while len(scratch) < rows // MOST_OF_ONE:
                    scratch.append(stack.enter_context(_opened(engine, len(scratch), MOST_OF_ONE)))
                    _time_step(engine, scratch[-1:], num_prompt, 1, lent_threads)
                times_us[rows] = [_time_step(engine, scratch, 1, rows, lent_threads) for _ in range(NUM_REPEATS)]
            except (DoesNotFit, Overloaded):
                break  # so many are never at work together
            except RuntimeError as error:  # memory for so many rows, where a step asks for it: sessions are stepped one by one then
                _LOG.warning("steps of %d rows and more are not measured: %s", rows, error)
                break
        return times_us


@contextmanager
def _opened(engine: Engine, sequence: int, max_nodes: int) -> Iterator[int]:
    spec = SequenceSpec(SamplingParams(temperature=0.0), NoiseAddress(sequence), 1, NUM_PROMPT + MOST_STEPS, max_nodes)
    engine.open(sequence, spec)
    try:
        yield sequence
    finally:
        engine.close(sequence)


def _time_step(engine: Engine, sequences: Sequence[int], num_committed: int, num_rows: int, lent_threads: int) -> float:
    """Microseconds of a step of num_committed committed rows of each sequence, and a tree of chains each, up to num_rows in all."""
    indices = np.arange(max(0, num_rows // len(sequences) - num_committed), dtype=np.int32)
    nodes = indices // CHAIN_LEN
    parents = np.where(indices % CHAIN_LEN == 0, np.int32(ROOT), indices - 1).astype(np.int32)
    committed = np.zeros(num_committed, np.int32)
    rows = tuple(SequenceRows(one, committed, nodes, parents, acceptance="coupled") for one in sequences)
    result = engine.step(StepPlan(rows, lent_threads))
    for one in sequences:
        engine.keep(one, ())
    return float(max(1, result.step_us))
