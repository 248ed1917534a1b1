"""The verifier's half of a simulated request: the service's own VerifierSession, judged by a text instead of an engine.

Knows the session's events and effects. Must not know when they happen, or other requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.session.answer_ends import NO_ENDS, AnswerEnds
from outrider.session.events import (
    CancelRequested,
    DrafterFrameArrived,
    DrafterJoined,
    Emit,
    Finish,
    FinishReason,
    RoundPlanned,
    RoundVerified,
    SendToDrafter,
    VerifierEvent,
    Verify,
)
from outrider.session.opening import VerifierSpec
from outrider.session.pacing.contract import Pacing, SessionPlan, SessionView
from outrider.session.statistics import DraftPriors, SessionStatistics
from outrider.session.verifier import VerifierSession
from outrider.types.frames import DrafterFrame, DraftLimits, VerifierFrame
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import ROOT, Verdict
from outrider_bench.simulation.drafter_side import SOURCE
from outrider_bench.simulation.text import END_TOKEN, VOCAB_SIZE, Text
from outrider_bench.simulation.world import World

_GREEDY = SamplingParams(temperature=0.0)
_NOISE = NoiseAddress(1)


class Request:
    """One request at the verifier. num_emitted: tokens of the newest round. unsent: frames that the scheduler has yet to send, each with
    the drafter it is for. drafters: who may draft for it."""

    def __init__(
        self,
        handle: int,
        client: int,
        text: Text,
        world: World,
        pacing: Pacing,
        priors: DraftPriors,
        now_us: int,
        drafters: Sequence[str] = (SOURCE,),
        ends: AnswerEnds = NO_ENDS,
    ) -> None:
        self.handle = handle
        self.client = client
        self.last_emit_us: int | None = None
        self.num_emitted = 0
        self.finished = False
        self.is_drafted = False  # the round in flight holds guesses, or some may be made meanwhile: tails to take in, commits to send
        self.drafters = tuple(drafters)
        self.unsent: list[tuple[str, VerifierFrame]] = []
        self._text = text
        self._pending: Verify | None = None
        self._session = VerifierSession(_spec(handle, text, world, priors, ends), pacing, now_us)

    @property
    def statistics(self) -> SessionStatistics:
        """The session's own."""
        return self._session.statistics

    @property
    def ended_by_itself(self) -> bool:
        """Before its bound."""
        return self._session.finished is not None and self._session.finished.reason is not FinishReason.LENGTH

    @property
    def is_ready(self) -> bool:
        """Whether a round may be planned."""
        return self._session.is_ready

    def view(self, now_us: int) -> SessionView:
        """What pacing may know."""
        return self._session.view(now_us)

    def join(self, now_us: int) -> None:
        """The drafters are there."""
        for drafter in self.drafters:
            self._apply(DrafterJoined(drafter, now_us))

    def receive(self, frame: DrafterFrame, now_us: int, drafter: str = SOURCE) -> None:
        """A frame of a drafter."""
        self._apply(DrafterFrameArrived(drafter, frame, now_us))

    def cancel(self, now_us: int) -> None:
        """Its client goes away."""
        self._apply(CancelRequested("the client left", now_us))

    def plan(self, plan: SessionPlan, now_us: int) -> int:
        """Take part in a step; returns the rows it adds."""
        self._apply(RoundPlanned(plan.max_feed, plan.max_nodes, now_us, side_nodes=plan.side_nodes))
        assert self._pending is not None
        self.is_drafted = self._pending.tree.num_nodes > 0 or self._session.is_drafted_for_by(self.drafters)
        return len(self._pending.committed) + self._pending.tree.num_nodes

    @property
    def num_unread(self) -> int:
        """Tokens of the prompt yet to be read."""
        return max(0, self._text.prompt_len - self._session.cached_len)

    @property
    def is_decoding(self) -> bool:
        """Whether the round in flight feeds no prompt."""
        return self._pending is not None and len(self._pending.committed) == 1

    def verified(self, verify_us: int, now_us: int) -> None:
        """The step is over."""
        pending = self._pending
        assert pending is not None
        self._pending = None
        self.num_emitted = 0
        verdict = self._judge(pending) if pending.wanted else None
        self._apply(RoundVerified(verdict, verify_us, now_us))

    def _judge(self, verify: Verify) -> Verdict:
        begin = self._session.committed_len
        path = self._text.path_along(begin, verify.tree)
        emitted = int(self._text.truth[begin + len(path)])
        return Verdict(path, emitted, bonus=(path[-1] if path else ROOT) not in verify.tree.parents)

    def _apply(self, event: VerifierEvent) -> None:
        for effect in self._session.step(event):
            match effect:
                case SendToDrafter():
                    self.unsent.append((effect.drafter, effect.frame))
                case Verify():
                    self._pending = effect
                case Emit():
                    self.num_emitted = len(effect.tokens)
                case Finish():
                    assert effect.reason is not FinishReason.FAILED, effect
                    self.finished = True


def _spec(handle: int, text: Text, world: World, priors: DraftPriors, ends: AnswerEnds) -> VerifierSpec:
    return VerifierSpec(
        session=handle,
        incarnation=1,
        request_id=f"simulated-{handle}",
        prefix=np.asarray(text.truth[: text.prompt_len], np.int32),
        num_prompt=text.prompt_len,
        max_len=len(text.truth),
        stop_token_ids=frozenset((END_TOKEN,)),
        vocab_size=VOCAB_SIZE,
        sampling=_GREEDY,
        noise=_NOISE,
        limits=DraftLimits(len(text.truth), world.max_nodes),
        max_draft_len=world.max_draft_len,
        max_nodes=world.max_nodes,
        draft_priors=priors,
        answer_ends=ends,
    )
