"""Steps in which several sequences decode plainly or verify guesses, picked at once, against the general way: every field of every result;
which steps are taken so, and that a row which is not decided for certain leaves the step to the definition.

Run: pytest tests/unit/test_engine_plain_rows.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fakes_followed import MAX_LEN, MODELS, NONE, NUM_IDS, SAMPLINGS, FollowingEngines, held, ints, logprobs_of, spec
from outrider.engine import row_picker
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.plain_rows import plain_results
from outrider.types.sampling import SamplingParams
from outrider.types.step import SequenceResult, SequenceRows, StepPlan
from outrider.types.tree import Verdict
from outrider_kernels.thin_pick import LEFT, MAX_TOP_K, ThinPick, ThinPicks

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = np.random.default_rng(7).integers(0, NUM_IDS, MAX_LEN).astype(np.int32)
SEQUENCES = (51, 52, 53)


class Watched:
    """plain_results, noting of each step whether it was picked so. leaves: never, as where rows are not clear."""

    def __init__(self, leaves: bool = False) -> None:
        self.taken: list[bool] = []
        self.leaves = leaves

    def __call__(self, *arguments: Any) -> tuple[SequenceResult, ...] | None:
        found = None if self.leaves else plain_results(*arguments)
        self.taken.append(found is not None)
        return found


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched()
    monkeypatch.setattr(row_picker, "plain_results", watched)
    return watched


def opened(engines: FollowingEngines, params: SamplingParams, model: str = "llama") -> PagedEngine:
    """Each sequence with a seed of its own and a part of the prompt read."""
    engine = engines.make(model)
    for sequence in SEQUENCES:
        engine.open(sequence, spec(params, seed=sequence))
        engine.step(StepPlan((SequenceRows(sequence, PROMPT[: sequence - 40], NONE, NONE),)))
    return engine


def plain_rows(acceptance: str = "coupled", pick_probs: bool = False) -> list[SequenceRows]:
    """A committed token each; the last sequence reads on, and its rows are wanted by nobody."""
    first = [SequenceRows(one, ints(one % NUM_IDS), NONE, NONE, acceptance=acceptance, pick_probs=pick_probs) for one in SEQUENCES[:2]]
    return [*first, SequenceRows(53, PROMPT[13:18], NONE, NONE, wanted=False)]


def told(results: tuple[SequenceResult, ...]) -> list[object]:
    def one(result: SequenceResult) -> tuple[object, ...]:
        probs = None if result.pick_probs is None else result.pick_probs.tobytes()
        picks = result.picks.dtype.name, result.picks.tolist()
        seconds = None if result.seconds is None else (result.seconds.ids.tolist(), result.seconds.behind.tobytes())
        return result.sequence, picks, probs, result.verdict, result.choices, logprobs_of(result), seconds

    return [one(result) for result in results]


@pytest.mark.parametrize("pick_probs", [False, True])
@pytest.mark.parametrize("acceptance", ["coupled", ""])
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_picks_of_many_are_those_of_the_general_way(
    engines: FollowingEngines, watch: Watched, sampling: str, acceptance: str, pick_probs: bool
) -> None:
    ours, theirs = (opened(engines, SAMPLINGS[sampling]) for _ in range(2))
    watch.taken.clear()
    plan = StepPlan(tuple(plain_rows(acceptance, pick_probs)))
    found = told(ours.step(plan).results)
    watch.leaves = True
    assert found == told(theirs.step(plan).results)
    assert len(watch.taken) == 2
    assert watch.taken[0] is (SAMPLINGS[sampling].top_k <= MAX_TOP_K)


@pytest.mark.parametrize(
    "first",
    [
        {"num_choices": 2, "acceptance": ""},
        {"acceptance": "rejection"},
        {"tokens": ints(4, 5), "parents": ints(-1, 0), "acceptance": "rejection"},
    ],
    ids=["candidates", "rejection", "guesses tested by probabilities"],
)
def test_steps_that_ask_for_more_are_left(engines: FollowingEngines, watch: Watched, first: dict[str, Any]) -> None:
    engine = opened(engines, SamplingParams(temperature=0.8))
    watch.taken.clear()
    rows = plain_rows()
    engine.step(StepPlan((replace(rows[0], **first), *rows[1:])))
    assert watch.taken == [False]


def right_chain(engine: PagedEngine, rows: SequenceRows, length: int) -> list[int]:
    """What the sequence will say after these committed tokens, which it forgets again."""
    before, found = engine.cached_len(rows.sequence), list[int]()
    for _ in range(length):
        parents = np.arange(-1, len(found) - 1, dtype=np.int32)
        result = engine.step(StepPlan((replace(rows, tokens=ints(*found), parents=parents, acceptance=""),))).results[0]
        found.append(int(result.picks[-1]))
        engine.keep(rows.sequence, ())
        engine.truncate(rows.sequence, before)
    return found


@pytest.mark.parametrize("seconds", [False, True])
@pytest.mark.parametrize("sampling", ["greedy", "warm", "top p"])
@pytest.mark.parametrize("model", list(MODELS))
def test_guesses_of_many_are_judged_as_in_the_general_way(
    engines: FollowingEngines, watch: Watched, model: str, sampling: str, seconds: bool
) -> None:
    """A chain of which two are right, beside a tree of which three are: two rounds, the second behind what the first kept; then all that
    the sequences hold is the same, and so is what each would have said alone, where rows are a chain's."""
    ours, theirs, alone = (opened(engines, SAMPLINGS[sampling], model) for _ in range(3))
    first, second, third = plain_rows(pick_probs=not seconds)
    for _ in range(2):
        one, two = right_chain(alone, first, 3), right_chain(alone, second, 3)
        wrong = (one[2] + 1) % NUM_IDS
        first = replace(first, tokens=ints(one[0], one[1], wrong, 5), parents=ints(-1, 0, 1, 2), seconds=seconds)
        tree = ints((two[0] + 1) % NUM_IDS, two[0], (two[1] + 1) % NUM_IDS, two[1], two[2])
        second = replace(second, tokens=tree, parents=ints(-1, -1, 1, 1, 3), seconds=seconds)
        watch.leaves = False
        results = ours.step(StepPlan((first, second, third))).results
        assert watch.taken[-1]
        watch.leaves = True
        assert told(results) == told(theirs.step(StepPlan((first, second, third))).results)
        assert results[0].verdict == Verdict((0, 1), one[2], bonus=False)
        assert results[1].verdict is not None
        assert results[1].verdict.path == (1, 3, 4)
        by_itself = [alone.step(StepPlan((rows,))).results[0] for rows in (first, second)]
        assert [result.picks.tolist() for result in by_itself] == [result.picks.tolist() for result in results[:2]]
        for engine in (ours, theirs, alone):
            engine.keep(first.sequence, (0, 1))
            engine.keep(second.sequence, (1, 3, 4))
        first, second = (replace(plain_rows()[at], committed=ints(results[at].verdict.emitted)) for at in (0, 1))  # type: ignore[union-attr]
        third = replace(third, committed=PROMPT[18:20])
    for sequence in (first.sequence, second.sequence):
        assert held(ours, sequence) == held(theirs, sequence) == held(alone, sequence)


def test_a_step_that_nobody_wants_anything_of_has_no_picks(engines: FollowingEngines, watch: Watched) -> None:
    engine = opened(engines, SamplingParams(temperature=0.8))
    watch.taken.clear()
    results = engine.step(StepPlan(tuple(replace(rows, acceptance="", wanted=False) for rows in plain_rows()))).results
    assert [result.picks.tolist() for result in results] == [[], [], []]
    assert watch.taken == []


def test_a_row_that_is_not_clear_leaves_the_step_to_the_definition(
    engines: FollowingEngines, watch: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (opened(engines, SamplingParams(temperature=0.8)) for _ in range(2))
    plan = StepPlan(tuple(plain_rows()))
    expected = told(theirs.step(plan).results)
    original = ThinPick.run

    def leaving(self: ThinPick, *arguments: Any) -> ThinPicks:
        found = original(self, *arguments)
        found.tokens[1], found.probs[1] = LEFT, np.nan
        return found

    monkeypatch.setattr(ThinPick, "run", leaving)
    watch.taken.clear()
    assert told(ours.step(plan).results) == expected
    assert watch.taken == [False]
