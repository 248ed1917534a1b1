"""Frames on their way to one drafter: bounded, adjacent commits merged, and rid of what a close makes needless.

Lives on one thread: the event loop, or the engine thread for a lane. Must not know grpc or sessions. A drafter that stops reading costs
at most one commit per session, until `capacity` frames wait: then the stream is to be given up.
"""

from __future__ import annotations

import asyncio

import numpy as np

from outrider.rpc.convert.link import Hello, Ping, ToDrafter
from outrider.session.opening import OPEN_CHUNK_LEN
from outrider.types.frames import Close, Commit, Feedback, Open

OUTBOX_CAPACITY = 8192
# So many token ids, and the one frame that may go beyond them, are below the smallest message bound a drafter can set (1 MiB).
MAX_TOKENS_PER_MESSAGE = 1 << 17


class Outbox:
    """push returns False when there is no room. take waits for frames."""

    def __init__(self, capacity: int = OUTBOX_CAPACITY) -> None:
        self._capacity = capacity
        self._frames: dict[int, ToDrafter] = {}
        self._newest_of: dict[int, int] = {}  # session -> place of its newest waiting frame
        self._next_place = 0
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._frames)

    def push(self, frame: ToDrafter) -> bool:
        """Queue a frame, or fold it into one that waits."""
        if isinstance(frame, Hello | Ping):
            return self._append(frame)
        if isinstance(frame, Close):
            self._drop_commits(frame)
        place = self._newest_of.get(frame.session)
        newest = None if place is None else self._frames.get(place)
        if place is not None and isinstance(frame, Commit) and isinstance(newest, Commit) and _adjacent(newest, frame):
            self._frames[place] = merged(newest, frame)
            return True
        return self._append(frame)

    async def take(self, max_frames: int) -> list[ToDrafter]:
        """The oldest frames, at least one, until they carry MAX_TOKENS_PER_MESSAGE: many long prefixes are opened at once after a loss."""
        while not self._frames:
            self._arrived.clear()
            await self._arrived.wait()
        return self.take_now(max_frames)

    def take_now(self, max_frames: int) -> list[ToDrafter]:
        """As `take`, of what is there; nothing when nothing waits."""
        taken: list[ToDrafter] = []
        num_tokens = 0
        for place in list(self._frames)[:max_frames]:
            if num_tokens >= MAX_TOKENS_PER_MESSAGE:
                break
            frame = self._frames.pop(place)
            taken.append(frame)
            num_tokens += len(frame.tokens) if isinstance(frame, Open | Commit) else 0
        for frame in taken:
            if not isinstance(frame, Hello | Ping) and self._newest_of.get(frame.session, -1) not in self._frames:
                self._newest_of.pop(frame.session, None)
        return taken

    def _append(self, frame: ToDrafter) -> bool:
        if len(self._frames) >= self._capacity:
            return False
        self._frames[self._next_place] = frame
        if not isinstance(frame, Hello | Ping):
            self._newest_of[frame.session] = self._next_place
        self._next_place += 1
        self._arrived.set()
        return True

    def _drop_commits(self, close: Close) -> None:
        """What still waits for a session that ends is of no use to it."""
        if close.session not in self._newest_of:
            return
        useless = [
            place for place, frame in self._frames.items() if isinstance(frame, Commit | Feedback) and frame.session == close.session
        ]
        for place in useless:
            del self._frames[place]
        self._newest_of.pop(close.session)


def _adjacent(first: Commit, second: Commit) -> bool:
    same = first.incarnation == second.incarnation and first.begin + len(first.tokens) == second.begin
    return same and len(first.tokens) + len(second.tokens) <= OPEN_CHUNK_LEN


def merged(first: Commit, second: Commit) -> Commit:
    """Two adjacent commits as one."""
    return Commit(
        session=second.session,
        incarnation=second.incarnation,
        begin=first.begin,
        tokens=np.concatenate((first.tokens, second.tokens)),
        prefix_hash=second.prefix_hash,
        num_accepted=first.num_accepted + second.num_accepted,
        verify_us=first.verify_us + second.verify_us,
        draft_until=second.draft_until,
        hedge_nodes=second.hedge_nodes,
        flush_nodes=first.flush_nodes if second.flush_nodes is None else second.flush_nodes,
    )
