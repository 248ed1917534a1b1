"""Fakes for drafting: an engine whose picks are a table over the whole context, and a source that only keeps books.

The table engine knows exactly what was fed: leave out one token, feed one twice or keep a wrong row, and every later pick changes.
It enforces the Engine contract by assertions, so that a caller that breaks it fails here before it fails in torch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from outrider.drafting.contract import Needs, Proposal, ProposeRequest, RunsAt, SourceSession
from outrider.engine.contract import EngineLimits
from outrider.errors import AlreadyExists, DoesNotFit, Overloaded, UnknownSession
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import TailEnd
from outrider.types.identity import ModelIdentity, Numerics
from outrider.types.step import Choices, Seconds, SequenceResult, SequenceRows, SequenceSpec, StepPlan, StepResult, TokenLogprobs
from outrider.types.tree import ROOT, IntArray, extend_hash

VOCAB_SIZE = 23
BLOCK_LEN = 4
_MIX = 0xBF58476D1CE4E5B9
_MASK64 = (1 << 64) - 1


def fake_identity(vocab_size: int = VOCAB_SIZE, eos_token_ids: tuple[int, ...] = (), max_context: int = 4096) -> ModelIdentity:
    """The identity of a table engine."""
    return ModelIdentity("table", "", "w", "v" * 64, vocab_size, "float32", Numerics.FAST, "f", max_context, eos_token_ids)


def table_scores(context: Sequence[int], vocab_size: int, seed: int) -> list[float]:
    """Perturbed logits after a context: a pure function of every token of it."""
    start = extend_hash(seed, list(context))
    scores: list[float] = []
    for token in range(vocab_size):
        mixed = ((start ^ (token * _MIX & _MASK64)) * _MIX) & _MASK64
        mixed ^= mixed >> 31
        scores.append(((mixed * _MIX) & _MASK64) / 2.0**62)
    return scores


def table_ranking(context: Sequence[int], vocab_size: int = VOCAB_SIZE, seed: int = 0) -> list[int]:
    """All tokens after a context, best first; the first is the pick."""
    scores = table_scores(context, vocab_size, seed)
    return sorted(range(vocab_size), key=lambda token: (-scores[token], token))


def _num_blocks(spec: SequenceSpec, num_tokens: int) -> int:
    return -(-(num_tokens + spec.max_nodes) // BLOCK_LEN)


@dataclass
class _Sequence:
    spec: SequenceSpec
    num_blocks: int
    cached: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def context(self, node: int) -> list[int]:
        path: list[int] = []
        while node != ROOT:
            path.append(self.tokens[node])
            node = self.parents[node]
        return self.cached + path[::-1]


class TableEngine:
    """An Engine over `table_scores`. num_steps and num_rows count the work done, num_followed the rows that no plan named.

    follow_seed: it makes a random number of the picks that a plan lets follow; None: none, as most engines.
    """

    def __init__(
        self,
        *,
        max_rows: int = 64,
        num_blocks: int = 4096,
        eos_token_ids: tuple[int, ...] = (),
        prefix_cache: bool = False,
        follow_seed: int | None = None,
    ) -> None:
        self._follow_lens = None if follow_seed is None else random.Random(follow_seed)
        self.num_followed = 0
        self.identity = fake_identity(eos_token_ids=eos_token_ids)
        self.limits = EngineLimits(max_rows, BLOCK_LEN, num_blocks, 4096, prefix_cache)
        self._known: set[tuple[str, tuple[int, ...]]] = set()
        self.num_free_blocks = num_blocks
        self.num_steps = 0
        self.num_rows = 0
        self._sequences: dict[int, _Sequence] = {}

    def open(self, sequence: int, spec: SequenceSpec, prefix: IntArray | None = None) -> None:
        if sequence in self._sequences:
            raise AlreadyExists(f"sequence {sequence}")
        if spec.max_len > self.limits.max_context or _num_blocks(spec, spec.max_len) > self.limits.num_blocks:
            raise DoesNotFit("max_len", "longer than the context")
        num_blocks = _num_blocks(spec, spec.first_len or spec.max_len)
        if num_blocks > self.num_free_blocks:
            raise Overloaded("no blocks")
        self.num_free_blocks -= num_blocks
        self._sequences[sequence] = _Sequence(spec, num_blocks)
        if prefix is not None:
            self.match_prefix(sequence, prefix)

    def reserve(self, sequence: int, length: int) -> None:
        state = self._sequences[sequence]
        missing = _num_blocks(state.spec, min(length, state.spec.max_len)) - state.num_blocks
        if missing > self.num_free_blocks:
            raise Overloaded("no blocks")
        self.num_free_blocks -= max(0, missing)
        state.num_blocks += max(0, missing)

    def match_prefix(self, sequence: int, prefix: IntArray) -> int:
        state = self._sequences[sequence]
        found = len(state.cached)
        while found + BLOCK_LEN < len(prefix) and (state.spec.tenant, tuple(prefix[: found + BLOCK_LEN].tolist())) in self._known:
            found += BLOCK_LEN
        state.cached = prefix[:found].tolist()
        return found

    def step(self, plan: StepPlan) -> StepResult:
        num_rows = sum(len(rows.committed) + len(rows.tokens) for rows in plan.sequences)
        assert 0 < num_rows <= self.limits.max_rows
        assert len({rows.sequence for rows in plan.sequences}) == len(plan.sequences)
        self.num_steps += 1
        self.num_rows += num_rows
        return StepResult(tuple(self._run(rows) for rows in plan.sequences), 1, 1, num_rows)

    def _run(self, rows: SequenceRows) -> SequenceResult:
        sequence = self._sequences[rows.sequence]
        spec = sequence.spec
        assert not (len(rows.committed) and sequence.tokens), "committed rows while nodes are live"
        sequence.cached += rows.committed.tolist()
        if self.limits.prefix_cache and rows.wanted:
            whole = range(BLOCK_LEN, len(sequence.cached), BLOCK_LEN)
            self._known |= {(spec.tenant, tuple(sequence.cached[:length])) for length in whole}
        assert len(sequence.cached) <= spec.max_len
        assert _num_blocks(spec, len(sequence.cached)) <= sequence.num_blocks, "a text that grew beyond its room"
        contexts = [list(sequence.cached)] if len(rows.committed) else []
        assert len(rows.tokens) == len(rows.parents)
        for token, parent in zip(rows.tokens.tolist(), rows.parents.tolist(), strict=True):
            assert ROOT <= parent < len(sequence.tokens)
            assert sequence.cached, "nodes before any committed token"
            sequence.tokens.append(token)
            sequence.parents.append(parent)
            contexts.append(sequence.context(len(sequence.tokens) - 1))
        assert len(sequence.tokens) <= spec.max_nodes
        if not rows.wanted:
            assert not len(rows.tokens)
            return SequenceResult(rows.sequence, np.empty(0, np.int32))
        return self._followed(sequence, rows, self._answer(rows, contexts, spec.noise.seed))

    def _followed(self, sequence: _Sequence, rows: SequenceRows, first: SequenceResult) -> SequenceResult:
        """The first pick and those that follow it, as far as the plan, the text, the tree and the seed let them."""
        if rows.follow is None:
            return first
        assert rows.follow.num_more > 0
        assert len(first.picks) == 1
        assert first.choices is None, "they say nothing of what follows"
        assert first.logprobs is None
        room = min(rows.follow.num_more, sequence.spec.max_nodes - len(sequence.tokens))
        most = self._follow_lens.randint(0, room) if self._follow_lens is not None and room > 0 else 0
        results = [first]
        while len(results) <= most:
            pick, probs = int(results[-1].picks[0]), results[-1].pick_probs
            if pick in self.identity.eos_token_ids or (probs is not None and float(probs[0]) < rows.follow.stop_below):
                break
            sequence.parents.append(len(sequence.tokens) - 1)
            sequence.tokens.append(pick)
            self.num_followed += 1
            results.append(self._answer(rows, [sequence.context(len(sequence.tokens) - 1)], sequence.spec.noise.seed))
        all_probs = [result.pick_probs for result in results if result.pick_probs is not None]
        picks = np.concatenate([result.picks for result in results])
        all_seconds = [result.seconds for result in results if result.seconds is not None]
        return replace(first, picks=picks, pick_probs=np.concatenate(all_probs) if all_probs else None, seconds=_joined(all_seconds))

    def _answer(self, rows: SequenceRows, contexts: list[list[int]], seed: int) -> SequenceResult:
        vocab_size = self.identity.vocab_size
        rankings = [table_ranking(context, vocab_size, seed) for context in contexts]
        picks = np.array([ranking[0] for ranking in rankings], np.int32)
        choices, logprobs = None, None
        if rows.num_choices:
            choices = _choices(rankings, contexts, rows.num_choices, vocab_size, seed)
        if rows.top_logprobs is not None:
            logprobs = _logprobs(contexts, rows.top_logprobs, vocab_size)
        probs = _choices(rankings, contexts, 1, vocab_size, seed).probs[:, 0] if rows.pick_probs else None
        seconds = _seconds(_choices(rankings, contexts, 2, vocab_size, seed)) if rows.seconds else None
        return SequenceResult(rows.sequence, picks, choices, logprobs, pick_probs=probs, seconds=seconds)

    def end_loan(self) -> None:
        raise AssertionError("drafters are lent nothing")

    def keep(self, sequence: int, path: tuple[int, ...], *, subtree: bool = False) -> IntArray:
        held = self._sequences[sequence]
        last = ROOT
        for node in path:
            assert held.parents[node] == last, "not a path"
            held.cached.append(held.tokens[node])
            last = node
        kept: list[int] = []
        place = {last: ROOT}
        if subtree:
            for node, parent in enumerate(held.parents):
                if parent in place and node not in path:
                    place[node] = len(kept)
                    kept.append(node)
        held.parents = [place[held.parents[node]] for node in kept]
        held.tokens = [held.tokens[node] for node in kept]
        return np.array(kept, np.int32)

    def truncate(self, sequence: int, length: int) -> None:
        held = self._sequences[sequence]
        assert 0 <= length <= len(held.cached)
        del held.cached[length:]
        held.tokens, held.parents = [], []

    def cached_len(self, sequence: int) -> int:
        return len(self._sequences[sequence].cached)

    def cached(self, sequence: int) -> list[int]:
        """Tokens whose KV is present, for assertions."""
        return list(self._sequences[sequence].cached)

    def close(self, sequence: int) -> None:
        held = self._sequences.pop(sequence, None)
        if held is None:
            raise UnknownSession(f"sequence {sequence}")
        self.num_free_blocks += held.num_blocks


def _choices(rankings: list[list[int]], contexts: list[list[int]], width: int, vocab_size: int, seed: int) -> Choices:
    ids = np.array([ranking[:width] for ranking in rankings], np.int32)
    scores = np.array([table_scores(context, vocab_size, seed) for context in contexts], np.float32)
    probs = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    entropy = -(probs * np.log(probs)).sum(axis=1)
    chosen = np.take_along_axis(probs, ids, 1).astype(np.float32)
    return Choices(ids, np.take_along_axis(scores, ids, 1), chosen, entropy.astype(np.float32))


def _seconds(two: Choices) -> Seconds:
    return Seconds(two.ids[:, 1], two.scores[:, 0] - two.scores[:, 1])


def _joined(parts: list[Seconds]) -> Seconds | None:
    if not parts:
        return None
    return Seconds(np.concatenate([part.ids for part in parts]), np.concatenate([part.behind for part in parts]))


def _logprobs(contexts: list[list[int]], width: int, vocab_size: int) -> TokenLogprobs:
    scores = np.array([table_scores(context, vocab_size, 0) for context in contexts], np.float32)
    logprobs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    order = np.argsort(-logprobs, axis=1)[:, :width].astype(np.int32)
    top = np.take_along_axis(logprobs, order, 1).astype(np.float32)
    return TokenLogprobs(top[:, 0], order, top)


class BookkeepingSource:
    """A source that mirrors every session's truth and tree and guesses by a table, one level a call; for session and scheduler tests.

    It asserts that what it is told is possible; `trees` and `truths` are compared with the session's own by the tests.
    """

    name = "bookkeeping"
    runs_at = RunsAt.EITHER
    needs = Needs.NOTHING

    def __init__(self, vocab_size: int = VOCAB_SIZE, max_sessions: int = 1 << 30, nodes_per_call: int = 2) -> None:
        self.trees: dict[int, GuessTree] = {}
        self.truths: dict[int, list[int]] = {}
        self._opened: dict[int, SourceSession] = {}
        self._vocab_size = vocab_size
        self._max_sessions = max_sessions
        self._nodes_per_call = nodes_per_call

    def open(self, session: SourceSession) -> None:
        if len(self.trees) >= self._max_sessions:
            raise Overloaded("the fake is full")
        assert session.session not in self.trees
        self.truths[session.session] = session.prefix.tolist()
        self.trees[session.session] = GuessTree(0, len(session.prefix))
        self._opened[session.session] = session

    def propose(self, requests: list[ProposeRequest]) -> list[Proposal]:
        return [self._grow(request) for request in requests]

    def _grow(self, request: ProposeRequest) -> Proposal:
        tree, truth = self.trees[request.session], self.truths[request.session]
        limits = self._opened[request.session].limits
        limit = min(request.draft_until, limits.max_len)
        tokens: list[int] = []
        parents: list[int] = []
        end = TailEnd.MORE
        while len(tokens) < self._nodes_per_call:
            live = tree.live_nodes()
            leaf = live[-1] if live else tree.root
            position = tree.root_len if leaf == tree.root else tree.base + tree.depth(leaf) + 1
            if position >= limit or len(live) >= limits.max_nodes:
                end = TailEnd.CREDIT if position >= request.draft_until else TailEnd.LIMIT
                break
            below: list[int] = []
            node = leaf
            while node != tree.root:
                below.append(tree.tokens[node])
                node = tree.parents[node]
            guess = self._guess(truth + below[::-1])
            tree.append([guess], [leaf])
            tokens.append(guess)
            parents.append(leaf)
        scores = np.full(len(tokens), math.log(0.5), np.float32)
        return Proposal(request.session, tree.tree_id, tuple(tokens), tuple(parents), scores, end)

    def _guess(self, context: list[int]) -> int:
        return table_ranking(context, self._vocab_size)[0]

    def observe(self, session: int, tokens: IntArray, path: tuple[int, ...], *, reroot: bool, tree_id: int) -> None:
        tree = self.trees[session]
        for token, node in zip(tokens.tolist(), path, strict=False):
            assert tree.advance(token)
            assert tree.root == node
        self.truths[session] += tokens.tolist()
        if reroot:
            assert tree_id > tree.tree_id
            self.trees[session] = GuessTree(tree_id, len(self.truths[session]))
        else:
            assert len(path) == len(tokens) > 0
            assert tree_id == tree.tree_id

    def close(self, session: int) -> None:
        if session not in self.trees:
            raise UnknownSession(f"session {session}")
        del self.trees[session], self.truths[session], self._opened[session]
