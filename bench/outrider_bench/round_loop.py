"""The verifier's engine thread on one request, round by round: its own scheduler, session and engine, a lane, and a drafter that replays.

Everything on the verifier's side is what its process runs; only the event loop behind it is left out. The drafter at the other end of the
lane works when the verifier looks for arrivals, so that a turn of the scheduler is a round. Its work is a part of its own. Must not know
what is reported.
"""

from __future__ import annotations

import importlib
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from drafter_service.drafting_thread import LoadedDrafter
from outrider.drafting.replay_source import ReplayOptions, ReplaySource
from outrider.engine.contract import Engine
from outrider.rpc.channel import MAX_MESSAGE_BYTES
from outrider.rpc.convert.drafter_frames import draft_response
from outrider.rpc.convert.link import BadFrame, Hello, Ping
from outrider.rpc.convert.verifier_frames import verifier_frames
from outrider.rpc.lane import Lane
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.drafter_link import DrafterLink
from outrider.session.opening import VerifierSpec
from outrider.types.frames import DraftLimits
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.v1 import drafter_pb2 as pb
from outrider_bench.part_clock import PartClock
from pair_service.next_door import DrafterNextDoor
from verifier_service.answer import AnswerStream, SessionEnded, SessionRequest, TokensCommitted
from verifier_service.inbox import Inbox, InboxItem, OpenAsked, PairUp, StopAsked
from verifier_service.outgoing import Outgoing
from verifier_service.scheduler import Scheduler

PROMPT_LEN = 64
REPLAY_SEED = 5
WAIT_S = 300.0
DRAFTER, FORWARD = "(drafter)", "(forward)"  # in brackets: parts that are not ours to shorten
STEP, RECONCILE = "step", "reconcile"
_DRAFTER, _CONNECTION = "far end", 1


@dataclass(frozen=True, slots=True)
class Task:
    """pacing: the policy's name. draft_len: of every draft. answer: the text's tokens behind the prompt, as far as they are known: what
    the drafter replays, right with this probability."""

    pacing: str
    draft_len: int | None
    max_tokens: int
    answer: tuple[int, ...] = ()
    acceptance: float = 1.0


def prompt(vocab_size: int) -> tuple[int, ...]:
    """Some tokens."""
    return tuple(1 + (7919 * place) % (vocab_size - 1) for place in range(PROMPT_LEN))


class RoundLoop:
    """One request on an engine. clock: ends a round whenever the verifier looks for arrivals."""

    def __init__(self, engine: Engine, task: Task, clock: PartClock) -> None:
        self._engine, self._task, self._clock = engine, task, clock
        self._tokens: list[int] = []
        self._done = threading.Event()
        near, far = socket.socketpair()
        self._lane = Lane(near, MAX_MESSAGE_BYTES)
        drafter = _DrafterAcross(Lane(far, MAX_MESSAGE_BYTES), self._replaying())
        self.inbox = _InboxOfRounds(clock, clock.timed(drafter.work, DRAFTER))
        self._drafter = drafter
        self._scheduler = Scheduler(self._load, self._send, _nothing, self._done.set, max_sessions=1, draft_len=task.draft_len)
        self._scheduler.inbox = self.inbox

    def run(self) -> tuple[int, ...]:
        """The answer. Raises RuntimeError when it does not come."""
        scheduler, task = self._scheduler, self._task
        scheduler.start()
        scheduler.engine_ready.result()
        _watch(self._clock, scheduler, self._engine)
        if task.draft_len is not None:
            self.inbox.put(PairUp(_DRAFTER, _CONNECTION, self._lane))
        self.inbox.put(OpenAsked(AnswerStream(self._request(), _nothing)))
        ended = self._done.wait(WAIT_S)
        self.inbox.put(StopAsked())
        if not scheduler.join(WAIT_S) or not ended or len(self._tokens) != task.max_tokens:
            raise RuntimeError(f"{len(self._tokens)} tokens of {task.max_tokens} came")
        scheduler.close_lanes()
        self._lane.close()
        self._drafter.lane.close()
        self._clock.release()
        return tuple(self._tokens)

    def _load(self) -> Engine:
        return self._engine

    def _request(self) -> SessionRequest:
        identity, task = self._engine.identity, self._task
        max_len, draft_len = PROMPT_LEN + task.max_tokens, task.draft_len or 1
        spec = VerifierSpec(
            session=0,
            incarnation=1,
            request_id="round cost",
            prefix=np.array(prompt(identity.vocab_size), np.int32),
            num_prompt=PROMPT_LEN,
            max_len=max_len,
            stop_token_ids=frozenset(),
            vocab_size=identity.vocab_size,
            sampling=SamplingParams(temperature=0.0),
            noise=NoiseAddress(1),
            limits=DraftLimits(max_len=max_len),
            max_draft_len=draft_len,
            max_nodes=64,
        )
        return SessionRequest(spec, task.pacing, "coupled", None, None)

    def _replaying(self) -> LoadedDrafter:
        identity, task = self._engine.identity, self._task
        text = (*prompt(identity.vocab_size), *task.answer)
        source = ReplaySource(ReplayOptions((text,), task.acceptance, identity.vocab_size, REPLAY_SEED))
        bounds = DrafterBounds(source.name, identity.vocab_size, frozenset(), identity.max_context, identity.max_context)
        return LoadedDrafter(self._engine, source, bounds)

    def _send(self, outgoing: Outgoing) -> None:
        """Engine thread: in place of the event loop."""
        for stream, message in outgoing.answers:
            if isinstance(message, TokensCommitted):
                self._tokens += message.tokens
                stream.delivered(len(message.tokens))
            elif isinstance(message, SessionEnded):
                self._clock.stop()
                self._done.set()


class _DrafterAcross:
    """The drafter's scheduler at the other end of a lane."""

    def __init__(self, lane: Lane, loaded: LoadedDrafter) -> None:
        self.lane = lane
        self._next_door = DrafterNextDoor(loaded)

    def work(self) -> None:
        """Hear, draft, tell."""
        for message in self.lane.receive():
            frames = verifier_frames(pb.DraftRequest.FromString(message))
            self._next_door.tell([frame for frame in frames if not isinstance(frame, BadFrame | Hello | Ping)])
        if frames_out := self._next_door.work():
            self.lane.send(draft_response(frames_out).SerializeToString())


class _InboxOfRounds(Inbox):
    """The verifier's inbox: a look into it is the end of a round and the drafter's turn."""

    def __init__(self, clock: PartClock, draft: Callable[[], None]) -> None:
        super().__init__(_nothing)
        self._clock = clock
        self._draft = draft

    def take(self, timeout_s: float | None, lanes: Collection[Lane] = ()) -> list[InboxItem]:
        """See Inbox."""
        self._clock.end_round()
        if lanes:
            self._draft()
        return super().take(timeout_s, lanes)


def _watch(clock: PartClock, scheduler: Scheduler, engine: Any) -> None:
    """The parts of a round, between engine_ready and the first arrival."""
    for owner, name, part in (
        (scheduler.steps, "plan", "plan"),
        (scheduler.sessions, "take_frames", "take tails"),
        (scheduler.sessions, "apply", "session"),
        (DrafterLink, "take", RECONCILE),
        (DrafterLink, "observe_commit", RECONCILE),
        (scheduler, "_flush", "send"),
        (scheduler, "_send_frames", "send"),
        (scheduler._lanes, "receive", "receive"),
        (engine, "step", STEP),
        (engine, "keep", "keep"),
        (importlib.import_module(type(engine).__module__), "build_batch", "batch"),
        *(((engine, "_logits", FORWARD), (engine._picker, "results", "pick")) if hasattr(engine, "_picker") else ()),
    ):
        clock.watch(owner, name, part)


def _nothing() -> None:
    """There is nobody to wake."""
