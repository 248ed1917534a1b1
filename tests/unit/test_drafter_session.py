"""The drafter's session against a naive model of it: whatever order of commits, echoes, restarts and nonsense arrives, the session, its
source and a verifier that only reads tails agree on the truth and on the tree, and nothing is left at the end.
"""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_drafting import BookkeepingSource, table_ranking
from outrider.drafting.contract import ProposeRequest, SourceSession
from outrider.session.drafter import DrafterSession
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.events import DrafterEffect, DrafterEvent, Grown, Observe, ReleaseSession, SendToVerifier, VerifierFrameArrived
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import Close, CloseReason, Commit, DraftLimits, Feedback, Open, Tail, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import MAX_TREE_NODES, extend_hash

VOCAB_SIZE = 6
MAX_LEN = 3000
BOUNDS = DrafterBounds("fake", VOCAB_SIZE, frozenset(), MAX_LEN, MAX_LEN)


class Pair:
    """A session with its source, the truth as the verifier has it, and the trees as the verifier reads them from tails."""

    def __init__(self, choose: random.Random, max_nodes: int = 12, flush_nodes: int = 0) -> None:
        self.choose = choose
        self.limits = DraftLimits(MAX_LEN, max_nodes, flush_nodes=flush_nodes)
        self.session = DrafterSession(1, BOUNDS)
        self.source = BookkeepingSource(VOCAB_SIZE, nodes_per_call=choose.randint(1, 4))
        self.incarnation = 0
        self.truth: list[int] = []
        self.credit = 0
        self.read: GuessTree | None = None
        self.ends: list[TailEnd] = []
        self.max_tree = 0
        self.open()

    def frame(self, frame: Open | Commit | Close | Feedback) -> None:
        self.step(VerifierFrameArrived(frame))

    def step(self, event: DrafterEvent) -> None:
        for effect in self.session.step(event):
            self.apply(effect)
        self.check()

    def apply(self, effect: DrafterEffect) -> None:
        match effect:
            case Observe():
                self.observe(effect)
            case ReleaseSession():
                if 1 in self.source.trees:
                    self.source.close(1)
            case SendToVerifier(frame=Tail() as tail):
                self.read_tail(tail)

    def observe(self, effect: Observe) -> None:
        if 1 in self.source.trees:
            self.source.observe(1, effect.tokens, effect.path, reroot=effect.reroot, tree_id=effect.tree_id)
            return
        opening = self.session.opening
        assert opening is not None
        self.source.open(SourceSession(1, effect.tokens, opening.num_prompt, opening.sampling, opening.noise, opening.limits))

    def read_tail(self, tail: Tail) -> None:
        assert tail.incarnation == self.incarnation
        if self.read is None or tail.tree_id != self.read.tree_id:
            assert tail.first_node == 0
            self.read = GuessTree(tail.tree_id, tail.base)
        assert tail.first_node == self.read.num_nodes
        assert tail.base == self.read.base
        assert tail.prefix_hash == extend_hash(0, self.truth[: tail.base])
        self.read.append(tail.tokens.tolist(), tail.parents.tolist())
        self.ends.append(tail.end)

    def check(self) -> None:
        if 1 not in self.source.trees:
            return
        tree, mirror = self.session.tree, self.source.trees[1]
        assert self.source.truths[1] == self.session.committed == self.truth[: len(self.session.committed)]
        assert (tree.tree_id, tree.base, tree.root) == (mirror.tree_id, mirror.base, mirror.root)
        assert (tree.tokens, tree.parents) == (mirror.tokens, mirror.parents)
        assert tree.root_len == len(self.session.committed)
        assert len(tree.live_nodes()) <= self.limits.max_nodes
        if self.read is not None and self.read.tree_id == tree.tree_id:
            assert tree.tokens[: self.read.num_nodes] == self.read.tokens
        self.max_tree = max(self.max_tree, tree.num_nodes)

    # --- what the verifier may do ---------------------------------------------------------------------------------------

    def open(self) -> None:
        self.incarnation += 1
        self.read = None
        self.ends.clear()
        if not self.truth:
            self.truth = [self.choose.randrange(VOCAB_SIZE) for _ in range(self.choose.randint(1, 9))]
        self.credit = len(self.truth) + self.choose.randint(0, 6)
        first = self.choose.randint(0, len(self.truth))
        tokens = np.array(self.truth[:first], np.int32)
        noise = NoiseAddress(1)
        opening = Open(1, self.incarnation, "r", tokens, len(self.truth), 0, SamplingParams(), noise, self.limits, self.credit)
        self.frame(opening)
        while first < len(self.truth):
            begin = max(0, first - self.choose.randint(0, 2))
            first = min(len(self.truth), first + self.choose.randint(1, 5))
            self.frame(self.commit_of(begin, first))

    def commit_of(self, begin: int, end: int) -> Commit:
        tokens = np.array(self.truth[begin:end], np.int32)
        return Commit(1, self.incarnation, begin, tokens, extend_hash(0, self.truth[:end]), 0, 1, self.credit)

    def draft(self) -> None:
        reach = self.session.wants()
        if reach is None:
            return
        tree_id = self.session.tree.tree_id
        (proposal,) = self.source.propose([ProposeRequest(1, tree_id, reach)])
        self.step(Grown(tree_id, proposal.tokens, proposal.parents, proposal.scores, proposal.end, 1, 2, 3))

    def commit(self) -> None:
        known = len(self.truth)
        for _ in range(self.choose.randint(1, 5)):
            follow = self.choose.random() < 0.85
            self.truth.append(table_ranking(self.truth, VOCAB_SIZE)[0] if follow else self.choose.randrange(VOCAB_SIZE))
        self.credit = max(self.credit, len(self.truth) + self.choose.randint(0, 8))
        self.frame(self.commit_of(known, len(self.truth)))

    def echo(self) -> None:
        begin = self.choose.randint(0, len(self.truth))
        self.frame(self.commit_of(begin, self.choose.randint(begin, len(self.truth))))

    def old_frame(self) -> None:
        old = self.incarnation - 1
        frames: list[Open | Commit | Close | Feedback] = [
            Commit(1, old, 0, np.array([1], np.int32), 0, 0, 0, 999),
            Close(1, old, CloseReason.FINISHED),
            Feedback(1, old, np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.float32)),
        ]
        self.frame(self.choose.choice(frames))

    def late_guess(self) -> None:
        self.step(Grown(self.session.tree.tree_id - 1, (1,), (-1,), None, TailEnd.MORE, 1, 2, 3))

    def settle(self) -> None:
        """Draft until the session pauses; then it must have said so."""
        while self.session.wants() is not None:
            self.draft()
        assert self.ends[-1] is not TailEnd.MORE
        assert self.read is not None
        assert self.read.tokens == self.session.tree.tokens, "a pause leaves nothing unsent"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), flush_nodes=st.sampled_from([0, 1, 3]))
def test_session_source_and_verifier_agree_whatever_arrives(seed: int, flush_nodes: int) -> None:
    choose = random.Random(seed)
    pair = Pair(choose, flush_nodes=flush_nodes)
    actions = [pair.draft] * 4 + [pair.commit] * 4 + [pair.echo, pair.old_frame, pair.late_guess, pair.settle, pair.open]
    for _ in range(60):
        choose.choice(actions)()
    pair.settle()
    pair.frame(Close(1, pair.incarnation, CloseReason.FINISHED))
    assert pair.session.ended
    assert pair.source.trees == {}
    assert pair.session.wants() is None


def test_a_truth_that_never_leaves_the_tree_re_roots_it_before_it_is_full() -> None:
    pair = Pair(random.Random(1), max_nodes=40)
    while len(pair.truth) < 2500:
        pair.settle()
        known = len(pair.truth)
        pair.truth += pair.session.tree.tokens[-min(4, len(pair.session.tree.live_nodes())) :] or [1]
        pair.credit = len(pair.truth) + 4
        pair.frame(pair.commit_of(known, len(pair.truth)))
    assert MAX_TREE_NODES - 60 < pair.max_tree <= MAX_TREE_NODES


@settings(max_examples=150, deadline=None)
@given(
    session=st.integers(-5, 5),
    incarnation=st.integers(-1, 4),
    begin=st.integers(-(1 << 40), 1 << 40),
    tokens=st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=6),
    stated=st.integers(0, (1 << 64) - 1),
    until=st.integers(-(1 << 40), 1 << 40),
    numbers=st.lists(st.integers(-(1 << 33), 1 << 33), min_size=4, max_size=4),
    threshold=st.floats(),
)
def test_no_frame_makes_a_session_raise(
    session: int, incarnation: int, begin: int, tokens: list[int], stated: int, until: int, numbers: list[int], threshold: float
) -> None:
    array = np.array(tokens, np.int32)
    limits = DraftLimits(numbers[0], numbers[1], numbers[2], threshold, threshold, numbers[3])
    frames: list[Open | Commit | Close | Feedback] = [
        Commit(session, incarnation, begin, array, stated, numbers[0], numbers[1], until),
        Open(session, incarnation, "r", array, begin, numbers[3], SamplingParams(threshold), NoiseAddress(until), limits, until),
        Open(session, incarnation, "r", array.reshape(1, -1), 4, 0, SamplingParams(), NoiseAddress(1), DraftLimits(9), until),
        Feedback(session, incarnation, array, array, np.zeros(2, np.float32)),
        Commit(session, incarnation, 0, array.reshape(1, -1), stated, 0, 0, until),
        Close(session, incarnation, CloseReason.FAILED),
    ]
    for frame in frames:
        fresh = DrafterSession(1, BOUNDS)
        fresh.step(VerifierFrameArrived(frame))
        live = DrafterSession(1, BOUNDS)
        opening = Open(1, 1, "r", np.array([1, 2], np.int32), 2, 2, SamplingParams(), NoiseAddress(1), DraftLimits(9), 5)
        live.step(VerifierFrameArrived(opening))
        live.step(VerifierFrameArrived(frame))
        assert live.ended or live.committed[:1] == [1] or frame.incarnation > 1


def test_the_newest_commit_says_when_a_tail_is_due() -> None:
    session = DrafterSession(1, BOUNDS)
    limits = DraftLimits(MAX_LEN, 12, flush_nodes=1)
    session.step(VerifierFrameArrived(Open(1, 1, "r", np.zeros(2, np.int32), 2, 2, SamplingParams(), NoiseAddress(0), limits, 9)))

    def num_sent(first: int, num_tokens: int) -> int:
        parents = tuple(range(first - 1, first + num_tokens - 1))
        grown = Grown(session.tree.tree_id, (3,) * num_tokens, parents, None, TailEnd.MORE, 10, 0, 10)
        return sum(isinstance(effect, SendToVerifier) and isinstance(effect.frame, Tail) for effect in session.step(grown))

    def commit(begin: int, flush_nodes: int | None) -> None:
        tokens = np.full(1, 4, np.int32)  # never guessed: the tree starts anew
        truth = [0, 0, *[4] * (begin - 1)]
        frame = Commit(1, 1, begin, tokens, extend_hash(0, truth), 0, 10, begin + 9, 0, flush_nodes)
        session.step(VerifierFrameArrived(frame))

    assert num_sent(0, 1) == 1
    commit(2, 3)
    assert [(session.flush_nodes, num_sent(at, 1)) for at in range(3)] == [(3, 0), (2, 0), (1, 1)], "what waits counts"
    assert session.flush_nodes == 3
    commit(3, None)
    assert [num_sent(0, 2), num_sent(2, 1)] == [0, 1], "unset leaves it as it is"
    commit(4, 0)
    assert num_sent(0, 8) == 0
