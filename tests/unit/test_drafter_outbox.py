"""What waits for a slow verifier: adjacent tails as one, nothing that the truth has overtaken, never more than a bound."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from drafter_service.outbox import Outbox
from outrider.rpc.convert.link import Pong
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import Close, CloseReason, Opened, Refused, Tail, TailEnd

ALL = 1 << 30


def tail(
    session: int, tree_id: int, first: int, tokens: list[int], end: TailEnd = TailEnd.MORE, *, inc: int = 1, scores: bool = True
) -> Tail:
    parents = np.arange(first - 1, first - 1 + len(tokens), dtype=np.int32)
    logs = np.full(len(tokens), -1.0, np.float32) if scores else None
    begin_ns = 1000 * (first + 1) if tokens else 0
    nodes = (np.array(tokens, np.int32), parents)
    return Tail(session, inc, tree_id, first, 5, 9, *nodes, end, "fake", len(tokens), begin_ns, begin_ns + 500, logs)


def filled(*frames: Tail | Close | Refused | Opened | Pong) -> Outbox:
    outbox = Outbox(100)
    for frame in frames:
        outbox.push(frame)
    return outbox


def test_adjacent_tails_become_one() -> None:
    outbox = filled(tail(1, 0, 0, [4, 5]), tail(2, 0, 0, [9]), tail(1, 0, 2, [6], TailEnd.CREDIT))
    first, other = outbox.take(ALL, ALL)
    assert isinstance(first, Tail)
    assert isinstance(other, Tail)
    assert other.session == 2
    assert (first.first_node, first.tokens.tolist(), first.parents.tolist()) == (0, [4, 5, 6], [-1, 0, 1])
    assert (first.end, first.draft_us, first.begin_ns, first.end_ns) == (TailEnd.CREDIT, 3, 1000, 3500)
    assert first.scores is not None
    assert len(first.scores) == 3
    assert len(outbox) == 0


def test_a_pause_without_nodes_joins_the_tail_it_belongs_to() -> None:
    (only,) = filled(tail(1, 0, 0, [4, 5]), tail(1, 0, 2, [], TailEnd.CREDIT, scores=False)).take(ALL, ALL)
    assert isinstance(only, Tail)
    assert (only.tokens.tolist(), only.end, only.begin_ns, only.end_ns) == ([4, 5], TailEnd.CREDIT, 1000, 1500)
    assert only.scores is not None


def test_side_branches_that_catch_up_with_their_chain_keep_its_pause_and_their_time_apart() -> None:
    chain, branch = tail(1, 0, 0, [4, 5], TailEnd.CREDIT), tail(1, 0, 2, [6, 7], TailEnd.CREDIT, scores=False)
    (only,) = filled(chain, replace(branch, draft_us=0, hedge_us=9)).take(ALL, ALL)
    assert isinstance(only, Tail)
    assert (only.tokens.tolist(), only.end, only.draft_us, only.hedge_us) == ([4, 5, 6, 7], TailEnd.CREDIT, 2, 9)


def test_a_new_tree_drops_what_waits_of_the_old_one() -> None:
    frames = filled(tail(1, 0, 0, [4, 5]), tail(1, 1, 0, [7])).take(ALL, ALL)
    assert [frame.tree_id for frame in frames if isinstance(frame, Tail)] == [1]


def test_a_new_incarnation_drops_what_waits_of_the_old_one() -> None:
    frames = filled(tail(1, 0, 0, [4]), Opened(1, 2, 5), tail(1, 0, 0, [7], inc=2)).take(ALL, ALL)
    assert [type(frame) for frame in frames] == [Opened, Tail]


@pytest.mark.parametrize("last", [Close(1, 1, CloseReason.DRAINING), Refused(1, 1, "no")])
def test_an_end_drops_the_tail_before_it(last: Close | Refused) -> None:
    assert filled(tail(2, 0, 0, [9]), tail(1, 0, 0, [4]), last).take(ALL, ALL)[1:] == [last]


def test_what_was_taken_is_not_merged_into() -> None:
    outbox = filled(tail(1, 0, 0, [4]))
    outbox.take(ALL, ALL)
    outbox.push(tail(1, 0, 1, [5]))
    (second,) = outbox.take(ALL, ALL)
    assert isinstance(second, Tail)
    assert second.first_node == 1


def test_a_message_is_bounded_by_frames_and_by_numbers() -> None:
    outbox = filled(*(tail(session, 0, 0, [1, 2, 3, 4]) for session in range(10)))
    assert len(outbox.take(3, ALL)) == 3
    assert len(outbox.take(ALL, 20)) == 2
    assert len(outbox.take(ALL, ALL)) == 5
    assert outbox.take(ALL, ALL) == []


def test_a_reader_that_stopped_is_noticed_and_costs_no_more_memory() -> None:
    outbox = Outbox(5)
    for session in range(20):
        outbox.push(tail(session, 0, 0, [1]))
        outbox.push(tail(session, 0, 1, [2]))
        outbox.push(Pong(1, 2))
    assert outbox.overflowed
    assert len(outbox) <= 5


def test_a_session_that_drafts_for_ever_costs_a_slow_reader_one_frame() -> None:
    outbox = Outbox(2)
    for round_number in range(500):
        for node in range(3):
            outbox.push(tail(1, round_number, node, [node]))
    assert len(outbox) == 1
    assert not outbox.overflowed


def test_a_reader_at_any_speed_reads_the_tree_that_was_drafted() -> None:
    for seed in range(30):
        choose = random.Random(seed)
        outbox = Outbox(10)
        read: GuessTree | None = None
        tree_id = 0
        drafted: list[int] = []
        for _ in range(200):
            if choose.random() < 0.1:
                tree_id, drafted = tree_id + 1, []
            fresh = [choose.randrange(50) for _ in range(choose.randint(1, 3))]
            if len(drafted) < 900:
                outbox.push(tail(1, tree_id, len(drafted), fresh))
                drafted = drafted + fresh
            if choose.random() < 0.4:
                for frame in outbox.take(choose.randint(1, 3), ALL):
                    assert isinstance(frame, Tail)
                    if read is None or frame.tree_id != read.tree_id:
                        read = GuessTree(frame.tree_id, frame.base)
                    assert frame.first_node == read.num_nodes
                    read.append(frame.tokens.tolist(), frame.parents.tolist())
        for frame in outbox.take(ALL, ALL):
            assert isinstance(frame, Tail)
            if read is None or frame.tree_id != read.tree_id:
                read = GuessTree(frame.tree_id, frame.base)
            read.append(frame.tokens.tolist(), frame.parents.tolist())
        assert read is not None
        assert (read.tree_id, read.tokens) == (tree_id, drafted) or not drafted
