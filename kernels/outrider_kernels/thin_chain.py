"""A model's own picks, followed in one call (thin/chain.c): each is fed as the next row, and picked after, until something ends the chain.

What a row leaves behind, and its pick, are those of the same operations one by one: the program and the head are the model's own, the
pick is thin_pick.py's. Must not know trees, sessions or samplings.
"""

from __future__ import annotations

import ctypes
import math
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider_kernels.thin_pick import LEFT, PICK_ROW, PickRule
from outrider_kernels.thin_product import ThinProduct
from outrider_kernels.thin_program import ThinProgram
from outrider_kernels.thin_team import ThinTeam

MAX_WINDOWS = 8  # as in thin/chain.c

_FloatArray = npt.NDArray[np.float32]
_IntArray = npt.NDArray[np.int32]
_LongArray = npt.NDArray[np.int64]


class _Chain(ctypes.Structure):
    """thin_chain of thin/chain.c."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("operations", "head", "embedding", "states", "last", "logits", "windows", "missing", "ends")
        ),
        *((name, ctypes.c_int64) for name in ("num_operations", "hidden_len", "num_ids", "num_windows", "num_missing", "num_ends")),
    )


# thin_chain_call of thin/chain.c: slots, edges, num_runs, token, position, most, prob, stop_below, the rule (a PICK_ROW), picks, probs, and
# what was found.
_CALL = struct.Struct(f"@QQqqqqdd{PICK_ROW.size}sQQqq")
_FOUND = struct.Struct("@qq")


@dataclass(frozen=True, slots=True)
class ChainRows:
    """What one row goes through. embedding: float32 [ids, hidden]; states, last and logits: the first rows of buffers between which program
    and head work. windows: by the places of the program's steps, how many positions a row sees, its own among them; None: all."""

    program: ThinProgram
    head: ThinProduct
    embedding: _FloatArray
    states: _FloatArray
    last: _FloatArray
    logits: _FloatArray
    windows: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class ChainIds:
    """Which ids there are: [0, num_ids) but for those that stand for nothing; and those that end a text."""

    num_ids: int
    missing: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChainSlots:
    """Where a sequence lies in the pool. slots: int64, by position. edges: int64 [runs + 1] positions, ascending: from one to the next,
    slots are neighbours."""

    slots: _LongArray
    edges: _LongArray


@dataclass(frozen=True, slots=True)
class ChainStart:
    """token: the first to feed, at `position`; prob: its own, 1 where nobody asks. most: rows to feed. A token that ends a text, or is less
    probable than stop_below, is not fed."""

    token: int
    prob: float
    position: int
    most: int
    stop_below: float


@dataclass(frozen=True, slots=True)
class Followed:
    """picks int32, probs float32 [found]: after each row fed. is_left: one row more was fed, whose pick is left to the definition; its
    logits are in the buffer."""

    picks: _IntArray
    probs: _FloatArray
    is_left: bool


class ThinChain:
    """Chains of one model."""

    def __init__(self, team: ThinTeam, rows: ChainRows, ids: ChainIds) -> None:
        """Raises ValueError where the arrays do not fit one another."""
        arrays = (rows.embedding, rows.states, rows.last, rows.logits)
        if any(array.dtype != np.float32 or not array.flags.c_contiguous for array in arrays):
            raise ValueError("a chain works on float32 arrays in C order")
        hidden_len = rows.embedding.shape[1]
        if rows.states.shape != (hidden_len,) or rows.last.shape != (hidden_len,):
            raise ValueError(f"states of {rows.states.shape} and {rows.last.shape} do not fit embeddings of {hidden_len}")
        if not 0 < ids.num_ids <= min(len(rows.logits), len(rows.embedding)) or not 0 < len(rows.windows) <= MAX_WINDOWS:
            raise ValueError(f"{ids.num_ids} ids or {len(rows.windows)} kinds of windows do not fit")
        if not all(0 <= token < ids.num_ids for token in ids.missing):
            raise ValueError("an id that stands for nothing is none of the ids")
        windows = np.array([window or 0 for window in rows.windows], np.int64)
        missing, ends = np.array(ids.missing, np.int64), np.array(ids.ends, np.int64)
        self._kept = (team, rows, windows, missing, ends)  # the structure holds addresses only
        self.logits = rows.logits
        self._num_ids = ids.num_ids
        self._chain = _Chain(
            rows.program.address,
            rows.head.address,
            *(array.ctypes.data for array in (*arrays, windows, missing, ends)),
            rows.program.length,
            hidden_len,
            ids.num_ids,
            len(windows),
            len(missing),
            len(ends),
        )
        self._function, self._team = team.library.thin_chain_follow, team.handle
        self._address = ctypes.addressof(self._chain)
        self._call = bytearray(_CALL.size)
        self._call_address = np.frombuffer(self._call, np.uint8).ctypes.data

    def follow(self, start: ChainStart, rule: PickRule, where: ChainSlots) -> Followed:
        """Feeds rows at start.position and on, whose keys and values are stored; each sees what lies before it and within the window.

        Raises ValueError where the token is none, or there are fewer slots.
        """
        if not 0 <= start.token < self._num_ids or not 0 <= start.position <= len(where.slots) - start.most:
            raise ValueError(f"{start} does not fit {self._num_ids} ids and {len(where.slots)} slots")
        picks, probs = np.empty(start.most, np.int32), np.empty(start.most, np.float32)
        _CALL.pack_into(
            self._call,
            0,
            *(where.slots.ctypes.data, where.edges.ctypes.data, len(where.edges) - 1),
            *(start.token, start.position, start.most, start.prob, start.stop_below),
            PICK_ROW.pack(0, rule.key, 0, rule.temperature, rule.top_p, rule.min_p_gap, rule.with_prob, LEFT, math.nan),
            *(picks.ctypes.data, probs.ctypes.data, 0, 0),
        )
        self._function(self._team, self._address, self._call_address)
        num_found, is_left = _FOUND.unpack_from(self._call, _CALL.size - _FOUND.size)
        return Followed(picks[:num_found], probs[:num_found], bool(is_left))
