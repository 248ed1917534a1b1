"""What lies between the engine thread and a drafter: the bounded inbox and outbox, pauses between streams, the other clock."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from fakes import TruthTable
from fakes_drafter_service import FakeDrafterService, serving_drafter, table_identity
from fakes_verifier import IDLE_TIMEOUT_S, fake_identity
from outrider.errors import IncompatiblePair
from outrider.rpc.convert.link import Ping
from outrider.rpc.convert.verifier_frames import draft_request
from outrider.session.opening import OPEN_CHUNK_LEN
from outrider.types.frames import Close, CloseReason, Commit
from verifier_service import pair as pair_module
from verifier_service.inbox import FramesArrived, Inbox, Nudge, PairUp
from verifier_service.outbox import Outbox
from verifier_service.pair import MAX_BACKOFF_S, MIN_BACKOFF_S, STEADY_S, Pair, next_backoff_s, stop_task
from verifier_service.pair_clock import PairClock


def test_a_full_inbox_holds_readers_back_and_says_when_there_is_room() -> None:
    rooms: list[bool] = []
    inbox = Inbox(lambda: rooms.append(True), capacity=2)
    message = FramesArrived("d", 1, ())
    assert inbox.offer(message)
    assert inbox.offer(message)
    assert not inbox.offer(message)
    inbox.put(Nudge())
    assert len(inbox.take(0.0)) == 3
    assert rooms == [True]
    assert inbox.offer(message)
    assert inbox.take(None) == [message]
    assert inbox.take(0.0) == []
    assert rooms == [True]


def commit(begin: int, num: int, incarnation: int = 1, session: int = 1) -> Commit:
    return Commit(session, incarnation, begin, np.arange(num, dtype=np.int32), begin + num, 1, 10, begin + num + 5)


async def test_adjacent_commits_merge_while_they_wait() -> None:
    outbox = Outbox()
    for frame in (commit(0, 2), commit(2, 3), commit(9, 1), commit(0, 1, session=2), commit(10, 1), commit(11, 1, incarnation=2)):
        assert outbox.push(frame)
    first, second, other, newer = await outbox.take(99)
    assert isinstance(first, Commit)
    assert (first.begin, first.tokens.tolist(), first.prefix_hash, first.num_accepted) == (0, [0, 1, 0, 1, 2], 5, 2)
    assert isinstance(second, Commit)
    assert (second.begin, len(second.tokens), second.draft_until) == (9, 2, 16)
    assert isinstance(other, Commit)
    assert other.session == 2
    assert isinstance(newer, Commit)
    assert newer.incarnation == 2


async def test_merged_commits_say_what_the_newest_said_of_side_branches_and_tails() -> None:
    outbox = Outbox()
    outbox.push(replace(commit(0, 2), hedge_nodes=9, flush_nodes=7))
    outbox.push(replace(commit(2, 1), hedge_nodes=4, flush_nodes=0))
    outbox.push(commit(3, 1))
    (merged,) = await outbox.take(9)
    assert isinstance(merged, Commit)
    assert (len(merged.tokens), merged.hedge_nodes, merged.flush_nodes) == (4, 0, 0)


async def test_a_taken_commit_is_not_merged_into_and_chunks_stay_bounded() -> None:
    outbox = Outbox()
    outbox.push(commit(0, 2))
    assert len(await outbox.take(1)) == 1
    outbox.push(commit(2, OPEN_CHUNK_LEN))
    outbox.push(commit(2 + OPEN_CHUNK_LEN, 1))
    assert [len(frame.tokens) for frame in await outbox.take(9) if isinstance(frame, Commit)] == [OPEN_CHUNK_LEN, 1]


async def test_a_message_of_many_long_prefixes_stays_below_any_drafters_bound() -> None:
    outbox = Outbox()
    for session in range(1, 101):
        outbox.push(commit(0, OPEN_CHUNK_LEN, session=session))
    frames: list[object] = []
    while len(outbox):
        batch = await outbox.take(999)
        frames += batch
        assert draft_request(batch).ByteSize() < 2**20
    assert len(frames) == 100


async def test_a_close_drops_what_waits_for_its_session() -> None:
    outbox = Outbox()
    outbox.push(commit(0, 2))
    outbox.push(commit(0, 2, session=2))
    outbox.push(Ping(5))
    outbox.push(Close(1, 1, CloseReason.FINISHED))
    frames = await outbox.take(9)
    assert [type(frame) for frame in frames] == [Commit, Ping, Close]


async def test_a_full_outbox_refuses() -> None:
    outbox = Outbox(capacity=2)
    assert outbox.push(Ping(1))
    assert outbox.push(commit(0, 1))
    assert outbox.push(commit(1, 1)), "merging needs no room"
    assert not outbox.push(Ping(2))
    assert len(outbox) == 2


def test_a_drafter_that_leaves_at_once_each_time_is_asked_ever_more_rarely() -> None:
    backoff_s, pauses = MIN_BACKOFF_S, []
    for _ in range(8):
        backoff_s = next_backoff_s(backoff_s, up_s=0.01)
        pauses.append(backoff_s)
    assert pauses == sorted(pauses)
    assert pauses[-1] == MAX_BACKOFF_S
    assert next_backoff_s(backoff_s, up_s=STEADY_S) == MIN_BACKOFF_S


def test_the_clock_offset_comes_from_the_quickest_trip() -> None:
    clock = PairClock()
    assert clock.ours_ns(100) == 100
    clock.sample(1_000, 5_000_900, 2_000)
    clock.sample(10_000, 5_010_050, 10_100)
    clock.sample(20_000, 5_029_000, 30_000)
    clock.sample(50, -3, 60)
    clock.sample(50, 5, 40)
    assert clock.round_trip_ns == 100
    assert clock.ahead_ns == 5_000_000
    assert clock.ours_ns(5_020_000) == 20_000


async def test_a_pair_that_comes_up_says_which_model_is_at_the_other_end(tmp_path: Path) -> None:
    """Else another one at the same address would be taken for the one before."""
    table = TruthTable(vocab_size=40, seed=3)
    service, inbox = FakeDrafterService(table, 1.0), Inbox(lambda: None)
    service.identity = replace(service.identity, weights_hash="bb" * 16)
    async with serving_drafter(service, tmp_path) as address:
        pair = Pair(address, table_identity(table.vocab_size), "verifier", inbox)
        running = asyncio.create_task(pair.run())
        await asyncio.wait_for(pair.wait_decided(), IDLE_TIMEOUT_S)
        assert [message.weights for message in inbox.take(0.0) if isinstance(message, PairUp)] == ["bb" * 16]
        pair.connect_no_more()
        await stop_task(running)


async def test_an_incompatible_drafter_is_told_of_once_and_again_when_it_is_another(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problems, none_left = ["vocabularies differ"] * 3 + ["weights differ"] * 2, asyncio.Event()

    async def serve(pair: Pair, channel: grpc.aio.Channel) -> None:
        if not problems:
            none_left.set()
            await asyncio.Event().wait()
        raise IncompatiblePair(problems.pop(0))

    monkeypatch.setattr(pair_module, "INCOMPATIBLE_BACKOFF_S", 0.0)
    monkeypatch.setattr(pair_module, "MAX_BACKOFF_S", 0.0)
    monkeypatch.setattr(Pair, "_serve", serve)
    pair = Pair("127.0.0.1:1", fake_identity(), "verifier", Inbox(lambda: None))
    with caplog.at_level(logging.INFO, logger=pair_module.__name__):
        running = asyncio.create_task(pair.run())
        await asyncio.wait_for(none_left.wait(), IDLE_TIMEOUT_S)
        pair.connect_no_more()
        await stop_task(running)
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"drafter 127.0.0.1:1 is not used: {problem} differ" for problem in ("vocabularies", "weights")]
    assert pair.problem == "weights differ"
