"""Verifiers, drafters, coordinator, gateway and clients on virtual time, sharing the cores of one machine.

The services' own session machines, pacing policies and placement, as in outrider_bench.simulation, with several of each: every busy process
takes part in the sharing of cores (processor_sharing.py), messages and the gateway's work included. At each instant work that is done
ends, then whoever rests takes what has arrived, plans or drafts. Deterministic. Must not know engines, the time of day, or measured speeds.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from outrider.drafting.follow_cost import MAX_FOLLOWED
from outrider.session.pacing.registry import make_pacing
from outrider.types.frames import DrafterFrame, Open, VerifierFrame
from outrider_bench.grid.costs import Costs, Pair, Trace
from outrider_bench.grid.placer import DrafterNews, Placed, Placer, VerifierNews
from outrider_bench.grid.processor_sharing import Kind, Piece, ProcessorSharing
from outrider_bench.simulation.chain_drafter import ChainDrafter
from outrider_bench.simulation.drafter_process import DrafterProcess
from outrider_bench.simulation.event_loop import MAX_INSTANTS, START_US, StuckError
from outrider_bench.simulation.outcome import Recorder
from outrider_bench.simulation.text import Text, traced_text
from outrider_bench.simulation.verifier_process import VerifierProcess
from outrider_bench.simulation.world import World
from verifier_service.drafter_record import DrafterRecord
from verifier_service.queue_time import QueueTime
from verifier_service.settings import DEFAULT_STREAM_INTERVAL_MS, DraftDefaults

DRAFT_TIME_RATE = 1 / 16  # as in drafter_service.scheduler
# Tokens that come to a client sooner than this after the last ones wait for it and go together; first and last ones do not wait.
STREAM_INTERVAL_US = round(1_000 * DEFAULT_STREAM_INTERVAL_MS)
MAX_CALL_LEN = 1 + MAX_FOLLOWED
_CLERK = Piece(Kind.CLERK, 0)


@dataclass(frozen=True, slots=True)
class GridWorld:
    """pair: how many of each. num_clients: requests at a time, each client asking the next of the burst when it was answered. max_tokens:
    what a request says that it may have, which is all that its placement knows; 0: what its answer has."""

    pair: Pair
    costs: Costs
    traces: tuple[Trace, ...]
    num_clients: int
    num_cores: int
    policy: str
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedBurst:
    """What all requests gave together. drafted_share: of requests in which a guess was verified."""

    tokens_per_s: float
    drafted_share: float


@dataclass(slots=True)
class _Asked:
    """A request, and where it went."""

    text: Text
    placed: Placed


@dataclass(slots=True)
class _Verifier:
    """unread: messages that came while it computed, with their drafter and time."""

    process: VerifierProcess
    record: DrafterRecord
    unread: list[tuple[str, int, list[DrafterFrame]]]
    must_plan: bool = False
    wake_us: int | None = None
    began_us: int = 0


@dataclass(slots=True)
class _Drafter:
    """reading_us: of prompts that were opened and are read with the next step. token_us: of a drafted token, of late.
    call_len: tokens that the call of its source under way has made; what arrives ends a call."""

    name: str
    process: DrafterProcess
    unread: list[VerifierFrame]
    token_us: float
    reading_us: float = 0.0
    call_len: int = 0
    began_us: int = 0


class SimulatedGrid:
    """One cell; `burst` as often as wanted, the same requests each time: what was learned stays."""

    def __init__(self, world: GridWorld) -> None:
        costs = world.costs
        self._world = world
        self._texts = [traced_text(trace.prompt_len, trace.right, trace.unsure, trace.stray_lens) for trace in world.traces]
        self._cores = ProcessorSharing(
            world.num_cores,
            {Kind.VERIFIER: costs.verify_slowdown, Kind.DRAFTER: costs.draft_slowdown},
            {Kind.VERIFIER: max(costs.verify_slowdown, costs.verify_crowding)},
        )
        self._placer = Placer(world.pair, 2 * (costs.message_us + costs.link_wait_us))
        self._recorder = Recorder()
        described = _world_of(costs)
        self._verifiers = [
            _Verifier(VerifierProcess(described, make_pacing(world.policy), self._recorder), DrafterRecord(), [])
            for _ in range(world.pair.verifiers)
        ]
        self._drafters = [
            _Drafter(name, DrafterProcess(self._open_at_drafter), [], costs.draft.verify_us(1)) for name in self._placer.drafters
        ]
        self._asked: dict[int, _Asked] = {}  # all there were: frames of those that have ended may be under way
        self._live: set[int] = set()
        self._handles = itertools.count(1)
        self._messages: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._untold: set[int] = set()  # with a message that gateway and client have still to do
        self._held: set[int] = set()  # with tokens that wait for the interval's end
        self._tell_at_us: dict[int, int] = {}  # when a request's next message may leave
        self._clerk: deque[tuple[float, Callable[[], None]]] = deque()
        self._now_us = START_US
        self._beat_us = START_US
        self._waiting: deque[int] = deque()
        self._num_unanswered = self._num_drafted = 0

    def burst(self) -> SimulatedBurst:
        """Ask every request once, num_clients at a time. Raises StuckError when a policy makes no progress."""
        begun_us, num_before = self._now_us, self._recorder.num_tokens
        self._waiting.extend(range(len(self._texts)))
        self._num_unanswered, self._num_drafted = len(self._texts), 0
        for client in range(min(self._world.num_clients, len(self._texts))):
            self._ask(client)
        for _ in range(MAX_INSTANTS):
            self._begin()
            if not self._num_unanswered:
                num_tokens = self._recorder.num_tokens - num_before
                return SimulatedBurst(1e6 * num_tokens / (self._now_us - begun_us), self._num_drafted / len(self._texts))
            self._now_us = self._next_us()
            self._end()
        raise StuckError(f"{MAX_INSTANTS} instants were not enough")

    def _next_us(self) -> int:
        dues = [self._cores.due_us(), self._timers[0][0] if self._timers else None]
        dues += [each.wake_us for number, each in enumerate(self._verifiers) if not self._is_busy(Kind.VERIFIER, number)]
        known = [due for due in dues if due is not None]
        if not known:
            raise StuckError("nothing will ever happen again: a policy waits without a time to be asked")
        return max(self._now_us, min(*known, self._beat_us))

    # --- clients and the gateway ------------------------------------------------------------------------------------------

    def _ask(self, client: int) -> None:
        """The client's next request, if any is left."""
        if self._waiting:
            number = self._waiting.popleft()
            costs = self._world.costs
            self._write(costs.request_cpu_us, lambda: self._wait(round(costs.request_wait_us), lambda: self._open(client, number)))

    def _write(self, work_us: float, then: Callable[[], None]) -> None:
        """Something for gateway and client to do, one thing after another."""
        self._clerk.append((max(0.0, work_us), then))

    def _wait(self, wait_us: int, then: Callable[[], None]) -> None:
        """Something that takes time and no core."""
        heapq.heappush(self._timers, (self._now_us + wait_us, next(self._numbers), then))

    def _tell(self, handle: int, *, is_last: bool) -> None:
        """A delta; tokens that wait already for the same client go with these. Not before STREAM_INTERVAL_US after the one before it,
        unless it is the last one."""
        if handle in self._untold:
            return
        due_us = self._now_us if is_last else self._tell_at_us.get(handle, self._now_us)
        if due_us <= self._now_us:
            self._write_delta(handle)
        elif handle not in self._held:
            self._held.add(handle)
            heapq.heappush(self._timers, (due_us, next(self._numbers), lambda: self._tell_held(handle)))

    def _tell_held(self, handle: int) -> None:
        """The interval is over; nothing if the last tokens have taken those that were held with them."""
        if handle in self._held:
            self._write_delta(handle)

    def _write_delta(self, handle: int) -> None:
        self._held.discard(handle)
        self._untold.add(handle)
        self._tell_at_us[handle] = self._now_us + STREAM_INTERVAL_US
        self._write(self._world.costs.delta_us, lambda: self._untold.discard(handle))

    def _open(self, client: int, number: int) -> None:
        text, now_s = self._texts[number], self._now_us / 1e6
        max_tokens = self._world.max_tokens or len(text.truth) - text.prompt_len
        placed = self._placer.place(text.prompt_len, max_tokens, now_s)
        handle = next(self._handles)
        self._asked[handle] = _Asked(text, placed)
        self._live.add(handle)
        verifier = self._verifiers[placed.verifier]
        verifier.process.open(handle, client, text, self._now_us, placed.drafters)
        verifier.must_plan = True

    def _answered(self, client: int) -> None:
        self._num_unanswered -= 1
        self._ask(client)

    # --- work ends --------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        while self._timers and self._timers[0][0] <= self._now_us:
            heapq.heappop(self._timers)[2]()
        for piece in self._cores.take_done(self._now_us):
            match piece.kind:
                case Kind.VERIFIER:
                    self._verified(self._verifiers[piece.number])
                case Kind.DRAFTER:
                    self._drafted(self._drafters[piece.number])
                case Kind.MESSAGE:
                    self._messages.pop(piece.number)()
                case Kind.CLERK:
                    _, then = self._clerk.popleft()
                    then()

    def _verified(self, verifier: _Verifier) -> None:
        process = verifier.process
        served = process.finish(self._now_us - verifier.began_us, self._now_us)
        ended = {request.handle for request in process.finished}
        for handle in dict.fromkeys((*served, *(request.handle for request in process.finished))):
            self._tell(handle, is_last=handle in ended)
        for request in process.finished:
            live = self._asked[request.handle]
            self._live.discard(request.handle)
            verifier.record.count(request.drafters, request.statistics)
            self._placer.finished(live.placed.placement_id, self._now_us / 1e6)
            self._num_drafted += request.statistics.num_drafted > 0
            self._write(0.0, lambda client=request.client: self._answered(client))  # type: ignore[misc]
        process.finished.clear()
        self._send_to_drafters(verifier)
        verifier.must_plan = True

    def _drafted(self, drafter: _Drafter) -> None:
        took_us = self._now_us - drafter.began_us
        drafter.token_us += DRAFT_TIME_RATE * (took_us - drafter.token_us)
        drafter.process.finish(self._now_us)
        self._send_to_verifiers(drafter)

    # --- messages ---------------------------------------------------------------------------------------------------------

    def _send(self, arrive: Callable[[], None]) -> None:
        """Its way through sockets takes a core; then it waits for whoever takes it."""
        number, wait_us = next(self._numbers), round(self._world.costs.link_wait_us)
        self._messages[number] = (lambda: self._wait(wait_us, arrive)) if wait_us else arrive
        self._cores.start(Piece(Kind.MESSAGE, number), self._world.costs.message_us, self._now_us)

    def _send_to_drafters(self, verifier: _Verifier) -> None:
        by_drafter: dict[str, list[VerifierFrame]] = {}
        for name, frame in verifier.process.take_unsent():
            by_drafter.setdefault(name, []).append(frame)
        for name, frames in by_drafter.items():
            drafter = self._drafters[self._placer.drafters[name]]
            self._send(lambda drafter=drafter, frames=frames: drafter.unread.extend(frames))  # type: ignore[misc]

    def _send_to_verifiers(self, drafter: _Drafter) -> None:
        by_verifier: dict[int, list[DrafterFrame]] = {}
        for frame in drafter.process.take_unsent():
            by_verifier.setdefault(self._asked[frame.session].placed.verifier, []).append(frame)
        for number, frames in by_verifier.items():
            self._send(lambda number=number, frames=frames: self._arrive(number, drafter.name, frames))  # type: ignore[misc]

    def _arrive(self, number: int, drafter: str, frames: list[DrafterFrame]) -> None:
        self._verifiers[number].unread.append((drafter, self._now_us, frames))

    # --- work begins ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._beat_us <= self._now_us:
            self._beat()
        if self._clerk and not self._cores.is_busy(_CLERK):
            self._cores.start(_CLERK, self._clerk[0][0], self._now_us)
        for number, drafter in enumerate(self._drafters):
            if not self._is_busy(Kind.DRAFTER, number):
                self._begin_drafting(number, drafter)
        for number, verifier in enumerate(self._verifiers):
            if not self._is_busy(Kind.VERIFIER, number):
                self._begin_verifying(number, verifier)

    def _begin_drafting(self, number: int, drafter: _Drafter) -> None:
        if drafter.unread:
            opened = [frame.prefix_len for frame in drafter.unread if isinstance(frame, Open)]
            drafter.reading_us += self._world.costs.read_us * sum(opened)
            drafter.process.receive(drafter.unread)
            drafter.unread.clear()
            drafter.call_len = 0
        num_growing, costs = drafter.process.start(self._now_us), self._world.costs
        if num_growing:
            drafter.began_us = self._now_us
            begins = drafter.call_len % MAX_CALL_LEN == 0
            work_us = costs.draft.verify_us(num_growing) + drafter.reading_us + begins * costs.draft_start_us
            drafter.reading_us = 0.0
            drafter.call_len += 1
            self._cores.start(Piece(Kind.DRAFTER, number), work_us, self._now_us)
            return
        if num_growing == 0:  # they only learn that they must pause, which takes no time
            drafter.process.finish(self._now_us)
        self._send_to_verifiers(drafter)

    def _begin_verifying(self, number: int, verifier: _Verifier) -> None:
        for drafter, arrived_us, frames in verifier.unread:
            verifier.process.receive([(arrived_us, frame) for frame in frames], drafter)
            verifier.must_plan = True
        verifier.unread.clear()
        if not verifier.must_plan and (verifier.wake_us is None or verifier.wake_us > self._now_us):
            return
        verifier.must_plan = False
        plan = verifier.process.plan(self._now_us)
        verifier.wake_us = plan.wake_us
        self._send_to_drafters(verifier)
        if plan.take:
            num_rows = verifier.process.start(plan, self._now_us)
            verifier.began_us = self._now_us
            work_us = verifier.process.cost_of(num_rows) + verifier.process.overhead_us
            self._cores.start(Piece(Kind.VERIFIER, number), work_us, self._now_us)
        elif plan.wake_us is not None and plan.wake_us <= self._now_us:
            raise StuckError(f"a policy wants to be asked again at {plan.wake_us}, which is over, and takes nobody")

    def _beat(self) -> None:
        queue, verifiers = QueueTime(self._world.costs.max_rows), []
        for each in self._verifiers:
            cost = each.process.cost
            waits_us = queue.wait_us(each.process.num_unread, 0, cost)
            verifiers.append(VerifierNews(each.process.num_sessions, cost.points, waits_us, each.record.rates()))
        drafters = [DrafterNews(self._num_sessions_at(each.name), each.token_us, self._world.costs.read_us) for each in self._drafters]
        self._placer.hear(verifiers, drafters, self._now_us / 1e6)
        self._beat_us += round(1e6 * self._placer.announce_every_s)

    def _num_sessions_at(self, drafter: str) -> int:
        return sum(drafter in self._asked[handle].placed.drafters for handle in self._live)

    def _open_at_drafter(self, handle: int) -> ChainDrafter:
        return ChainDrafter(handle, self._asked[handle].text)

    def _is_busy(self, kind: Kind, number: int) -> bool:
        return self._cores.is_busy(Piece(kind, number))


def _world_of(costs: Costs) -> World:
    """What a simulated verifier looks at; texts bring their own lengths."""
    defaults = DraftDefaults()
    return World(
        verify=costs.verify,
        draft=costs.draft,
        step_overhead_us=costs.step_overhead_us,
        guess_us=costs.guess_us,
        session_us=costs.session_us,
        max_rows=costs.max_rows,
        max_draft_len=defaults.max_len,
        max_nodes=defaults.max_nodes,
    )
