"""One live session in the engine thread: its state machine, its answer, and how its effects reach the engine and the outside.

Knows one session. Must not know the others, threads or grpc.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

import numpy as np

from outrider.engine.contract import Engine
from outrider.engine.prefill_order import Prefill
from outrider.errors import OutriderError
from outrider.session.events import (
    Emit,
    Keep,
    SendToDrafter,
    VerifierEffect,
    Verify,
)
from outrider.session.pacing.contract import Pacing
from outrider.session.shared_lookup import NO_TEXTS, SharedTexts
from outrider.session.verifier import VerifierSession
from outrider.types.statistics import DraftStatistics
from outrider.types.step import SequenceRows, SequenceSpec, TokenLogprobs
from outrider.types.text_room import first_len, wants_room
from verifier_service.answer import AnswerStream, TokensCommitted
from verifier_service.judged_portions import JudgedPortions
from verifier_service.outgoing import Outgoing
from verifier_service.policy_key import PolicyKey
from verifier_service.prompt_kinds import PromptKind


class HostedSession:
    """error: what the stream is to end with instead of an answer. logprobs: of the round being applied, one row per token. opened_us: when
    it was admitted. portions: by which its drafters are judged while it runs. policy: who plans it. sequence: as the engine opened it.
    held_len: committed tokens that it has KV blocks for; is_parked: it has none, and takes part in nothing."""

    def __init__(self, answer: AnswerStream, handle: int, session: VerifierSession, opened_us: int, sequence: SequenceSpec) -> None:
        self.answer = answer
        self.handle = handle
        self.session = session
        self.opened_us = opened_us
        self.sequence = sequence
        self.held_len = sequence.first_len
        self.is_parked = False
        self.error: OutriderError | None = None
        self.logprobs: TokenLogprobs | None = None
        self.portions = JudgedPortions()
        self.policy = PolicyKey.of(answer.request.pacing, answer.request.spec)
        self._num_announced = session.committed_len
        self._left_out = False
        self._awaits_prefix = False

    def may_use(self, drafter: str) -> bool:
        """Whether the request allows this drafter."""
        wanted = self.answer.request.drafters
        return wanted is None or drafter in wanted

    @property
    def is_growing(self) -> bool:
        """Whether it has blocks, and may want more."""
        return not self.is_parked and self.held_len < self.sequence.max_len

    @property
    def is_cramped(self) -> bool:
        """Whether it is to have more before its next round."""
        return not self.is_parked and wants_room(self.session.committed_len, self.held_len, self.sequence.max_len)

    def park(self) -> None:
        """Its KV is gone. No round is in flight."""
        self.is_parked, self._awaits_prefix = True, False
        self.session.forget()

    def go_on(self, held_len: int, found_len: int, now_us: int) -> None:
        """It has blocks again, and in them the KV of its first found_len tokens."""
        self.is_parked, self.held_len = False, held_len
        self.session.skip(found_len)
        self.session.resume(now_us)

    def is_left_out(self, now_us: int) -> bool:
        """Whether this step goes without the session, because it is parked, or its reader is slow; the time until that caught up is no wait
        for drafts."""
        if self.is_parked:
            return True
        was_left_out, self._left_out = self._left_out, self.answer.is_slow
        if was_left_out and not self._left_out:
            self.session.resume(now_us)
        return self._left_out

    def prefill(self) -> Prefill:
        """What the target has to read of the prefix."""
        session = self.session
        return Prefill(session.spec.prefix, session.cached_len, session.cached_len > session.found_len, session.spec.tenant)

    @property
    def num_unread(self) -> int:
        """Tokens of its prompt that the target has still to read."""
        return self.session.committed_len - self.session.cached_len if self.session.is_reading else 0

    def await_prefix(self) -> None:
        """This step goes without the session: another is being read, and its blocks will be this one's too."""
        self._awaits_prefix = True

    def take_prefix(self, engine: Engine, now_us: int) -> None:
        """Before the session takes part: what was awaited is there, as far as it ever will be."""
        if self._awaits_prefix:
            self._awaits_prefix = False
            self.session.skip(engine.match_prefix(self.handle, self.session.spec.prefix))
            self.session.resume(now_us)

    def rows(self, verify: Verify) -> SequenceRows:
        """The session's part in the step."""
        request = self.answer.request
        return SequenceRows(
            sequence=self.handle,
            committed=verify.committed,
            tokens=verify.tree.tokens,
            parents=verify.tree.parents,
            wanted=verify.wanted,
            top_logprobs=request.top_logprobs if verify.wanted else None,
            acceptance=request.acceptance if verify.wanted else "",
            draft_rows=verify.draft_rows,
        )

    def carry_out(self, effect: VerifierEffect, engine: Engine, outgoing: Outgoing, connections: Mapping[str, int]) -> None:
        """Keep, Emit and SendToDrafter; a frame for a drafter whose stream is gone is dropped."""
        match effect:
            case Emit(tokens, origins):
                self.answer.count_emitted(len(tokens))
                logprobs = None if self.logprobs is None else first_rows(self.logprobs, len(tokens))
                committed = TokensCommitted(self._num_announced, tokens, origins, logprobs)
                self._num_announced += len(tokens)
                if not self.answer.hold(committed):
                    outgoing.answer(self.answer, committed)
            case Keep(path):
                engine.keep(self.handle, path)
            case SendToDrafter(drafter, frame):
                if drafter in connections:
                    outgoing.frame(drafter, connections[drafter], frame)

    def totals(self) -> DraftStatistics:
        """What speculation did so far."""
        return self.session.statistics.totals(self.answer.request.pacing)


def host(
    answer: AnswerStream,
    handle: int,
    policy: Pacing,
    engine: Engine,
    kind: PromptKind,
    now_us: int,
    texts: SharedTexts = NO_TEXTS,
) -> HostedSession:
    """Reserve the engine's part and build the session; raises what engine.open raises, with nothing held.

    kind: of its prompt, and what to expect of guesses until the session has seen some. texts: other answers, for guesses.
    """
    request, priors = answer.request, kind.priors
    spec = dataclasses.replace(
        request.spec,
        session=handle,
        kind=kind.number,
        shorter_kind=kind.shorter,
        draft_priors=priors.drafts,
        lookup_priors=priors.lookup,
        shared_priors=priors.shared,
        answer_ends=priors.ends,
    )
    guesses = policy.drafts or (policy.looks_up and spec.lookup)
    max_nodes = spec.max_nodes if spec.max_draft_len and guesses else 0
    held_len = first_len(len(spec.prefix), spec.max_len)
    sequence = SequenceSpec(spec.sampling, spec.noise, spec.num_prompt, spec.max_len, max_nodes, spec.adapter, spec.tenant, held_len)
    engine.open(handle, sequence, spec.prefix)
    session = VerifierSession(spec, policy, now_us, texts, time.perf_counter_ns)
    session.skip(engine.cached_len(handle))
    return HostedSession(answer, handle, session, now_us, sequence)


def first_rows(logprobs: TokenLogprobs, num_rows: int) -> TokenLogprobs:
    """The rows of the tokens that belong to the answer."""
    return TokenLogprobs(
        np.asarray(logprobs.chosen[:num_rows]), np.asarray(logprobs.top_ids[:num_rows]), np.asarray(logprobs.top[:num_rows])
    )
