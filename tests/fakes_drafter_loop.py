"""The drafting loop turned by hand, frames for it, and what a table engine guesses."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from drafter_service.inbox import FramesArrived, Inbox
from drafter_service.outbox import Outbox, OutFrame
from drafter_service.scheduler import Scheduler, SchedulerLimits
from fakes_drafting import VOCAB_SIZE, table_ranking
from outrider.drafting.contract import DraftSource
from outrider.rpc.convert.link import BadFrame
from outrider.session.drafter_admission import DrafterBounds
from outrider.types.frames import Commit, DraftLimits, Open, VerifierFrame
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import extend_hash

BOUNDS = DrafterBounds("fake", VOCAB_SIZE, frozenset(), 500, 400)
ALL = 1 << 30


@dataclass
class Bench:
    """A scheduler with a source, and the outboxes of its streams."""

    source: DraftSource
    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    flushes: list[list[Outbox]] = field(default_factory=list)
    outboxes: dict[int, Outbox] = field(default_factory=dict)
    num_drained: int = 0

    def __post_init__(self) -> None:
        self.inbox = Inbox(64, lambda: None)
        self.scheduler = Scheduler(self.source, BOUNDS, self.limits, self.inbox, self.flushes.append, self.count_drain, lambda: 1000)

    def count_drain(self) -> None:
        self.num_drained += 1

    def send(self, stream: int, *frames: VerifierFrame | BadFrame) -> None:
        if stream not in self.outboxes:
            self.outboxes[stream] = Outbox(100)
            self.scheduler.attach(stream, self.outboxes[stream])
        assert self.inbox.offer(FramesArrived(stream, frames))

    def turn(self, times: int = 1) -> None:
        """At most so many turns; a turn that would block is the end."""
        for _ in range(times):
            if self.scheduler.is_idle and self.inbox.is_empty:
                return
            self.scheduler.turn()

    def received(self, stream: int) -> list[OutFrame]:
        return self.outboxes[stream].take(ALL, ALL)


def opening(session: int, tokens: list[int], until: int, *, inc: int = 1, max_len: int = 200, nodes: int = 32) -> Open:
    limits = DraftLimits(max_len, nodes)
    prefix = np.array(tokens, np.int32)
    return Open(session, inc, "r", prefix, len(tokens), len(tokens), SamplingParams(), NoiseAddress(0), limits, until)


def commit(session: int, truth: list[int], begin: int, until: int) -> Commit:
    tokens = np.array(truth[begin:], np.int32)
    return Commit(session, 1, begin, tokens, extend_hash(0, truth), 0, 1, until)


def continuation(tokens: list[int], length: int) -> list[int]:
    answer = list(tokens)
    while len(answer) < len(tokens) + length:
        answer.append(table_ranking(answer)[0])
    return answer[len(tokens) :]
