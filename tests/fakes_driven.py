"""A model source driven by hand over a table engine: one session, the GuessTree that its session would keep, and a check of every guess.

The table's picks depend on every token fed, so a row fed twice, left out or kept by mistake shows as a wrong guess.
"""

from __future__ import annotations

import random

import numpy as np

from fakes_drafting import VOCAB_SIZE, TableEngine, table_ranking
from outrider.drafting.contract import ProposeRequest, SourceSession
from outrider.drafting.model_source import ModelSource
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import DraftLimits, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import ROOT

SESSION = 7


class Driven:
    """A source with one session and the GuessTree a session would keep beside it."""

    def __init__(self, source: ModelSource, session: int, prefix: list[int], limits: DraftLimits, *, with_rows: bool = False) -> None:
        self.source = source
        self.session = session
        self.limits = limits
        self.truth = list(prefix)
        self.tree = GuessTree(0, len(prefix))
        self.may_hedge = False
        sampling = SamplingParams(temperature=1.0)
        source.open(SourceSession(session, np.array(prefix, np.int32), len(prefix), sampling, NoiseAddress(0), limits, with_rows))

    def propose(self, draft_until: int, hedge_nodes: int = 0) -> TailEnd:
        (proposal,) = self.source.propose([ProposeRequest(self.session, self.tree.tree_id, draft_until, hedge_nodes)])
        self.take(proposal.tokens, proposal.parents)
        assert proposal.tree_id == self.tree.tree_id
        self.may_hedge = proposal.may_hedge
        return proposal.end

    def take(self, tokens: tuple[int, ...], parents: tuple[int, ...]) -> None:
        first = self.tree.num_nodes
        self.tree.append(tokens, parents)
        for node in range(first, self.tree.num_nodes):
            self.check(node)

    def check(self, node: int) -> None:
        siblings = [other for other in range(self.tree.num_nodes) if self.tree.parents[other] == self.tree.parents[node]]
        ranking = table_ranking(self.truth + self.path(self.tree.parents[node]), VOCAB_SIZE)
        rank = siblings.index(node)
        assert self.tree.tokens[node] == ranking[rank], f"node {node} is not choice {rank} after its path"

    def path(self, node: int) -> list[int]:
        tokens: list[int] = []
        while node not in (ROOT, self.tree.root):
            tokens.append(self.tree.tokens[node])
            node = self.tree.parents[node]
        return tokens[::-1]

    def draft(self, draft_until: int, max_calls: int = 400) -> TailEnd:
        for _ in range(max_calls):
            end = self.propose(draft_until)
            if end is not TailEnd.MORE:
                return end
        raise AssertionError("the source never paused")

    def hedge(self, draft_until: int, hedge_nodes: int, max_calls: int = 400) -> None:
        """Until chain and side branches pause."""
        for _ in range(max_calls):
            if self.propose(draft_until, hedge_nodes) is not TailEnd.MORE and not self.may_hedge:
                return
        raise AssertionError("the source never paused")

    def commit(self, tokens: list[int]) -> bool:
        """The truth grows; returns whether the tree followed."""
        path: list[int] = []
        followed = True
        for token in tokens:
            if not self.tree.advance(token):
                followed = False
                break
            path.append(self.tree.root)
        self.truth += tokens
        tree_id = self.tree.tree_id if followed else self.tree.tree_id + 1
        self.source.observe(self.session, np.array(tokens, np.int32), tuple(path), reroot=not followed, tree_id=tree_id)
        if not followed:
            self.tree = GuessTree(tree_id, len(self.truth))
        return followed


def drive(seed: int, limits: DraftLimits, engine: TableEngine) -> None:
    """Any mixture of drafting (with any budget of side branches) and commits; every guess is checked as it comes."""
    choose = random.Random(seed)
    prefix = [choose.randrange(VOCAB_SIZE) for _ in range(choose.randint(1, 40))]
    driven = Driven(ModelSource(engine), SESSION, prefix, limits)
    while len(driven.truth) < 180:
        for _ in range(choose.randint(0, 12)):
            hedge_nodes = choose.choice([0, choose.randint(0, limits.hedge_nodes)])
            driven.propose(len(driven.truth) + choose.randint(1, 10), hedge_nodes)
        assert len(driven.tree.live_nodes()) <= limits.max_nodes + limits.hedge_nodes
        driven.commit(next_commit(choose, driven))
    driven.source.close(SESSION)
    assert engine.num_free_blocks == engine.limits.num_blocks


def next_commit(choose: random.Random, driven: Driven) -> list[int]:
    """Full, partial or no acceptance: walk guessed nodes for a while, then maybe the target's own token, maybe a stranger."""
    tokens: list[int] = []
    node = driven.tree.root
    while choose.random() < 0.8:
        children = [below for below in driven.tree.live_nodes() if driven.tree.parents[below] == node]
        if not children:
            break
        node = choose.choice(children)
        tokens.append(driven.tree.tokens[node])
    if not tokens or choose.random() < 0.6:
        pick = table_ranking(driven.truth + tokens)[0]
        tokens.append(pick if choose.random() < 0.5 else choose.randrange(VOCAB_SIZE))
    return tokens
