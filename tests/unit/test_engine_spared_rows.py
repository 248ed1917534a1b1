"""Steps most of whose rows have no results: the last layer is left out for those, and no bit of anything else may notice.

Broken twins (a reader that begins a row late, a mask of other rows) show that the comparisons would.
Run: pytest tests/unit/test_engine_spared_rows.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fakes_followed import MAX_LEN, MODELS, NONE, NUM_IDS, SAMPLINGS, FollowingEngines, held, ints, spec
from outrider.engine import lean_thin
from outrider.engine.lean_thin import LEAST_SPARED, LeanThin
from outrider.engine.paged_engine import PagedEngine
from outrider.types.step import SequenceRows, StepPlan
from outrider.types.tree import IntArray
from outrider_kernels.thin_attention import RowKeys
from outrider_kernels.thin_program import ThinProgram

READER, CHAIN, TREE = 51, 52, 53
PROMPTS = {sequence: np.random.default_rng(sequence).integers(0, NUM_IDS, MAX_LEN).astype(np.int32) for sequence in (READER, CHAIN, TREE)}
GUESSES = (
    SequenceRows(CHAIN, NONE, ints(5, 8, 9), ints(-1, 0, 1), pick_probs=True),
    SequenceRows(TREE, NONE, ints(4, 6, 7, 2), ints(-1, -1, 0, 0), pick_probs=True),
)

pytestmark = pytest.mark.usefixtures("one_thread")


def made(engines: FollowingEngines, model: str = "llama") -> PagedEngine:
    """Two sequences stand at different lengths, behind which they guess; one has all of its prompt to read. 64 rows go through at once."""
    engine = engines.make(model, max_rows=100)
    for sequence in PROMPTS:
        engine.open(sequence, spec(SAMPLINGS["warm"]))
    for sequence, length in ((CHAIN, 21), (TREE, 34)):
        engine.step(StepPlan((SequenceRows(sequence, PROMPTS[sequence][:length], NONE, NONE),)))
    return engine


def reading(num_rows: int, begin: int = 0) -> SequenceRows:
    return SequenceRows(READER, PROMPTS[READER][begin:num_rows], NONE, NONE, pick_probs=True)


def told(engine: PagedEngine, *parts: SequenceRows) -> list[object]:
    found: list[object] = []
    for result in engine.step(StepPlan(parts)).results:
        assert result.pick_probs is not None
        found += [result.picks.tolist(), result.pick_probs.tobytes()]
    return found


def kept(engine: PagedEngine) -> list[object]:
    return [part for sequence in PROMPTS for part in held(engine, sequence)]


def at_once(engine: PagedEngine, num_rows: int) -> list[object]:
    return told(engine, GUESSES[0], reading(num_rows), GUESSES[1]) + kept(engine)


def apart(engine: PagedEngine, num_rows: int) -> list[object]:
    """Every sequence in steps of its own, and of the prompt every row: all rows of a step have results."""
    for at in range(num_rows - 1):
        told(engine, reading(at + 1, at))
    return told(engine, GUESSES[0]) + told(engine, reading(num_rows, num_rows - 1)) + told(engine, GUESSES[1]) + kept(engine)


class Watched:
    """Counts what a program is run with."""

    def __init__(self, program: ThinProgram) -> None:
        self._program = program
        self.num_rows: list[int] = []

    def run(self, num_rows: int, steps: Any) -> None:
        self.num_rows.append(num_rows)
        self._program.run(num_rows, steps)


def watched(engine: PagedEngine) -> Watched:
    arrays = engine._arrays
    assert isinstance(arrays, LeanThin)
    watch = Watched(arrays._behind_last_keys)
    arrays._behind_last_keys = watch  # type: ignore[assignment]
    return watch


@pytest.mark.parametrize("num_rows", [1, LEAST_SPARED, LEAST_SPARED + 1, 2 * LEAST_SPARED, 57, 58, MAX_LEN])
@pytest.mark.parametrize("model", list(MODELS))
def test_a_prompt_read_beside_others_changes_nothing(engines: FollowingEngines, model: str, num_rows: int) -> None:
    assert at_once(made(engines, model), num_rows) == apart(made(engines, model), num_rows)


@pytest.mark.parametrize(("num_rows", "num_behind"), [(LEAST_SPARED, []), (LEAST_SPARED + 1, [8]), (40, [8])])
def test_the_last_layer_has_no_more_rows_than_results_where_that_pays(
    engines: FollowingEngines, num_rows: int, num_behind: list[int]
) -> None:
    engine = made(engines)
    watch = watched(engine)
    at_once(engine, num_rows)
    assert watch.num_rows == num_behind


def test_of_a_step_without_results_nothing_goes_through_it(engines: FollowingEngines) -> None:
    engine = made(engines)
    watch = watched(engine)
    engine.step(StepPlan((replace(reading(30), pick_probs=False, wanted=False),)))
    assert watch.num_rows == []


def late(keys: list[RowKeys], wanted: IntArray) -> list[RowKeys]:
    """Without the first wanted row of those that have several."""
    return [_without_first(keys) if keys.end - keys.begin > 1 else keys for keys in _right(keys, wanted)]


def _without_first(keys: RowKeys) -> RowKeys:
    assert keys.tail_mask is not None
    return replace(keys, begin=keys.begin + 1, tail_mask=keys.tail_mask[1:])


def shifted(keys: list[RowKeys], wanted: IntArray) -> list[RowKeys]:
    """The masks of a sequence's first rows, whichever are read."""
    masks = {all_rows.end: all_rows.tail_mask for all_rows in keys}
    return [replace(rows, tail_mask=masks[rows.end]) for rows in _right(keys, wanted)]


_right: Callable[[list[RowKeys], Any], list[RowKeys]] = lean_thin._readers


@pytest.mark.parametrize("wrong", [late, shifted])
def test_wrong_readers_would_be_noticed(engines: FollowingEngines, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = apart(made(engines), 40)
    engine = made(engines)
    monkeypatch.setattr(lean_thin, "_readers", wrong)
    assert at_once(engine, 40) != expected
