"""The drafting loop, turned by hand: many sessions to a call, room refused, one session's failure its own, nothing left behind."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from drafter_service.inbox import DrainAsked, FramesArrived, Inbox, StopAsked, StreamEnded
from drafter_service.outbox import OutFrame
from drafter_service.scheduler import SchedulerLimits
from fakes_drafter_loop import Bench, commit, continuation, opening
from fakes_drafting import VOCAB_SIZE, BookkeepingSource, TableEngine, table_ranking
from outrider.drafting.contract import Proposal, ProposeRequest
from outrider.drafting.model_source import ModelSource
from outrider.errors import InvalidRequest, ProtocolViolation
from outrider.rpc.convert.link import BadFrame
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import Close, CloseReason, Opened, Refused, Tail, TailEnd


def tails(frames: list[OutFrame]) -> dict[int, list[int]]:
    """Tokens by session of a single burst per session."""
    return {frame.session: frame.tokens.tolist() for frame in frames if isinstance(frame, Tail)}


def test_sessions_of_several_streams_draft_in_one_call_a_turn() -> None:
    engine = TableEngine()
    bench = Bench(ModelSource(engine))
    for stream in (1, 2):
        bench.send(stream, *(opening(session, [stream, session], 7) for session in range(3)))
    bench.turn(5)
    assert engine.num_steps == 5
    for stream in (1, 2):
        frames = bench.received(stream)
        assert [type(frame) for frame in frames] == [Opened] * 3 + [Tail] * 3
        assert tails(frames) == {session: continuation([stream, session], 5) for session in range(3)}
    assert len(bench.flushes) == 2, "the loop hears of a turn only when there is something to send"


def test_side_branches_are_drafted_until_their_budget_ends_and_then_the_loop_rests() -> None:
    engine = TableEngine()
    bench = Bench(ModelSource(engine))
    first = opening(1, [3, 4], 6)
    bench.send(1, replace(first, limits=replace(first.limits, hedge_nodes=12), draft_until=3))
    bench.turn(9)
    second = table_ranking([3, 4])[1]
    bench.send(1, replace(commit(1, [3, 4, second], 2, 8), hedge_nodes=8))
    bench.turn(50)
    assert bench.scheduler.is_idle
    sent = [frame for frame in bench.received(1) if isinstance(frame, Tail)]
    assert sum(frame.hedge_us > 0 for frame in sent) == 0, "the clock of this bench stands still"
    tree = GuessTree(1, 3, width=1)
    for frame in sent:
        if frame.tree_id == 1:
            tree.append(frame.tokens.tolist(), frame.parents.tolist())
    assert [tree.tokens[node] for node in tree.main_nodes()] == continuation([3, 4, second], 5)
    assert 0 < len(tree.live_nodes()) - 5 <= 8
    bench.send(1, Close(1, 1, CloseReason.FINISHED))
    bench.turn(5)
    assert engine.num_free_blocks == engine.limits.num_blocks


def test_a_commit_between_turns_counts_in_the_next_one() -> None:
    engine = TableEngine()
    bench = Bench(ModelSource(engine))
    bench.send(1, opening(1, [3, 4], 6))
    bench.turn(3)
    wrong = (continuation([3, 4], 1)[0] + 1) % VOCAB_SIZE
    bench.send(1, commit(1, [3, 4, wrong], 2, 6))
    bench.turn(3)
    assert engine.num_steps == 6
    (tail,) = (frame for frame in bench.received(1) if isinstance(frame, Tail))
    assert (tail.tree_id, tail.base, tail.tokens.tolist()) == (1, 3, continuation([3, 4, wrong], 3))


def test_no_room_is_refused_in_a_sentence_and_costs_nothing() -> None:
    bench = Bench(BookkeepingSource(), SchedulerLimits(max_sessions=3, max_sessions_per_stream=2))
    bench.send(1, *(opening(session, [1], 3) for session in range(3)))
    bench.send(2, *(opening(session, [1], 3) for session in range(2)))
    bench.turn()
    refused = [frame for stream in (1, 2) for frame in bench.received(stream) if isinstance(frame, Refused)]
    assert [frame.reason for frame in refused] == ["this stream holds 2 sessions already", "the drafter holds 3 sessions already"]
    assert bench.scheduler.num_sessions == 3


def test_a_source_without_room_refuses_that_session_only() -> None:
    bench = Bench(ModelSource(TableEngine(num_blocks=64)))
    bench.send(1, opening(1, [1], 4), opening(2, [2], 4), opening(3, [2], 4, max_len=8, nodes=4), opening(4, [2], 4, max_len=500))
    bench.turn(4)
    frames = bench.received(1)
    assert {frame.session: frame.reason for frame in frames if isinstance(frame, Refused)} == {
        2: "no blocks",
        4: "max_len: longer than the context",
    }
    assert set(tails(frames)) == {1, 3}
    assert not any(isinstance(frame, Opened) and frame.session in (2, 4) for frame in frames)


def test_the_end_of_a_stream_frees_its_sessions_and_no_others() -> None:
    engine = TableEngine()
    bench = Bench(ModelSource(engine))
    bench.send(1, opening(1, [1], 9), opening(2, [2], 9))
    bench.send(2, opening(1, [3], 9))
    bench.turn(2)
    bench.inbox.control(StreamEnded(1))
    bench.send(1, opening(3, [1], 9))
    bench.turn(8)
    assert bench.scheduler.num_sessions == 1
    assert tails(bench.received(2)) == {1: continuation([3], 8)}
    bench.inbox.control(StreamEnded(2))
    bench.turn()
    assert engine.num_free_blocks == engine.limits.num_blocks


def test_a_drain_closes_every_session_and_takes_no_more() -> None:
    engine = TableEngine()
    bench = Bench(ModelSource(engine))
    bench.send(1, opening(1, [1], 90), opening(2, [2], 90))
    bench.turn(2)
    bench.received(1)
    bench.inbox.control(DrainAsked())
    bench.send(1, opening(3, [2], 9))
    bench.turn()
    frames = bench.received(1)
    assert [frame.reason for frame in frames if isinstance(frame, Close)] == [CloseReason.DRAINING] * 2
    assert [frame.reason for frame in frames if isinstance(frame, Refused)] == ["the drafter is shutting down"]
    assert bench.num_drained == 1
    assert bench.scheduler.num_sessions == 0
    assert engine.num_free_blocks == engine.limits.num_blocks


def test_a_frame_that_cannot_be_decoded_ends_its_session_only() -> None:
    engine = TableEngine()
    bench = Bench(ModelSource(engine))
    bench.send(1, opening(1, [1], 5, inc=2), opening(2, [2], 5))
    bad = ProtocolViolation("commit.token_ids: nonsense")
    bench.send(1, BadFrame(1, 1, bad), BadFrame(2, 1, bad), BadFrame(None, 0, bad), BadFrame(7, 1, bad))
    bench.turn(5)
    frames = bench.received(1)
    assert [(frame.session, frame.detail) for frame in frames if isinstance(frame, Close)] == [(2, str(bad)), (7, str(bad))]
    assert set(tails(frames)) == {1}
    assert bench.scheduler.num_sessions == 1


def test_frames_for_sessions_that_are_gone_are_ignored() -> None:
    bench = Bench(BookkeepingSource())
    bench.send(1, commit(4, [1, 2], 1, 9), Close(4, 1, CloseReason.FINISHED), opening(5, [1], 1), Close(5, 1, CloseReason.FINISHED))
    bench.send(1, commit(5, [1, 2], 1, 9))
    bench.turn()
    assert [frame.session for frame in bench.received(1) if isinstance(frame, (Tail, Close))] in ([5], [])
    assert bench.scheduler.num_sessions == 0


class Moody(BookkeepingSource):
    """Refuses to propose for every session whose prompt begins with 13."""

    def propose(self, requests: list[ProposeRequest]) -> list[Proposal]:
        if any(self.truths[request.session][0] == 13 for request in requests):
            raise InvalidRequest("tokens", "thirteen")
        return super().propose(requests)


def test_a_source_that_fails_for_one_session_goes_on_with_the_others() -> None:
    source = Moody()
    bench = Bench(source)
    bench.send(1, opening(1, [1], 4), opening(2, [13], 4), opening(3, [3], 4))
    bench.turn(3)
    frames = bench.received(1)
    assert [(frame.session, frame.reason) for frame in frames if isinstance(frame, Refused)] == [(2, "tokens: thirteen")]
    assert {session for session, tokens in tails(frames).items() if len(tokens) == 3} == {1, 3}
    assert set(source.trees) == {1, 3}


def test_a_restart_reuses_the_handle_without_a_leak() -> None:
    engine = TableEngine()
    bench = Bench(ModelSource(engine))
    for inc in range(1, 6):
        bench.send(1, opening(1, [inc, 2], 6, inc=inc))
        bench.turn(2)
    bench.turn(4)
    assert bench.scheduler.num_sessions == 1
    frames = bench.received(1)
    last = [frame for frame in frames if isinstance(frame, Tail)][-1]
    assert (last.incarnation, last.tokens.tolist(), last.end) == (5, continuation([5, 2], 4), TailEnd.CREDIT)
    bench.inbox.control(StreamEnded(1))
    bench.turn()
    assert engine.num_free_blocks == engine.limits.num_blocks


def test_the_thread_blocks_when_nothing_wants_drafts_and_stops_when_asked() -> None:
    engine = TableEngine()
    bench = Bench(ModelSource(engine))
    paused = threading.Event()
    bench.scheduler._flushed = lambda outboxes: paused.set()
    thread = threading.Thread(target=bench.scheduler.run)
    thread.start()
    bench.send(1, opening(1, [1], 4))
    while not tails(bench.received(1)):
        assert paused.wait(10)
        paused.clear()
    num_steps = engine.num_steps
    bench.inbox.control(StopAsked())
    thread.join(60)
    assert not thread.is_alive()
    assert engine.num_steps == num_steps == 3
    assert engine.num_free_blocks == engine.limits.num_blocks


@pytest.mark.parametrize("capacity", [1, 3])
def test_a_full_inbox_says_when_there_is_room_again(capacity: int) -> None:
    told: list[int] = []
    inbox = Inbox(capacity, lambda: told.append(1))
    message = FramesArrived(1, ())
    assert [inbox.offer(message) for _ in range(capacity + 1)] == [True] * capacity + [False]
    inbox.control(StreamEnded(1))
    assert inbox.num_messages == capacity
    assert len(inbox.take(wait=True)) == capacity + 1
    assert told == [1]
    assert inbox.take(wait=False) == []
    assert told == [1]
    assert inbox.offer(message)
