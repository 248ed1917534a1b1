"""A step of one sequence in one call against the general way: results, verdicts, what the sequence holds and its KV, bit for bit; which
steps are taken so, and that all others, wrong plans among them, are answered as ever. And rows that go through in several parts.

Broken twins (a part that sees a key less, rows that are not stored) show that the comparisons would notice.
Run: pytest tests/unit/test_engine_lone_step.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fakes_followed import MAX_LEN, MODELS, NONE, NUM_IDS, SAMPLINGS, FollowingEngines, held, ints, logprobs_of, opened, spec, step
from outrider.engine import lean_thin
from outrider.engine.lean_thin import LeanThin
from outrider.engine.lone_step import LoneStep
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.sequence_state import SequenceState
from outrider.engine.step_batch import Segment
from outrider.errors import InvalidRequest, UnknownSession
from outrider.types.step import Follow, SequenceRows, StepPlan, StepResult
from outrider.types.tree import IntArray, Verdict
from outrider_kernels.thin_program import ThinProgram

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = np.random.default_rng(2).integers(0, NUM_IDS, MAX_LEN).astype(np.int32)
PLAIN = SequenceRows(51, PROMPT[:20], NONE, NONE, acceptance="coupled")
GUESS = SequenceRows(51, NONE, ints(8), ints(-1), pick_probs=True)


def general(engine: PagedEngine) -> PagedEngine:
    engine._lone = None
    return engine


class Watched:
    """Counts the steps that one call took."""

    def __init__(self, lone: LoneStep | None) -> None:
        assert lone is not None
        self._lone = lone
        self.num_taken = 0

    def step(self, rows: SequenceRows, state: SequenceState, started_ns: int) -> StepResult | None:
        result = self._lone.step(rows, state, started_ns)
        self.num_taken += result is not None
        return result


def watched(engine: PagedEngine) -> Any:
    engine._lone = watch = Watched(engine._lone)  # type: ignore[assignment]
    return watch


def told(engine: PagedEngine, rows: SequenceRows) -> list[object]:
    result = step(engine, rows)
    probs = None if result.pick_probs is None else result.pick_probs.tobytes()
    assert result.choices is None
    assert (result.logprobs is None) == (rows.top_logprobs is None)
    return [result.picks.tolist(), probs, result.verdict, logprobs_of(result), *held(engine, 51)]


@pytest.mark.parametrize("sampling", list(SAMPLINGS))
@pytest.mark.parametrize("model", list(MODELS))
def test_plain_decoding_is_that_of_the_general_way(engines: FollowingEngines, model: str, sampling: str) -> None:
    ours, theirs = (opened(engines.make(model), SAMPLINGS[sampling]) for _ in range(2))
    watch, theirs = watched(ours), general(theirs)
    committed = PROMPT[:20]
    for num_more in (1, 1, 3, 1, 2):
        rows = replace(PLAIN, committed=committed, pick_probs=num_more == 1, top_logprobs=num_more - 1 if num_more > 1 else None)
        found = told(ours, rows)
        assert found == told(theirs, rows)
        assert found[2] is not None
        for engine in (ours, theirs):
            engine.keep(51, ())
        (pick,) = step(ours, SequenceRows(51, PROMPT[:num_more], NONE, NONE)).picks.tolist()
        step(theirs, SequenceRows(51, PROMPT[:num_more], NONE, NONE))
        committed = ints(pick)
    assert watch.num_taken == 10 - SAMPLINGS[sampling].has_penalties


def guessed(engine: PagedEngine, committed: IntArray, num_right: int, num_guesses: int) -> IntArray:
    """So many guesses behind the committed tokens, the first of them right."""
    guesses: list[int] = []
    engine.open(52, spec(engine._sequences.state(51).spec.sampling))
    text = np.concatenate((engine._sequences.state(51).committed, committed))
    result = step(engine, SequenceRows(52, text, NONE, NONE))
    for _ in range(num_guesses):
        guesses.append(int(result.picks[-1]))
        result = step(engine, SequenceRows(52, ints(guesses[-1]), NONE, NONE))
    engine.close(52)
    wrong = [(token + 1) % NUM_IDS for token in guesses[num_right:]]
    return ints(*guesses[:num_right], *wrong)


@pytest.mark.parametrize("sampling", list(SAMPLINGS))
@pytest.mark.parametrize("model", list(MODELS))
def test_a_verified_chain_is_that_of_the_general_way(engines: FollowingEngines, model: str, sampling: str) -> None:
    """What is right is kept, and the next round goes on behind it."""
    ours, theirs = (opened(engines.make(model, (7, 30)), SAMPLINGS[sampling]) for _ in range(2))
    watch, theirs = watched(ours), general(theirs)
    committed = PROMPT[:20]
    for num_taken, (num_right, num_guesses) in enumerate(((2, 4), (3, 3), (0, 1), (5, 6)), 1):
        guesses = guessed(theirs, committed, num_right, num_guesses)
        parents = np.arange(-1, num_guesses - 1, dtype=np.int32)
        asked: dict[str, Any] = {"pick_probs": num_guesses > 3, "top_logprobs": (None, 0, 2, 20)[num_taken - 1]}
        rows = replace(PLAIN, committed=committed, tokens=guesses, parents=parents, **asked)
        found = told(ours, rows)
        assert watch.num_taken == num_taken - SAMPLINGS[sampling].has_penalties
        assert found == told(theirs, rows)
        verdict = found[2]
        assert isinstance(verdict, Verdict)
        assert len(verdict.path) == num_right
        for engine in (ours, theirs):
            engine.keep(51, verdict.path)
        committed = ints(verdict.emitted)


# --- which steps --------------------------------------------------------------------------------------------------------

TAKEN: dict[str, SequenceRows] = {
    "committed tokens": replace(PLAIN, acceptance=""),
    "with a verdict": PLAIN,
    "with a probability": replace(PLAIN, acceptance="", pick_probs=True),
    "and what follows": replace(PLAIN, acceptance="", follow=Follow(4)),
    "a verdict on a guess": replace(PLAIN, tokens=ints(5), parents=ints(-1)),
    "a verdict on several": replace(PLAIN, tokens=ints(5, 6, 7), parents=ints(-1, 0, 1), pick_probs=True),
    "a guess": GUESS,
    "a guess and its second": replace(GUESS, seconds=True),
    "a verdict on several, and seconds": replace(PLAIN, tokens=ints(5, 6, 7), parents=ints(-1, 0, 1), seconds=True),
    "a guess and what follows": replace(GUESS, follow=Follow(4)),
    "logprobs": replace(PLAIN, top_logprobs=1),
    "a verdict on several, and logprobs": replace(PLAIN, tokens=ints(5, 6, 7), parents=ints(-1, 0, 1), top_logprobs=3),
}
LEFT: dict[str, SequenceRows] = {
    "a verdict on a tree": replace(PLAIN, tokens=ints(5, 6), parents=ints(-1, -1)),
    "guesses and what follows": replace(PLAIN, acceptance="", tokens=ints(5), parents=ints(-1), follow=Follow(4)),
    "nothing wanted": replace(PLAIN, acceptance="", wanted=False),
    "choices": replace(PLAIN, num_choices=2),
    "logprobs, and what follows": replace(PLAIN, acceptance="", top_logprobs=1, follow=Follow(4)),
    "a rule that reads probabilities": replace(PLAIN, acceptance="rejection"),
    "two guesses": replace(GUESS, tokens=ints(5, 6), parents=ints(-1, -1)),
}


def begun(engine: PagedEngine, rows: SequenceRows) -> PagedEngine:
    if not len(rows.committed):
        step(engine, SequenceRows(51, PROMPT[:20], NONE, NONE))
    return engine


@pytest.mark.parametrize("case", [*TAKEN, *LEFT])
def test_one_call_takes_what_is_of_its_kind(engines: FollowingEngines, case: str) -> None:
    rows = TAKEN.get(case) or LEFT[case]
    engine = begun(opened(engines.make()), rows)
    watch = watched(engine)
    result = engine.step(StepPlan((rows,)))
    assert watch.num_taken == (case in TAKEN)
    assert result.num_rows == len(rows.committed) + len(rows.tokens)
    assert 0 <= result.forward_us <= result.step_us
    assert 0 <= result.results[0].follow_us <= result.step_us
    assert (result.results[0].follow_us > 0) == (rows.follow is not None and case in TAKEN)


def test_a_prompt_that_penalties_count_is_left_to_the_general_way(engines: FollowingEngines) -> None:
    engine = opened(engines.make(), SAMPLINGS["penalised"])
    watch = watched(engine)
    for committed, num_taken in ((PROMPT[:2], 0), (PROMPT[:5], 0), (PROMPT[:1], 1)):
        step(engine, replace(PLAIN, committed=committed))
        assert watch.num_taken == num_taken


def test_a_row_below_siblings_is_taken_too(engines: FollowingEngines) -> None:
    ours, theirs = (begun(opened(engines.make()), GUESS) for _ in range(2))
    watch, theirs = watched(ours), general(theirs)
    for rows in (LEFT["two guesses"], replace(GUESS, tokens=ints(7), parents=ints(1))):
        step(ours, rows)
        step(theirs, rows)
    assert watch.num_taken == 1
    assert held(ours, 51) == held(theirs, 51)


@pytest.mark.parametrize(
    ("field", "rows"),
    [
        ("plan.committed", replace(PLAIN, committed=ints(NUM_IDS))),
        ("plan.committed", replace(PLAIN, committed=ints(-1))),
        ("plan.committed", replace(PLAIN, committed=np.resize(PROMPT, MAX_LEN + 1))),
        ("plan.committed", replace(GUESS, parents=ints(-1))),
        ("plan.parents", replace(PLAIN, parents=ints(-1))),
        ("acceptance", replace(PLAIN, acceptance="no such rule")),
        ("plan.sequences", replace(PLAIN, committed=PROMPT[:65])),
    ],
)
def test_wrong_plans_are_refused_as_ever(engines: FollowingEngines, field: str, rows: SequenceRows) -> None:
    engine = opened(engines.make())
    before = held(engine, 51)
    with pytest.raises(InvalidRequest) as refused:
        step(engine, rows)
    assert refused.value.field == field
    assert held(engine, 51) == before


def test_a_sequence_that_is_not_open_is_unknown(engines: FollowingEngines) -> None:
    with pytest.raises(UnknownSession):
        step(engines.make(), PLAIN)


@pytest.mark.parametrize(
    ("field", "rows"),
    [
        ("plan.tokens", replace(GUESS, tokens=ints(NUM_IDS))),
        ("plan.parents", replace(GUESS, parents=ints(0))),
        ("plan.parents", replace(GUESS, parents=NONE)),
        ("plan.committed", PLAIN),
    ],
)
def test_wrong_guesses_are_refused_as_ever(engines: FollowingEngines, field: str, rows: SequenceRows) -> None:
    engine = begun(opened(engines.make()), GUESS)
    if rows is PLAIN:
        step(engine, GUESS)
    before = held(engine, 51)
    with pytest.raises(InvalidRequest) as refused:
        step(engine, rows)
    assert refused.value.field == field
    assert held(engine, 51) == before


# --- in parts -----------------------------------------------------------------------------------------------------------


def one_by_one(engine: PagedEngine, num_rows: int) -> list[object]:
    """Every row in a step of its own."""
    for at in range(num_rows - 1):
        step(engine, SequenceRows(51, PROMPT[at : at + 1], NONE, NONE))
    return told(engine, SequenceRows(51, PROMPT[num_rows - 1 : num_rows], NONE, NONE))


def in_one_call(engine: PagedEngine, num_rows: int) -> list[object]:
    watch = watched(engine)
    found = told(engine, SequenceRows(51, PROMPT[:num_rows], NONE, NONE))
    assert watch.num_taken == 1
    return found


def at_once(engine: PagedEngine, num_rows: int) -> list[object]:
    return told(general(engine), SequenceRows(51, PROMPT[:num_rows], NONE, NONE))


def in_chunks(engine: PagedEngine, num_rows: int) -> list[object]:
    """Nothing is wanted of the first."""
    step(engine, SequenceRows(51, PROMPT[:30], NONE, NONE, wanted=False))
    return told(engine, SequenceRows(51, PROMPT[30:num_rows], NONE, NONE))


def made(engines: FollowingEngines, model: str) -> PagedEngine:
    """Takes more rows than go through at once."""
    engine = opened(engines.make(model, max_rows=100))
    assert isinstance(engine._arrays, LeanThin)
    assert len(engine._arrays._buffers.states) == 64
    return engine


@pytest.mark.parametrize("way", [in_one_call, at_once, in_chunks])
@pytest.mark.parametrize("model", list(MODELS))
def test_a_prompt_is_the_same_however_many_rows_go_through_at_once(
    engines: FollowingEngines, model: str, way: Callable[[PagedEngine, int], list[object]]
) -> None:
    for num_rows in (63, 64, 65, 66, MAX_LEN):
        assert way(made(engines, model), num_rows) == one_by_one(made(engines, model), num_rows)


def test_a_part_that_sees_a_key_less_would_be_noticed(engines: FollowingEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = one_by_one(made(engines, "llama"), MAX_LEN)
    original = lean_thin._part_of

    def short(segment: Segment, first: int, last: int) -> Segment:
        part = original(segment, first, last)
        return replace(part, cached_before=part.cached_before - 1, num_keys=part.num_keys - 1) if first else part

    monkeypatch.setattr(lean_thin, "_part_of", short)
    assert at_once(made(engines, "llama"), MAX_LEN) != expected


def test_rows_that_are_not_stored_would_be_noticed(engines: FollowingEngines, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = one_by_one(made(engines, "llama"), MAX_LEN)
    engine = made(engines, "llama")
    assert isinstance(engine._arrays, LeanThin)
    monkeypatch.setattr(engine._arrays, "_to_last_keys", ThinProgram(engine._arrays._team, []))
    assert in_chunks(engine, MAX_LEN) != expected
