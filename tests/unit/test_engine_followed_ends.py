"""What ends a followed chain, what keeps it from beginning, and what a failure in its midst leaves behind: nothing.

A broken twin (a step that is not reverted) shows that the comparison would notice. Run: pytest tests/unit/test_engine_followed_ends.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes_followed import (
    MAX_CONTEXT,
    MAX_LEN,
    MAX_NODES,
    NONE,
    NUM_IDS,
    SAMPLINGS,
    FollowingEngines,
    followed,
    held,
    ints,
    one_by_one,
    opened,
    read_by_another,
    spec,
    step,
)
from outrider.engine import lean_engine
from outrider.engine.lean_arrays import LeanArrays
from outrider.engine.lone_step import LoneStep
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.pick_follower import PickFollower
from outrider.engine.step_batch import StepBatch
from outrider.errors import ModelRefused, OutriderError
from outrider.types.sampling import SamplingParams
from outrider.types.step import Follow, SequenceRows
from outrider.types.tree import FloatArray
from outrider_kernels.thin_chain import ChainSlots, ChainStart, Followed
from outrider_kernels.thin_pick import PickRule

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = np.random.default_rng(8).integers(0, NUM_IDS, 30).astype(np.int32)
OPENING = SequenceRows(51, PROMPT, NONE, NONE, pick_probs=True)


# --- what ends a chain ----------------------------------------------------------------------------------------------------


def test_an_end_token_is_the_last_pick(engines: FollowingEngines) -> None:
    picks, _ = followed(opened(engines.make()), OPENING, Follow(8))
    for place, token in enumerate(picks):
        engine = opened(engines.make(end_ids=(NUM_IDS - 1, token)))
        assert followed(engine, OPENING, Follow(8))[0] == picks[: picks.index(token) + 1]
        assert len(engine._sequences.state(51).tree) == picks.index(token) <= place


@pytest.mark.parametrize("sampling", ["greedy", "warm", "top k", "left"])
def test_a_pick_less_probable_than_the_bar_is_the_last_and_one_at_the_bar_is_not(engines: FollowingEngines, sampling: str) -> None:
    params = SAMPLINGS[sampling]
    picks, probs = followed(opened(engines.make(), params), OPENING, Follow(8))
    for place, prob in enumerate(probs[:-1]):
        if prob > min(probs[:place], default=1.0):
            continue
        assert len(followed(opened(engines.make(), params), OPENING, Follow(8, prob))[0]) > place + 1
        above = float(np.nextafter(np.float64(prob), 1.0))
        assert followed(opened(engines.make(), params), OPENING, Follow(8, above)) == (picks[: place + 1], probs[: place + 1])
        assert followed(opened(engines.make(), params), replace(OPENING, pick_probs=False), Follow(8, above))[0] == picks, (
            "no bar without them"
        )


def test_a_chain_ends_where_its_tree_may_not_go_on(engines: FollowingEngines) -> None:
    engine = opened(engines.make())
    assert len(followed(engine, OPENING, Follow(50))[0]) == MAX_NODES + 1
    shallow = opened(engines.make())
    shallow._max_tree_depth = 4
    shallow.chain, shallow._follower, shallow._lone = shallow._chained(shallow._arrays)
    assert followed(shallow, OPENING, Follow(50)) == one_by_one(opened(engines.make()), OPENING, Follow(4))
    assert len(shallow._sequences.state(51).tree) == 4
    late = opened(engines.make())
    text = np.resize(PROMPT, MAX_LEN)
    assert len(followed(late, replace(OPENING, committed=text[:60]), Follow(0))[0]) == 1
    assert len(followed(late, replace(OPENING, committed=text[60:]), Follow(50))[0]) == MAX_CONTEXT - MAX_LEN + 1


# --- where none begins ----------------------------------------------------------------------------------------------------

BARS: dict[str, tuple[SamplingParams, dict[str, Any]]] = {
    "choices": (SAMPLINGS["warm"], {"num_choices": 2}),
    "logprobs": (SAMPLINGS["warm"], {"top_logprobs": 0}),
    "a verdict": (SAMPLINGS["warm"], {"acceptance": "coupled"}),
    "two rows": (SAMPLINGS["warm"], {"tokens": ints(5), "parents": ints(-1)}),
    "nothing wanted": (SAMPLINGS["warm"], {"wanted": False}),
}


@pytest.mark.parametrize("bar", list(BARS))
def test_a_row_that_asks_for_more_is_not_followed(engines: FollowingEngines, bar: str) -> None:
    sampling, changes = BARS[bar]
    rows = replace(OPENING, **changes)
    engine, other = opened(engines.make(), sampling), opened(engines.make(), sampling)
    result, expected = step(engine, replace(rows, follow=Follow(5))), step(other, rows)
    assert result.picks.tolist() == expected.picks.tolist()
    assert held(engine, 51) == held(other, 51)


def test_below_siblings_a_chain_is_followed_till_the_tree_is_full(engines: FollowingEngines) -> None:
    engine = opened(engines.make())
    step(engine, replace(OPENING, tokens=ints(5, 6), parents=ints(-1, -1)))
    assert len(followed(engine, SequenceRows(51, NONE, ints(7), ints(1)), Follow(50))[0]) == MAX_NODES - 2
    assert engine._sequences.state(51).tree.parents.tolist() == [-1, -1, *range(1, MAX_NODES - 1)]


@pytest.mark.parametrize("array_rows", [0, 64])
def test_an_engine_without_a_chain_picks_once(array_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch, and numpy where no compiler is."""
    monkeypatch.setattr(lean_engine, "thin_team", lambda config: None)
    engine = opened(FollowingEngines(lambda name: tmp_path).make(array_rows=array_rows))
    assert isinstance(engine._arrays, LeanArrays if array_rows else type(None))
    assert engine._follower is None
    picks, probs = followed(engine, OPENING, Follow(5))
    assert len(picks) == len(probs) == 1
    assert len(engine._sequences.state(51).tree) == 0


# --- a failure midway -----------------------------------------------------------------------------------------------------


class Failing:
    """A chain that raises, or gives no numbers, in one of its rows, when the row is stored."""

    def __init__(self, engine: PagedEngine, good_rows: int, raises: bool) -> None:
        assert engine._follower is not None
        self._chain, self._good_rows, self._raises = engine._follower._picks.chain, good_rows, raises

    @property
    def logits(self) -> FloatArray:
        return self._chain.logits

    @property
    def most_rows(self) -> int:
        return self._chain.most_rows

    def feeds(self, token: int, prob: float, stop_below: float) -> bool:
        return self._chain.feeds(token, prob, stop_below)

    def settle(self) -> None:
        self._chain.settle()

    def follow(self, start: ChainStart, rule: PickRule, where: ChainSlots) -> Followed:
        found = self._chain.follow(replace(start, most=min(start.most, self._good_rows + 1)), rule, where)
        num_good, self._good_rows = self._good_rows, self._good_rows - len(found.picks) - found.is_left
        if self._good_rows >= 0:
            return found
        if self._raises:
            raise ModelRefused("spoilt")
        self._chain.logits[:] = np.nan
        return Followed(found.picks[:num_good], found.probs[:num_good], is_left=True)


def fail_midway(engines: FollowingEngines, rows: SequenceRows, good_rows: int, raises: bool, *, is_alone: bool = False) -> None:
    """A step that fails changes nothing, and the same step later gives what it gives an engine that never failed.

    is_alone: the step is one call; else another sequence has a part in it.
    """
    engine, other = opened(engines.make()), opened(engines.make())
    for each in (engine, other):
        step(each, replace(OPENING, committed=PROMPT[:20]))
        each.open(52, spec(SAMPLINGS["greedy"]))
        if not len(rows.committed):
            followed(each, SequenceRows(51, PROMPT[20:], NONE, NONE), Follow(2))
    before, good = [held(engine, 51), held(engine, 52), engine.num_free_blocks], (engine._follower, engine._lone)
    failing = Failing(engine, good_rows, raises)
    engine._follower = PickFollower(failing, engine._picker, MAX_NODES, MAX_CONTEXT)
    engine._lone = LoneStep(failing, engine._picker, engine._follower, engine.limits, NUM_IDS)
    others = [] if is_alone else [SequenceRows(52, PROMPT[:9], NONE, NONE)]
    with pytest.raises(ModelRefused, match="spoilt" if raises else "logit"):
        followed(engine, rows, Follow(5), *others)
    assert [held(engine, 51), held(engine, 52), engine.num_free_blocks] == before
    engine._follower, engine._lone = good
    assert followed(engine, rows, Follow(5), *others) == followed(other, rows, Follow(5), *others)
    assert held(engine, 51) == held(other, 51)
    assert read_by_another(engine, SAMPLINGS["warm"]) == read_by_another(other, SAMPLINGS["warm"])


COMMITTED = replace(OPENING, committed=PROMPT[20:])
NODE = SequenceRows(51, NONE, ints(8), ints(1), pick_probs=True)


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("good_rows", [0, 3])
@pytest.mark.parametrize("rows", [COMMITTED, NODE], ids=["committed", "node"])
def test_a_chain_that_fails_midway_leaves_every_sequence_as_it_was(
    engines: FollowingEngines, rows: SequenceRows, good_rows: int, raises: bool, is_alone: bool
) -> None:
    fail_midway(engines, rows, good_rows, raises, is_alone=is_alone)


@pytest.mark.parametrize("rows", [COMMITTED, NODE], ids=["committed", "node"])
def test_a_chain_that_is_not_reverted_would_be_noticed(
    engines: FollowingEngines, rows: SequenceRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepBatch, "revert", lambda batch: None)
    with pytest.raises((AssertionError, OutriderError)):
        fail_midway(engines, rows, 3, True)
