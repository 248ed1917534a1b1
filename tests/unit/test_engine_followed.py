"""A followed chain against a step for each of its rows: picks, probabilities, trees, committed tokens and KV, bit for bit, whatever comes
after: more rows, keeps of any part of it, truncations, other readers of the prefix.

The first engine takes whole steps of one sequence in a call where it can (lone_step.py), the second none. Broken twins (a window
forgotten, noise of the next position, a node left out) show that the comparisons would notice.
Run: pytest tests/unit/test_engine_followed.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fakes_followed import (
    MAX_CONTEXT,
    MAX_LEN,
    MAX_NODES,
    MODELS,
    NONE,
    NUM_IDS,
    SAMPLINGS,
    FollowingEngines,
    followed,
    held,
    ints,
    later_noise,
    one_by_one,
    opened,
    read_by_another,
    seconds_of,
    spec,
    step,
)
from mostly_slow import crossed
from outrider.engine.chain_picks import ChainPicks
from outrider.engine.decoder_forward import RowChain
from outrider.engine.lean_thin import LeanThin
from outrider.engine.live_tree import LiveTree
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.sequence_state import SequenceState
from outrider.types.sampling import SamplingParams
from outrider.types.step import Follow, SequenceRows, StepPlan, StepResult
from outrider.types.tree import ROOT, IntArray
from outrider_kernels.thin_chain import ChainSlots, ChainStart, Followed
from outrider_kernels.thin_pick import PickRule

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_TURNS = 16


class Twins:
    """One random life of a sequence in two engines, of which the first follows. lengths: of its chains."""

    def __init__(self, ours: PagedEngine, theirs: PagedEngine, sampling: SamplingParams, seed: int) -> None:
        self.ways = ours, theirs
        theirs._lone = None  # so that single steps are taken the general way
        self.choose = np.random.default_rng(seed)
        self.sampling = sampling
        self.lengths: set[int] = set()
        self.num_branched = 0
        self.committed = self.tokens(int(self.choose.integers(2, 40)))
        self.newest, self.tip, self.num_live = 0, ROOT, 0
        for engine in self.ways:
            for sequence in (51, 52):
                engine.open(sequence, spec(sampling, seed))
            step(engine, SequenceRows(52, self.committed[::-1].copy(), NONE, NONE, wanted=False))

    def tokens(self, num_tokens: int) -> IntArray:
        return self.choose.integers(0, NUM_IDS, num_tokens).astype(np.int32)

    def chance(self, share: float) -> bool:
        return bool(self.choose.random() < share)

    @property
    def cached_len(self) -> int:
        return self.ways[0].cached_len(51)

    def both(self, do: Callable[[PagedEngine], object]) -> object:
        """What both engines answer, and everything they hold afterwards, is the same."""
        answers = [do(engine) for engine in self.ways]
        assert answers[0] == answers[1]
        assert held(self.ways[0], 51) == held(self.ways[1], 51)
        return answers[0]

    def draft(self) -> None:
        """A chain below the newest tokens, sometimes beside another sequence's row."""
        self.num_branched += self.num_live > self.tip + 1
        fed = (self.committed, NONE, NONE) if len(self.committed) else (NONE, ints(self.newest), ints(self.tip))
        rows = SequenceRows(51, *fed, pick_probs=self.chance(0.6), seconds=self.chance(0.5))
        wish = Follow(int(self.choose.integers(0, 9)), float(self.choose.choice([0.0, 0.02, 0.1])))
        others = [SequenceRows(52, NONE, ints(5), ints(-1), pick_probs=rows.pick_probs)] if self.chance(0.3) else []
        ours, theirs = followed(self.ways[0], rows, wish, *others), one_by_one(self.ways[1], rows, wish, *others)
        assert ours == theirs
        if others:
            self.both(lambda engine: engine.keep(52, ()).tolist())
        self.lengths.add(len(ours[0]))
        self.committed, self.newest, self.num_live = NONE, ours[0][-1], len(self.tree)
        self.tip = self.num_live - 1
        self.both(lambda engine: None)

    @property
    def tree(self) -> LiveTree:
        return self.ways[0]._sequences.state(51).tree

    def branch(self) -> None:
        """A row below any node, or the root, and what follows it; the chain goes on behind its own newest node all the same."""
        above = int(self.choose.integers(ROOT, self.num_live))
        if self.cached_len + self.tree.depth_below(above) == MAX_CONTEXT:
            return
        rows = SequenceRows(51, NONE, self.tokens(1), ints(above), seconds=True)
        wish = Follow(int(self.choose.integers(0, 3)))
        assert followed(self.ways[0], rows, wish) == one_by_one(self.ways[1], rows, wish)
        self.num_live = len(self.tree)
        self.both(lambda engine: None)

    def keep(self) -> None:
        """Some of the chain is true, and the rest stays or goes."""
        chain = self.tree.path_to(self.tip)
        most = min(len(chain), MAX_LEN - self.cached_len)
        path, subtree = tuple(chain[: int(self.choose.integers(0, most + 1))]), self.chance(0.5)
        kept = self.both(lambda engine: engine.keep(51, path, subtree=subtree).tolist())
        assert isinstance(kept, list)
        self.num_live = len(kept)
        self.tip = kept.index(self.tip) if self.tip in kept else ROOT
        if self.tip == ROOT and self.num_live:  # what is left are branches
            self.both(lambda engine: engine.keep(51, ()).tolist())
            self.num_live = 0
        if self.num_live >= MAX_NODES or self.cached_len + self.num_live >= MAX_LEN - 2:
            self.both(lambda engine: engine.truncate(51, min(30, engine.cached_len(51))))
            self.num_live, self.tip = 0, ROOT
        if not self.num_live:
            self.committed = self.tokens(int(self.choose.integers(1, 3)))

    def live(self) -> set[int]:
        for _ in range(NUM_TURNS):
            self.draft()
            if self.num_live < MAX_NODES and self.chance(0.4):
                self.branch()
            if self.num_live == MAX_NODES or self.cached_len + len(self.tree.path_to(self.tip)) == MAX_CONTEXT or self.chance(0.75):
                self.keep()
                self.both(lambda engine: read_by_another(engine, self.sampling))
        return self.lengths


@pytest.mark.parametrize(("model", "sampling"), crossed(list(MODELS), list(SAMPLINGS)))
def test_a_followed_chain_is_the_chain_of_single_steps(engines: FollowingEngines, model: str, sampling: str) -> None:
    lengths: set[int] = set()
    num_branched = 0
    for seed in range(3):
        missing = (7, 30) if seed else ()
        twins = Twins(engines.make(model, missing), engines.make(model, missing), SAMPLINGS[sampling], seed)
        lengths |= twins.live()
        num_branched += twins.num_branched
    assert len(lengths) > 3
    assert num_branched, "below other branches too"


class OftenLeft:
    """A chain that leaves its second pick of each call, as if that were too close to say."""

    def __init__(self, chain: RowChain) -> None:
        self._chain = chain
        self.logits, self.most_rows, self.feeds, self.settle = chain.logits, chain.most_rows, chain.feeds, chain.settle
        self.num_left = 0

    def follow(self, start: ChainStart, rule: PickRule, where: ChainSlots) -> Followed:
        if start.num_wanted > 1:
            return self._chain.follow(start, rule, where)
        found = self._chain.follow(replace(start, most=min(start.most, 2)), rule, where)
        if found.is_left or len(found.picks) < 2:
            return found
        self.num_left += 1
        return replace(found, picks=found.picks[:1], probs=found.probs[:1], is_left=True)


SEEKING = SamplingParams(temperature=0.8, top_p=0.9, frequency_penalty=-0.7, presence_penalty=-1.1)  # what is counted matters to every pick


@pytest.mark.parametrize("sampling", [*SAMPLINGS, "repetition is sought"])
def test_a_chain_goes_on_behind_picks_that_are_left(engines: FollowingEngines, sampling: str) -> None:
    """The probability of such a pick, which is not asked for here, is rounded in other ways."""
    num_left = 0
    for seed in range(8):
        ours, theirs = (opened(engines.make("qwen2"), SAMPLINGS.get(sampling, SEEKING)) for _ in range(2))
        assert ours._follower is not None
        ours._lone = None
        often = OftenLeft(ours._follower._picks.chain)
        ours._follower._picks = ChainPicks(often, ours._follower._picks.picker)
        tokens = np.random.default_rng(seed).integers(0, NUM_IDS, 6).astype(np.int32)
        for rows in (SequenceRows(51, tokens, NONE, NONE), SequenceRows(51, NONE, ints(9), ints(1))):
            assert followed(ours, rows, Follow(6)) == one_by_one(theirs, rows, Follow(6))
        assert held(ours, 51) == held(theirs, 51)
        num_left += often.num_left
    assert num_left > 20 or sampling.endswith("left"), "there every pick is"


@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_the_seconds_of_a_chain_are_those_of_single_steps(engines: FollowingEngines, sampling: str) -> None:
    """On a chain alone, behind several committed tokens, and below a branch; with another sequence in the step too."""
    ours, theirs = engines.make("qwen2", (7, 30)), engines.make("qwen2", (7, 30))
    theirs._lone = None
    text = np.random.default_rng(8).integers(0, NUM_IDS, 30).astype(np.int32)
    for engine in (ours, theirs):
        for sequence in (51, 52):
            engine.open(sequence, spec(SAMPLINGS[sampling], 5))
    first = SequenceRows(51, text, NONE, NONE, seconds=True, follow=Follow(3))
    other = SequenceRows(52, text[:9], NONE, NONE)
    for rows, others in ((first, ()), (replace(first, committed=NONE, tokens=ints(9), parents=ints(0)), (other,))):
        found, expected = step(ours, rows, *others), seconds_of(step(theirs, replace(rows, follow=None), *others))
        for pick in found.picks.tolist()[:-1]:
            above = len(theirs._sequences.state(51).tree) - 1
            expected += seconds_of(step(theirs, SequenceRows(51, NONE, ints(pick), ints(above), seconds=True)))
        assert len(found.picks) > 1
        assert seconds_of(found) == expected
        assert any(second >= 0 for second, _ in expected)
        assert not set(dict(expected)) & {7, 30}


@pytest.mark.parametrize("model", ["llama", "qwen2"])
def test_chains_of_several_sequences_in_one_step_are_those_of_each_alone(engines: FollowingEngines, model: str) -> None:
    """Of different lengths, samplings and ends."""
    draw = np.random.default_rng(6)
    texts = [draw.integers(0, NUM_IDS, length).astype(np.int32) for length in (30, 3, 17)]
    wishes = [Follow(8), Follow(3, 0.02), Follow(5)]
    samplings = [SAMPLINGS[name] for name in ("warm", "left", "greedy")]
    together, alone = engines.make(model), engines.make(model)
    for engine in (together, alone):
        for index, sampling in enumerate(samplings):
            engine.open(51 + index, spec(sampling, index))
    rows = [SequenceRows(51 + index, text, NONE, NONE, pick_probs=True) for index, text in enumerate(texts)]
    plan = StepPlan(tuple(replace(own, follow=wish) for own, wish in zip(rows, wishes, strict=True)))
    results = together.step(plan).results
    for index, (own, wish, result) in enumerate(zip(rows, wishes, results, strict=True)):
        assert result.pick_probs is not None
        assert (result.picks.tolist(), result.pick_probs.tolist()) == one_by_one(alone, own, wish)
        assert held(together, 51 + index) == held(alone, 51 + index)
    assert len({len(result.picks) for result in results}) > 1


def break_window(engine: PagedEngine, patch: pytest.MonkeyPatch) -> None:
    assert isinstance(engine._arrays, LeanThin)
    with patch.context() as briefly:
        briefly.setattr(engine._arrays, "_windows", (None, None))
        engine.chain, engine._follower, engine._lone = engine._chained(engine._arrays)


def break_noise(engine: PagedEngine, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine._picker, "rule", later_noise(engine))


def break_nodes(engine: PagedEngine, patch: pytest.MonkeyPatch) -> None:
    """The newest node is forgotten."""
    assert engine._lone is not None
    original = engine._lone.step

    def step(rows: SequenceRows, state: SequenceState, started_ns: int) -> StepResult | None:
        result = original(rows, state, started_ns)
        if result is not None and len(state.tree):
            state.tree.shrink(len(state.tree) - 1)
        return result

    patch.setattr(engine._lone, "step", step)


@pytest.mark.parametrize("broken", [break_window, break_noise, break_nodes])
def test_a_chain_that_differs_would_be_noticed(
    engines: FollowingEngines, broken: Callable[[PagedEngine, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engines.forward("qwen2")._sizes.windows == (None, 9)
    ours, theirs = engines.make("qwen2"), engines.make("qwen2")
    broken(ours, monkeypatch)
    with pytest.raises(AssertionError):
        Twins(ours, theirs, SAMPLINGS["warm"], 1).live()
