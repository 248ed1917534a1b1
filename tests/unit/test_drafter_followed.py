"""The drafting loop over a small real model and over tables: what a verifier reads from tails is the same whether the engine follows a lone
session's picks or makes a step for each.

A broken twin (an engine that follows noise of the next position) shows that the comparison would notice.
Run: pytest tests/unit/test_drafter_followed.py
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import fakes_models
from drafter_service.inbox import FramesArrived, Inbox, StreamEnded
from drafter_service.outbox import Outbox
from drafter_service.scheduler import Scheduler, SchedulerLimits
from fakes_drafting import TableEngine
from fakes_followed import later_noise
from outrider.drafting import follow_cost
from outrider.drafting.follow_cost import FollowCost
from outrider.drafting.model_source import ModelSource
from outrider.engine.config import EngineConfig, EngineKind
from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.engine.paged_engine import PagedEngine
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import Commit, DraftLimits, Open, Opened, Tail, TailEnd, VerifierFrame
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import StepPlan, StepResult
from outrider.types.tree import extend_hash

MAX_LEN = 110
NUM_ROUNDS = 9
ALL = 1 << 30
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "warm": SamplingParams(temperature=0.8),
    "top p": SamplingParams(temperature=0.8, top_p=0.8),
    "top k and min p": SamplingParams(temperature=1.2, top_k=9, min_p=0.05),
    "penalties": SamplingParams(temperature=0.8, frequency_penalty=0.3, repetition_penalty=1.2),
    "a bias": SamplingParams(temperature=0.8, logit_bias=((5, 2.0),)),
}
LIMITS = {
    "credit": DraftLimits(MAX_LEN),
    "a stop rule": DraftLimits(MAX_LEN, 12, stop_below=0.06),
    "flushes": DraftLimits(MAX_LEN, flush_nodes=3),
    "side branches": DraftLimits(MAX_LEN, 12, stop_below=0.03, hedge_nodes=6),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _chains_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain gives way to its side branches only between two steps, so the order of guesses would depend on how many a step makes."""
    monkeypatch.setattr(FollowCost, "branch_price", property(lambda cost: 1e9))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> PagedEngine:
    """Windows, end tokens, and a cache that has no prefix to share: every run begins alike."""
    folder = tmp_path_factory.mktemp("mistral")
    fakes_models.make_model("mistral", folder, eos_token_id=[3, 40])
    config = EngineConfig(
        str(folder), EngineKind.LEAN, num_blocks=64, block_len=16, max_rows=48, num_threads=1, probe=False, prefix_cache=False
    )
    loaded = load_engine(config)
    assert isinstance(loaded, PagedEngine)
    assert loaded._follower is not None
    assert loaded.identity.eos_token_ids == (3, 40)
    return loaded


@dataclass
class Heard:
    """What tails say between two pauses."""

    end: TailEnd | None
    tree_id: int
    tokens: list[int]
    parents: list[int]
    scores: list[float]


class Verifier:
    """One session of a drafter's loop, turned by hand until it rests, and its tree as tails tell it."""

    def __init__(self, engine: Engine, sampling: SamplingParams, limits: DraftLimits, seed: int) -> None:
        self.choose = random.Random(seed)
        self.vocab_size = engine.identity.vocab_size
        self.limits = limits
        self.inbox = Inbox(64, lambda: None)
        self.outbox = Outbox(1000)
        bounds = DrafterBounds("fake", self.vocab_size, frozenset(engine.identity.eos_token_ids), 500, 400)
        source = ModelSource(engine)
        self.scheduler = Scheduler(source, bounds, SchedulerLimits(), self.inbox, lambda outboxes: None, lambda: None, lambda: 1000)
        self.scheduler.attach(1, self.outbox)
        self.truth = [self.choose.randrange(self.vocab_size) for _ in range(self.choose.randint(2, 30))]
        self.tree = GuessTree(0, len(self.truth))
        self.tail_lens: list[int] = []
        prefix = np.array(self.truth, np.int32)
        self.send(Open(1, 1, "r", prefix, len(prefix), len(prefix), sampling, NoiseAddress(seed), limits, self.reach()))

    def reach(self) -> int:
        return min(len(self.truth) + self.choose.randint(1, 14), self.limits.max_len)

    def send(self, frame: VerifierFrame) -> None:
        assert self.inbox.offer(FramesArrived(1, (frame,)))

    def listen(self) -> Heard:
        """Until the drafter rests."""
        end: TailEnd | None = None
        scores: list[float] = []
        is_over = False
        while not is_over:
            self.scheduler.turn()
            is_over = self.scheduler.is_idle
            for frame in self.outbox.take(ALL, ALL):  # every turn: tails that wait become one
                assert isinstance(frame, (Opened, Tail)), frame
                if isinstance(frame, Tail):
                    self.read(frame)
                    scores += [] if frame.scores is None else frame.scores.tolist()
                    end = frame.end
        return Heard(end, self.tree.tree_id, list(self.tree.tokens), list(self.tree.parents), scores)

    def read(self, tail: Tail) -> None:
        if tail.tree_id != self.tree.tree_id:
            self.tree = GuessTree(tail.tree_id, tail.base)
        assert tail.first_node == self.tree.num_nodes
        self.tree.append(tail.tokens.tolist(), tail.parents.tolist())
        self.tail_lens += [len(tail.tokens)] if tail.end is TailEnd.MORE else []

    def commit(self) -> None:
        """Some of what was guessed, then sometimes a stranger."""
        begin, node, tokens = len(self.truth), self.tree.root, []
        while self.choose.random() < 0.8:
            below = [child for child in self.tree.live_nodes() if self.tree.parents[child] == node]
            if not below:
                break
            node = self.choose.choice(below)
            tokens.append(self.tree.tokens[node])
        if not tokens or self.choose.random() < 0.5:
            tokens.append(self.choose.randrange(4, self.vocab_size))
        self.truth += tokens
        followed = all(self.tree.advance(token) for token in tokens)
        if not followed:
            self.tree = GuessTree(self.tree.tree_id + 1, len(self.truth))
        digest, hedge_nodes = extend_hash(0, self.truth), self.choose.choice([0, self.limits.hedge_nodes])
        self.send(Commit(1, 1, begin, np.array(tokens, np.int32), digest, 0, 1, self.reach(), hedge_nodes))

    def live(self) -> list[Heard]:
        """All it hears in a life of NUM_ROUNDS commits."""
        heard = [self.listen()]
        for _ in range(NUM_ROUNDS):
            self.commit()
            heard.append(self.listen())
        self.inbox.control(StreamEnded(1))
        self.scheduler.turn()
        return heard


def count_followed(engine: PagedEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the length of every chain that the engine was asked to follow."""
    lengths: list[int] = []
    original = engine.step

    def spy(plan: StepPlan) -> StepResult:
        answer = original(plan)
        lengths.extend(len(result.picks) for rows, result in zip(plan.sequences, answer.results, strict=True) if rows.follow is not None)
        return answer

    monkeypatch.setattr(engine, "step", spy)
    return lengths


def both_ways(
    engine: PagedEngine, sampling: str, limits: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Heard], list[Heard]]:
    """A life with followed picks, and one without, whose steps are taken the general way."""
    following = Verifier(engine, SAMPLINGS[sampling], LIMITS[limits], seed).live()
    with monkeypatch.context() as patch:
        patch.setattr(follow_cost, "MAX_FOLLOWED", 0)
        patch.setattr(engine, "_lone", None)
        return following, Verifier(engine, SAMPLINGS[sampling], LIMITS[limits], seed).live()


@pytest.mark.parametrize("limits", list(LIMITS))
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_a_verifier_reads_the_same_tails(engine: PagedEngine, sampling: str, limits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = count_followed(engine, monkeypatch)
    seed = list(LIMITS).index(limits)
    following, stepping = both_ways(engine, sampling, limits, seed, monkeypatch)
    assert following == stepping
    assert engine.num_free_blocks == engine.limits.num_blocks
    assert max(lengths) > 1


def test_tails_that_differ_would_be_noticed(engine: PagedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    following, stepping = both_ways(engine, "warm", "credit", 0, monkeypatch)
    assert following == stepping
    monkeypatch.setattr(engine._picker, "rule", later_noise(engine))  # of every quick pick, the general way's among them
    assert Verifier(engine, SAMPLINGS["warm"], LIMITS["credit"], 0).live() != stepping


@pytest.mark.parametrize("flush_nodes", [1, 2, 3, 5])
def test_tails_on_the_way_are_as_long_as_asked_and_never_twice_that(flush_nodes: int) -> None:
    limits = DraftLimits(MAX_LEN, flush_nodes=flush_nodes)
    for seed in range(4):
        alone = Verifier(TableEngine(), SAMPLINGS["warm"], limits, seed)
        following = Verifier(TableEngine(follow_seed=seed), SAMPLINGS["warm"], limits, seed)
        assert following.live() == alone.live()
        assert set(alone.tail_lens) == {flush_nodes}
        assert flush_nodes <= min(following.tail_lens) <= max(following.tail_lens) < 2 * flush_nodes
