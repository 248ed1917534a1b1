"""The model drafter over a real (tiny, random) Llama whose target is the same model: every guess equals the target's own pick.

The target here is the slow obvious one: one sequence, one committed token a step, no trees. In `invariant` numerics the two agree bit by
bit, so a single lost, doubled or stale row of KV, one position off, or noise of another position fails the test. Commits are arbitrary
mixtures of whole, partial and no acceptance, and of tokens nobody guessed.
"""

from __future__ import annotations

import random
from contextlib import closing

import numpy as np
import pytest

from fakes_models import VOCAB, make_model
from mostly_slow import crossed
from outrider.drafting.contract import ProposeRequest, SourceSession
from outrider.drafting.model_source import ModelSource
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import DraftLimits, TailEnd
from outrider.types.identity import Numerics
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider.types.tree import ROOT

MAX_LEN = 96
EMPTY = np.empty(0, np.int32)
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "warm": SamplingParams(temperature=0.8),
    "filtered": SamplingParams(temperature=0.8, top_k=20, top_p=0.9, frequency_penalty=0.3, repetition_penalty=1.2),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("llama")
    make_model("llama", folder)
    config = EngineConfig(str(folder), EngineKind.LEAN, numerics=Numerics.INVARIANT, probe=False, num_blocks=256, max_rows=48)
    return load_engine(config)


class Target:
    """Plain decoding without trees: the pick after any text. Feeds what the text before did not share, at most CHUNK tokens a step."""

    SEQUENCE = 10_000
    CHUNK = 40

    def __init__(self, engine: Engine, sampling: SamplingParams, noise: NoiseAddress, num_prompt: int) -> None:
        self._engine = engine
        self._fed: tuple[int, ...] = ()
        self._picks: dict[tuple[int, ...], int] = {}
        engine.open(self.SEQUENCE, SequenceSpec(sampling, noise, num_prompt, MAX_LEN, 0))

    def pick(self, text: tuple[int, ...]) -> int:
        if text not in self._picks:
            self._picks[text] = self._compute(text)
        return self._picks[text]

    def _compute(self, text: tuple[int, ...]) -> int:
        shared = 0
        while shared < min(len(text) - 1, len(self._fed)) and text[shared] == self._fed[shared]:
            shared += 1
        self._engine.truncate(self.SEQUENCE, shared)
        self._fed = text
        picks = EMPTY
        for begin in range(shared, len(text), self.CHUNK):
            end = min(begin + self.CHUNK, len(text))
            rows = SequenceRows(self.SEQUENCE, np.array(text[begin:end], np.int32), EMPTY, EMPTY, wanted=end == len(text))
            picks = self._engine.step(StepPlan((rows,))).results[0].picks
        return int(picks[0])

    def close(self) -> None:
        self._engine.close(self.SEQUENCE)


class Game:
    """One drafter session against its target."""

    def __init__(
        self, engine: Engine, sampling: SamplingParams, width: int, seed: int, stop_below: float = 0.0, hedge_nodes: int = 0
    ) -> None:
        self.choose = random.Random(seed)
        noise = NoiseAddress(seed=seed, sample_index=1)
        self.truth = tuple(self.choose.randrange(VOCAB) for _ in range(self.choose.randint(2, 30)))
        self.target = Target(engine, sampling, noise, len(self.truth))
        limits = DraftLimits(MAX_LEN, 12, width, stop_below, hedge_nodes=hedge_nodes)
        self.hedge_nodes = hedge_nodes
        self.num_side_commits = 0
        self.source = ModelSource(engine, max_depth=32)
        prefix = np.array(self.truth, np.int32)
        self.source.open(SourceSession(1, prefix, len(prefix), sampling, noise, limits))
        self.tree = GuessTree(0, len(prefix))
        self.num_checked = 0

    def path(self, node: int) -> tuple[int, ...]:
        tokens: list[int] = []
        while node not in (ROOT, self.tree.root):
            tokens.append(self.tree.tokens[node])
            node = self.tree.parents[node]
        return tuple(tokens[::-1])

    def draft(self, num_calls: int) -> set[TailEnd]:
        """The ends of so many calls, or of those up to a pause."""
        ends: set[TailEnd] = set()
        for _ in range(num_calls):
            (proposal,) = self.source.propose([ProposeRequest(1, self.tree.tree_id, len(self.truth) + 9, self.hedge_nodes)])
            first = self.tree.num_nodes
            self.tree.append(proposal.tokens, proposal.parents)
            for node in range(first, self.tree.num_nodes):
                parent = self.tree.parents[node]
                if parent not in self.tree.parents[:node]:
                    self.num_checked += 1
                    assert self.tree.tokens[node] == self.target.pick(self.truth + self.path(parent))
            ends.add(proposal.end)
            if proposal.end is not TailEnd.MORE and not proposal.may_hedge:
                break
        return ends

    def side_path(self) -> list[int]:
        """Sometimes the way along a second choice, and on below it, as if the target preferred that."""
        firsts = {self.tree.parents[node]: node for node in reversed(self.tree.live_nodes())}
        seconds = [node for node in self.tree.live_nodes() if firsts[self.tree.parents[node]] != node]
        if not self.hedge_nodes or not seconds or self.choose.random() < 0.4:
            return []
        self.num_side_commits += 1
        tokens = list(self.path(node := self.choose.choice(seconds)))
        while node in firsts and self.choose.random() < 0.6:
            node = firsts[node]
            tokens.append(self.tree.tokens[node])
        return tokens

    def close(self) -> None:
        self.source.close(1)
        self.target.close()

    def commit(self) -> None:
        """Up to all of the accepted path, then sometimes the target's own next token, sometimes a stranger."""
        tokens: list[int] = []
        for _ in range(self.choose.randint(0, 8)):
            pick = self.target.pick(self.truth + tuple(tokens))
            if self.choose.random() < 0.12:
                pick = self.choose.randrange(VOCAB)
            tokens.append(pick)
        tokens = self.side_path() or tokens or [self.choose.randrange(VOCAB)]
        nodes: list[int] = []
        for token in tokens:
            if not self.tree.advance(token):
                break
            nodes.append(self.tree.root)
        reroot = len(nodes) < len(tokens)
        self.truth += tuple(tokens)
        tree_id = self.tree.tree_id + reroot
        self.source.observe(1, np.array(tokens, np.int32), tuple(nodes), reroot=reroot, tree_id=tree_id)
        if reroot:
            self.tree = GuessTree(tree_id, len(self.truth))


@pytest.mark.parametrize(("sampling", "width"), crossed(list(SAMPLINGS), [1, 3]))
def test_a_drafter_that_is_the_target_is_always_right(engine: Engine, sampling: str, width: int) -> None:
    for seed in range(2):
        with closing(Game(engine, SAMPLINGS[sampling], width, seed)) as game:
            while len(game.truth) < MAX_LEN - 20:
                game.draft(game.choose.randint(0, 12))
                game.commit()
            assert game.num_checked > 25
    assert engine.num_free_blocks == engine.limits.num_blocks


@pytest.mark.parametrize(("sampling", "stop_below"), crossed(list(SAMPLINGS), [0.02, 0.0]))
def test_side_branches_guess_the_same_whichever_of_them_the_truth_takes(engine: Engine, sampling: str, stop_below: float) -> None:
    for seed in range(2):
        with closing(Game(engine, SAMPLINGS[sampling], 1, seed, stop_below, hedge_nodes=16)) as game:
            while len(game.truth) < MAX_LEN - 20:
                game.draft(game.choose.randint(4, 20))
                game.commit()
            assert game.num_checked > 25
            assert game.num_side_commits > 3
    assert engine.num_free_blocks == engine.limits.num_blocks


@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_a_chain_that_stops_when_unsure_guesses_the_same(engine: Engine, sampling: str) -> None:
    """With a stop rule the engine gives each pick's probability along, by another way than the pick alone."""
    with closing(Game(engine, SAMPLINGS[sampling], 1, 3, stop_below=0.05)) as game:
        ends: set[TailEnd] = set()
        while len(game.truth) < MAX_LEN - 20:
            ends |= game.draft(game.choose.randint(1, 12))
            game.commit()
        assert game.num_checked > 15
        assert TailEnd.CONFIDENCE in ends


def test_whole_acceptance_for_ever_never_loses_a_token(engine: Engine) -> None:
    with closing(Game(engine, SAMPLINGS["warm"], 1, seed=9)) as game:
        while len(game.truth) < MAX_LEN - 20:
            game.draft(30)
            nodes = game.tree.live_nodes()
            accepted = [game.tree.tokens[node] for node in nodes]
            assert len(accepted) == 9
            tokens = [*accepted, game.target.pick(game.truth + tuple(accepted))]
            game.truth += tuple(tokens)
            game.source.observe(1, np.array(tokens, np.int32), tuple(nodes), reroot=True, tree_id=game.tree.tree_id + 1)
            game.tree = GuessTree(game.tree.tree_id + 1, len(game.truth))
