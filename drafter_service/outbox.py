"""Frames on their way to one verifier: bounded, merged while they wait, and rid of what the truth has overtaken.

Knows which frames make others needless: adjacent tails of a tree become one, a newer tree or a close drops the tails before it. So a
slow reader costs at most one tail a session, whatever is drafted meanwhile. Written by the drafting thread, emptied by the event loop;
must not know either, nor grpc.
"""

from __future__ import annotations

import threading

import numpy as np

from outrider.rpc.convert.link import Pong, Welcome
from outrider.types.frames import Close, DrafterFrame, Refused, Tail
from outrider.types.tree import MAX_TREE_NODES

# So many numbers, and the one frame that may go beyond them, are below the smallest message bound that can be set (1 MiB).
MAX_NUMBERS_PER_MESSAGE = 1 << 17

OutFrame = DrafterFrame | Welcome | Pong


class Outbox:
    """Thread-safe. capacity: frames that may wait; more mean that the verifier has stopped reading, and `overflowed` stays true."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._frames: dict[int, OutFrame] = {}
        self._tails: dict[int, int] = {}
        self._next_place = 0
        self._lock = threading.Lock()
        self.overflowed = False

    def __len__(self) -> int:
        return len(self._frames)

    def push(self, frame: OutFrame) -> None:
        """Queue a frame, or fold it into one that waits."""
        with self._lock:
            match frame:
                case Tail():
                    self._push_tail(frame)
                case Close() | Refused():
                    self._drop_tail(frame.session)
                    self._append(frame)
                case _:
                    self._append(frame)

    def take(self, max_frames: int, max_numbers: int) -> list[OutFrame]:
        """The oldest frames, in order, until they carry max_numbers numbers: what bounds the size of a message."""
        with self._lock:
            taken: list[OutFrame] = []
            num_numbers = 0
            for place in list(self._frames)[:max_frames]:
                if num_numbers >= max_numbers:
                    break
                frame = self._frames.pop(place)
                taken.append(frame)
                if isinstance(frame, Tail):
                    num_numbers += 3 * len(frame.tokens) + sum(2 * len(row.ids) for row in frame.rows)
            if self._frames:
                self._tails = {session: place for session, place in self._tails.items() if place in self._frames}
            else:
                self._tails.clear()
            return taken

    def _push_tail(self, tail: Tail) -> None:
        place = self._tails.get(tail.session)
        waiting = None if place is None else self._frames[place]
        if place is not None and isinstance(waiting, Tail) and _adjacent(waiting, tail):
            self._frames[place] = merged(waiting, tail)
            return
        if isinstance(waiting, Tail) and (waiting.incarnation, waiting.tree_id) != (tail.incarnation, tail.tree_id):
            self._drop_tail(tail.session)
        self._tails[tail.session] = self._next_place
        self._append(tail)

    def _drop_tail(self, session: int) -> None:
        place = self._tails.pop(session, None)
        if place is not None:
            del self._frames[place]

    def _append(self, frame: OutFrame) -> None:
        if len(self._frames) >= self._capacity:
            self.overflowed = True
            self._tails.pop(getattr(frame, "session", -1), None)
            return
        self._frames[self._next_place] = frame
        self._next_place += 1


def _adjacent(first: Tail, second: Tail) -> bool:
    same_tree = (first.incarnation, first.tree_id, first.base) == (second.incarnation, second.tree_id, second.base)
    return same_tree and first.first_node + len(first.tokens) == second.first_node <= MAX_TREE_NODES


def merged(first: Tail, second: Tail) -> Tail:
    """Two adjacent tails of one tree as one; it ends as the second does."""
    scores = None
    if first.scores is not None and second.scores is not None:
        scores = np.concatenate((first.scores, second.scores))
    elif not len(first.tokens) or not len(second.tokens):
        scores = second.scores if len(second.tokens) else first.scores
    drafted = [tail for tail in (first, second) if len(tail.tokens)] or [second]
    return Tail(
        session=second.session,
        incarnation=second.incarnation,
        tree_id=second.tree_id,
        first_node=first.first_node,
        base=second.base,
        prefix_hash=second.prefix_hash,
        tokens=np.concatenate((first.tokens, second.tokens)),
        parents=np.concatenate((first.parents, second.parents)),
        end=second.end,
        source=second.source,
        draft_us=first.draft_us + second.draft_us,
        begin_ns=drafted[0].begin_ns,
        end_ns=drafted[-1].end_ns,
        scores=scores,
        rows=first.rows + second.rows,
        hedge_us=first.hedge_us + second.hedge_us,
        first_us=drafted[0].first_us,
    )
