"""One session as this process holds it: the state machine, its place in the source, and where its frames go.

Knows how effects become calls of the source and frames in an outbox. Must not know threads, or when to draft.
"""

from __future__ import annotations

from drafter_service.outbox import Outbox
from outrider.drafting.contract import DraftSource, SourceSession
from outrider.errors import OutriderError
from outrider.rpc.convert.link import BadFrame
from outrider.session.drafter import DrafterSession
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.events import DrafterEffect, DrafterEvent, Observe, ReleaseSession, SendToVerifier, SourceFailed
from outrider.types.frames import Close, CloseReason
from outrider.types.tree import IntArray


class HostedSession:
    """key: the session's name in the source, unique in this process. stream, handle: its name on its verifier's stream."""

    def __init__(self, key: int, stream: int, handle: int, bounds: DrafterBounds, source: DraftSource, outbox: Outbox) -> None:
        self.key = key
        self.stream = stream
        self.handle = handle
        self.outbox = outbox
        self.session = DrafterSession(handle, bounds)
        self._source = source
        self._in_source = False

    def step(self, event: DrafterEvent) -> bool:
        """Give the session an event and carry out what it wants done; returns whether frames were queued."""
        has_sent = False
        for effect in self.session.step(event):
            has_sent |= isinstance(effect, SendToVerifier)
            problem = self._apply(effect)
            if problem is not None:
                # Effects after one that failed belong to a state that never came to be.
                return self.step(SourceFailed(problem)) or has_sent
        return has_sent

    def reject(self, bad: BadFrame) -> None:
        """A frame of this session could not even be decoded: that ends it, unless it was of an older incarnation."""
        opening = self.session.opening
        if opening is not None and bad.incarnation < opening.incarnation:
            return
        self.outbox.push(Close(self.handle, bad.incarnation, CloseReason.PROTOCOL, str(bad.error)))
        self.abandon()

    def abandon(self) -> None:
        """Free everything without a word: the other side is gone, or knows."""
        self.session.ended = True
        if self._in_source:
            self._in_source = False
            self._source.close(self.key)

    def _apply(self, effect: DrafterEffect) -> str | None:
        """None, or the sentence with which the source refused."""
        match effect:
            case SendToVerifier(frame=frame):
                self.outbox.push(frame)
            case ReleaseSession():
                if self._in_source:
                    self._in_source = False
                    self._source.close(self.key)
            case Observe():
                try:
                    self._observe(effect)
                except OutriderError as error:
                    return str(error)
        return None

    def _observe(self, effect: Observe) -> None:
        if self._in_source:
            self._source.observe(self.key, effect.tokens, effect.path, reroot=effect.reroot, tree_id=effect.tree_id)
            return
        self._source.open(self._opening(effect.tokens))
        self._in_source = True

    def _opening(self, prefix: IntArray) -> SourceSession:
        frame = self.session.opening
        assert frame is not None
        return SourceSession(self.key, prefix, frame.num_prompt, frame.sampling, frame.noise, frame.limits, frame.with_rows, frame.tenant)
