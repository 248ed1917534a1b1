"""Replayed drafts of a fixed acceptance: guesses a known text right with a given probability, for benches and throughput models.

Knows the texts and, per position, whether its guess is right: a pure function of (seed, position), so that acceptance per position is
Bernoulli(acceptance) whatever the pacing, round boundaries or restarts. Each call may cost a fixed time, as a model's step would.
Must not know models. A session whose prefix begins no known text gets no guesses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.drafting.contract import Needs, Proposal, ProposeRequest, RunsAt, SourceSession
from outrider.errors import AlreadyExists, InvalidRequest, UnknownSession
from outrider.noise.field import uniform
from outrider.types.frames import DraftLimits, TailEnd
from outrider.types.tree import ROOT, IntArray


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """texts: whole token sequences, prompt and answer. acceptance: probability in [0, 1] that a guess is right. step_us: what one
    call costs, whatever the number of sessions in it."""

    texts: tuple[tuple[int, ...], ...]
    acceptance: float
    vocab_size: int
    seed: int = 0
    step_us: int = 0

    def check(self) -> None:
        """Raise InvalidRequest naming the first field that is out of range."""
        if not 0.0 <= self.acceptance <= 1.0:
            raise InvalidRequest("replay.acceptance", f"must be in [0, 1], got {self.acceptance}")
        if self.vocab_size < 2:
            raise InvalidRequest("replay.vocab_size", f"a wrong guess needs two tokens, got {self.vocab_size}")
        if self.step_us < 0:
            raise InvalidRequest("replay.step_us", f"must be 0 or positive, got {self.step_us}")
        if any(not 0 <= token < self.vocab_size for text in self.texts for token in text):
            raise InvalidRequest("replay.texts", f"a token is outside the vocabulary of {self.vocab_size}")


@dataclass(slots=True)
class _Chain:
    """One session: its text, where its truth stands, and its chain of guesses (node i lies at base + i)."""

    limits: DraftLimits
    text: tuple[int, ...]
    known: list[int]
    tree_id: int
    base: int
    num_nodes: int
    root: int


class ReplaySource:
    """Draft source over known texts; chains only, one token a call and session."""

    name = "replay"
    runs_at = RunsAt.EITHER
    needs = Needs.NOTHING

    def __init__(self, options: ReplayOptions, pause_s: Callable[[float], None] = time.sleep) -> None:
        options.check()
        self._options = options
        self._pause_s = pause_s
        self._chains: dict[int, _Chain] = {}

    def open(self, session: SourceSession) -> None:
        """Begin a session; the text is the one its prefix begins."""
        if session.session in self._chains:
            raise AlreadyExists(f"session {session.session} is open already")
        prefix = session.prefix.tolist()
        self._chains[session.session] = _Chain(session.limits, self._text_of(prefix), prefix, 0, len(prefix), 0, ROOT)

    def propose(self, requests: list[ProposeRequest]) -> list[Proposal]:
        """One more guess for every session that may have one."""
        proposals = [self._grow(request) for request in requests]
        if self._options.step_us and any(proposal.tokens for proposal in proposals):
            self._pause_s(self._options.step_us / 1e6)
        return proposals

    def observe(self, session: int, tokens: IntArray, path: tuple[int, ...], *, reroot: bool, tree_id: int) -> None:
        """Follow the truth; a truth that leaves its text looks for another."""
        chain = self._chains[session]
        begin = len(chain.known)
        chain.known += tokens.tolist()
        if chain.known[begin:] != list(chain.text[begin : len(chain.known)]):
            chain.text = self._text_of(chain.known)
        if reroot:
            chain.tree_id, chain.base, chain.num_nodes, chain.root = tree_id, len(chain.known), 0, ROOT
        else:
            chain.root = path[-1]

    def close(self, session: int) -> None:
        """Forget the session."""
        if self._chains.pop(session, None) is None:
            raise UnknownSession(f"session {session} is not open in the replay source")

    def _text_of(self, prefix: Sequence[int]) -> tuple[int, ...]:
        known = tuple(prefix)
        return next((text for text in self._options.texts if text[: len(known)] == known), ())

    def _grow(self, request: ProposeRequest) -> Proposal:
        chain = self._chains[request.session]
        position = chain.base + chain.num_nodes
        end = self._pause(chain, request.draft_until, position)
        if end is not TailEnd.MORE:
            return Proposal(request.session, chain.tree_id, (), (), None, end)
        parent = chain.num_nodes - 1 if chain.num_nodes else ROOT
        chain.num_nodes += 1
        end = self._pause(chain, request.draft_until, position + 1)
        return Proposal(request.session, chain.tree_id, (self._guess(chain.text[position], position),), (parent,), None, end)

    @staticmethod
    def _pause(chain: _Chain, draft_until: int, position: int) -> TailEnd:
        """Why no guess for this position can come; MORE when one can."""
        if position >= len(chain.text):
            return TailEnd.EMPTY
        if position >= chain.limits.max_len or chain.num_nodes - 1 - chain.root >= chain.limits.max_nodes:
            return TailEnd.LIMIT
        return TailEnd.CREDIT if position >= draft_until else TailEnd.MORE

    def _guess(self, token: int, position: int) -> int:
        options = self._options
        if uniform(options.seed, position) < options.acceptance:
            return token
        return (token + 1 + int(uniform(options.seed, position, 1) * (options.vocab_size - 1))) % options.vocab_size
