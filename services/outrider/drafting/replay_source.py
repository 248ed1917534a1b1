"""Replayed drafts of a fixed acceptance: guesses a known text right with a given probability, for benches and throughput models.

Knows the texts and, per position, whether its guess is right: a pure function of (seed, position), so that acceptance per position is
Bernoulli(acceptance) whatever the pacing, round boundaries or restarts; so is the second choice, which side branches (hedges) begin
with. Each guess may cost a fixed time, as a model's would, and guesses of a session that asks alone come several in a call, as a model's
do. Must not know models. A session whose prefix begins no known text gets no guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outrider.drafting.contract import Needs, Proposal, ProposeRequest, RunsAt, SourceSession
from outrider.drafting.follow_cost import most_followed
from outrider.drafting.hedges import Branch
from outrider.drafting.positional_tree import Choice, PositionalTree
from outrider.drafting.replay_pace import ReplayPace, WallPace
from outrider.errors import AlreadyExists, InvalidRequest, UnknownSession
from outrider.noise.field import uniform
from outrider.types.frames import DraftLimits, TailEnd
from outrider.types.tree import IntArray


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """texts: whole token sequences, prompt and answer. acceptance: probability in [0, 1] that a guess is right. hedge_acceptance: that the
    second choice is right where the first is wrong; 0 = no side branches. step_us: what a guess costs, of however many sessions at once."""

    texts: tuple[tuple[int, ...], ...]
    acceptance: float
    vocab_size: int
    seed: int = 0
    step_us: int = 0
    hedge_acceptance: float = 0.0

    def check(self) -> None:
        """Raise InvalidRequest naming the first field that is out of range."""
        if not 0.0 <= self.acceptance <= 1.0:
            raise InvalidRequest("replay.acceptance", f"must be in [0, 1], got {self.acceptance}")
        if not 0.0 <= self.hedge_acceptance <= 1.0:
            raise InvalidRequest("replay.hedge_acceptance", f"must be in [0, 1], got {self.hedge_acceptance}")
        if self.vocab_size < 2 + (self.hedge_acceptance > 0.0):
            raise InvalidRequest("replay.vocab_size", f"every wrong guess needs a token of its own, got {self.vocab_size}")
        if self.step_us < 0:
            raise InvalidRequest("replay.step_us", f"must be 0 or positive, got {self.step_us}")
        if any(not 0 <= token < self.vocab_size for text in self.texts for token in text):
            raise InvalidRequest("replay.texts", f"a token is outside the vocabulary of {self.vocab_size}")


@dataclass(slots=True)
class _Chain:
    """One session: its text, where its truth stands, and its guesses."""

    limits: DraftLimits
    text: tuple[int, ...]
    known: list[int]
    tree_id: int
    tree: PositionalTree


class ReplaySource:
    """Draft source over known texts: chains, and their side branches. Of several sessions, or with side branches, a token a call."""

    name = "replay"
    runs_at = RunsAt.EITHER
    needs = Needs.NOTHING

    def __init__(self, options: ReplayOptions, pace: ReplayPace | None = None) -> None:
        """pace: None: the time of day's."""
        options.check()
        self._options = options
        self._pace = pace or WallPace()
        self._most_followed = 0 if options.hedge_acceptance else most_followed(options.step_us)
        self._chains: dict[int, _Chain] = {}

    def open(self, session: SourceSession) -> None:
        """Begin a session; the text is the one its prefix begins."""
        if session.session in self._chains:
            raise AlreadyExists(f"session {session.session} is open already")
        prefix = session.prefix.tolist()
        tree = PositionalTree(len(prefix), lambda position: self._choice(chain.text[position], position))
        chain = self._chains[session.session] = _Chain(session.limits, self._text_of(prefix), prefix, 0, tree)

    def propose(self, requests: list[ProposeRequest]) -> list[Proposal]:
        """More guesses for every session that may have some; side branches in a call that no chain wants."""
        begin_s = self._pace.now_s()
        num_more = self._most_followed if len(requests) == 1 else 0
        proposals = [self._grow(request, num_more) for request in requests]
        levels = max((len(proposal.tokens) for proposal in proposals), default=0)
        if not levels:
            proposals = [self._hedge(request, idle) for request, idle in zip(requests, proposals, strict=True)]
            levels = int(any(proposal.tokens for proposal in proposals))
        if not (self._options.step_us and levels):
            return proposals
        self._pace.wait_until(begin_s + levels * self._options.step_us / 1e6)
        if levels == 1:
            return proposals
        return [replace(proposal, follow_us=(levels - 1) * self._options.step_us) for proposal in proposals]

    def observe(self, session: int, tokens: IntArray, path: tuple[int, ...], *, reroot: bool, tree_id: int) -> None:
        """Follow the truth; a truth that leaves its text looks for another."""
        chain = self._chains[session]
        begin = len(chain.known)
        chain.known += tokens.tolist()
        if chain.known[begin:] != list(chain.text[begin : len(chain.known)]):
            chain.text = self._text_of(chain.known)
        chain.tree_id = tree_id
        if reroot:
            chain.tree.plant(len(chain.known))
        else:
            chain.tree.follow(path)

    def close(self, session: int) -> None:
        """Forget the session."""
        if self._chains.pop(session, None) is None:
            raise UnknownSession(f"session {session} is not open in the replay source")

    def _text_of(self, prefix: Sequence[int]) -> tuple[int, ...]:
        known = tuple(prefix)
        return next((text for text in self._options.texts if text[: len(known)] == known), ())

    def _grow(self, request: ProposeRequest, num_more: int) -> Proposal:
        """num_more: guesses that may follow the first."""
        chain = self._chains[request.session]
        tree, first = chain.tree, len(chain.tree.tokens)
        for _ in range(min(1 + num_more, request.flush_nodes or 1 + num_more)):
            if self._pause(chain, request) is not TailEnd.MORE or not tree.has_precedence(self._branches(chain, request)):
                break
            tree.grow()
        return self._proposal(chain, request, first, is_hedge=False)

    def _hedge(self, request: ProposeRequest, idle: Proposal) -> Proposal:
        chain = self._chains[request.session]
        branches, first = self._branches(chain, request), len(chain.tree.tokens)
        chain.tree.hedge(branches)
        return self._proposal(chain, request, first, is_hedge=True) if branches else idle

    def _proposal(self, chain: _Chain, request: ProposeRequest, first: int, *, is_hedge: bool) -> Proposal:
        """The nodes from `first` on."""
        nodes = tuple(chain.tree.tokens[first:]), tuple(chain.tree.parents[first:])
        end, may_hedge = self._pause(chain, request), bool(self._branches(chain, request))
        return Proposal(request.session, chain.tree_id, *nodes, None, end, is_hedge=is_hedge, may_hedge=may_hedge)

    @staticmethod
    def _pause(chain: _Chain, request: ProposeRequest) -> TailEnd:
        """Why the chain cannot go on; MORE when it can."""
        position = chain.tree.next_position
        if position >= len(chain.text):
            return TailEnd.EMPTY
        if position >= chain.limits.max_len or chain.tree.num_live >= chain.limits.max_nodes:
            return TailEnd.LIMIT
        return TailEnd.CREDIT if position >= request.draft_until else TailEnd.MORE

    def _branches(self, chain: _Chain, request: ProposeRequest) -> list[Branch]:
        budget = min(request.hedge_nodes, chain.limits.hedge_nodes) if self._options.hedge_acceptance else 0
        return chain.tree.branches(min(request.draft_until, chain.limits.max_len, len(chain.text)), budget)

    def _choice(self, token: int, position: int) -> Choice:
        """Right or wrong, first and second: all different tokens."""
        options = self._options
        num_others = options.vocab_size - 1
        is_right = uniform(options.seed, position) < options.acceptance
        away = 1 + int(uniform(options.seed, position, 1) * num_others)
        first = token if is_right else (token + away) % options.vocab_size
        if not options.hedge_acceptance:
            return Choice(first)
        other = (token + away % num_others + 1) % options.vocab_size  # neither the truth nor the first choice, should that be wrong
        is_hedged = not is_right and uniform(options.seed, position, 2) < options.hedge_acceptance
        second_share = (1.0 - options.acceptance) * options.hedge_acceptance
        return Choice(first, options.acceptance, token if is_hedged else other, second_share)
