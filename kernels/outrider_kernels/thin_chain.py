"""A sequence's next rows, the pick after the last, and the model's own picks followed, in one call (thin/chain.c): each is fed as the next
row, and picked after, until something ends the chain.

What a row leaves behind, and its pick, are those of the same operations one by one: the program and the head are the model's own, the
pick is thin_pick.py's. Must not know trees, sessions or samplings.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider_kernels.array_address import address_of
from outrider_kernels.thin_pick import PICK_ROW, PickRule
from outrider_kernels.thin_product import ThinProduct
from outrider_kernels.thin_program import ThinProgram
from outrider_kernels.thin_team import ThinTeam

MAX_WINDOWS = 8  # as in thin/chain.c
MAX_ROWS = 512  # that go through the operations at once, as in thin/chain.c

_FloatArray = npt.NDArray[np.float32]
_IntArray = npt.NDArray[np.int32]
_LongArray = npt.NDArray[np.int64]


_NUMBERS = (
    *("num_operations", "last_attention", "hidden_len", "attended_len", "logits_len", "most_rows"),
    *("num_ids", "num_windows", "num_missing", "num_ends"),
)


class _Chain(ctypes.Structure):
    """thin_chain of thin/chain.c."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("operations", "head", "embedding", "states", "last", "attended", "logits", "windows", "missing", "ends")
        ),
        *((name, ctypes.c_int64) for name in _NUMBERS),
    )


# thin_chain_call of thin/chain.c: slots, edges, num_runs, tokens, num_tokens, position, most, num_wanted, stop_below, keeps_logits, the
# rule (a PICK_ROW), picks, probs, seconds, behinds, and what was found.
_CALL = struct.Struct(f"@QQqQqqqqdq{PICK_ROW.size}sQQQQqqqqqq")
_FOUND = struct.Struct("@qqqqqq")
_FOUND_AT = _CALL.size - _FOUND.size
_NO_PATH = array("i")


@dataclass(frozen=True, slots=True)
class ChainRows:
    """What rows go through. embedding: float32 [ids, hidden]; states, attended: the buffers in which the program begins and ends, and in
    which its last attention leaves what it found, as many rows as go through at once; last, logits: those between which the head works, as
    many again. windows: by the places of the program's steps, how many positions a row sees, its own among them; None: all."""

    program: ThinProgram
    head: ThinProduct
    embedding: _FloatArray
    states: _FloatArray
    attended: _FloatArray
    last: _FloatArray
    logits: _FloatArray
    windows: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class ChainIds:
    """Which ids there are: [0, num_ids) but for those that stand for nothing; and those that end a text."""

    num_ids: int
    missing: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


class ChainSlots:
    """Where a sequence lies in the pool. slots: int64, by position. edges: int64 [runs + 1] positions, ascending: from one to the next,
    slots are neighbours. Made once a sequence: what a chain needs of it is looked up here. addresses: of both,
    and the number of runs. is_lasting: for as long as the sequence is open, so that rows may be computed ahead there."""

    def __init__(self, slots: _LongArray, edges: _LongArray, *, is_lasting: bool = False) -> None:
        """Both are kept, in C order."""
        self.slots, self.edges, self.is_lasting = slots, edges, is_lasting
        self.num_slots = len(slots)
        self.addresses = address_of(slots), address_of(edges), len(edges) - 1


# These two are made with each call, and nobody changes one: frozen, each would take five times as long to make.
@dataclass(slots=True)
class ChainStart:
    """tokens: to feed first, from `position` on, whatever they are. most: picks. A pick that ends a text, or is less probable than
    stop_below, is the last. num_wanted: of the tokens, the last ones, how many are picked after; with several, nothing follows. before: for
    a rule with `touched`, the tokens of output between what that counts and these. keeps_logits: for whoever reads them behind the call, of
    the wanted rows: nothing is computed ahead then."""

    tokens: Sequence[int]
    position: int
    most: int
    stop_below: float
    num_wanted: int = 1
    before: Sequence[int] = ()
    keeps_logits: bool = False


@dataclass(slots=True)
class Followed:
    """picks int32, probs float32 [found]: behind the first rows, and behind each that was fed after them. is_left: the pick behind the
    newest row is left to the definition; its logits are in the buffer. Of several wanted rows, some are: their picks are LEFT. forward_ns,
    first_ns: till the first rows' logits, and the pick after them. seconds int32, behinds float32 [found]: as in ThinPicks; None where the
    rule asks for none; probs that it does not ask for are anything. hidden_ns: of the time it took, what had passed before it was asked for
    (thin_ahead.py)."""

    picks: _IntArray
    probs: _FloatArray
    is_left: bool
    forward_ns: int = 0
    first_ns: int = 0
    seconds: _IntArray | None = None
    behinds: _FloatArray | None = None
    hidden_ns: int = 0


class ThinChain:
    """Chains of one model."""

    def __init__(self, team: ThinTeam, rows: ChainRows, ids: ChainIds) -> None:
        """Raises ValueError where the arrays do not fit one another."""
        arrays = (rows.embedding, rows.states, rows.last, rows.attended, rows.logits)
        if any(part.dtype != np.float32 or not part.flags.c_contiguous for part in arrays):
            raise ValueError("a chain works on float32 arrays in C order")
        hidden_len = rows.embedding.shape[1]
        if rows.states.shape[1:] != (hidden_len,) or rows.last.shape != rows.states.shape or len(rows.attended) != len(rows.states):
            shapes = rows.states.shape, rows.last.shape, rows.attended.shape
            raise ValueError(f"states and rows attended to of {shapes} do not fit embeddings of {hidden_len}")
        if rows.program.last_attention < 0:
            raise ValueError("a program without attention has no chain")
        if not 0 < ids.num_ids <= min(rows.logits.shape[1], len(rows.embedding)) or not 0 < len(rows.windows) <= MAX_WINDOWS:
            raise ValueError(f"{ids.num_ids} ids or {len(rows.windows)} kinds of windows do not fit")
        if not all(0 <= token < ids.num_ids for token in ids.missing):
            raise ValueError("an id that stands for nothing is none of the ids")
        windows = np.array([window or 0 for window in rows.windows], np.int64)
        missing, ends = np.array(ids.missing, np.int64), np.array(ids.ends, np.int64)
        self._rows, self._kept = rows, (windows, missing, ends)  # the structure holds addresses only
        self.logits = rows.logits
        self.most_rows = min(len(rows.states), len(rows.logits), MAX_ROWS)
        self._num_ids, self._ends = ids.num_ids, frozenset(ids.ends)
        self._chain = _Chain(
            rows.program.address,
            rows.head.address,
            *(part.ctypes.data for part in (*arrays, windows, missing, ends)),
            rows.program.length,
            rows.program.last_attention,
            hidden_len,
            rows.attended.shape[1],
            rows.logits.shape[1],
            self.most_rows,
            ids.num_ids,
            len(windows),
            len(missing),
            len(ends),
        )
        self.team, self.address = team, ctypes.addressof(self._chain)
        self._function: Callable[..., None] = team.library.thin_chain_follow
        self._arguments: tuple[int | None, int] = team.handle, self.address
        self._way: object = None
        self._where: ChainSlots | None = None
        self._call = bytearray(_CALL.size)
        self._call_address = np.frombuffer(self._call, np.uint8).ctypes.data
        self._make_room(1)

    @property
    def row_bytes(self) -> int:
        """Of matrices, what a row that is fed alone and picked behind reads."""
        return self._rows.program.read_bytes + self._rows.head.read_bytes

    def feeds(self, token: int, prob: float, stop_below: float) -> bool:
        """Whether a chain goes on with a pick of this probability."""
        return token not in self._ends and not prob < stop_below

    def follow(self, start: ChainStart, rule: PickRule, where: ChainSlots) -> Followed:
        """Feeds rows at start.position and on, whose keys and values are stored; each sees what lies before it and within the window.

        Raises ValueError where the tokens are none, or there are fewer slots, or nothing is to be picked.
        """
        tokens, most = start.tokens, start.most
        num_tokens = len(tokens)
        if not num_tokens or min(tokens) < 0 or max(tokens) >= self._num_ids or most < 1:
            raise ValueError(f"{start} does not fit {self._num_ids} ids")
        if start.num_wanted > 1 and not start.num_wanted == most <= num_tokens <= self.most_rows:
            raise ValueError(f"{start} does not fit {self.most_rows} rows at once, each with a pick")
        if not 0 <= start.position <= where.num_slots - num_tokens - most + start.num_wanted:
            raise ValueError(f"{start} does not fit {where.num_slots} slots")
        if most > len(self._picks):
            self._make_room(2 * most)
        fed = array("i", tokens)
        tokens_address, _ = fed.buffer_info()
        path = array("i", (*start.before, *tokens, *bytes(most))) if rule.touched is not None else _NO_PATH  # with room for the picks
        _CALL.pack_into(
            self._call,
            0,
            *where.addresses,
            *(tokens_address, num_tokens, start.position, most, start.num_wanted, start.stop_below, start.keeps_logits),
            PICK_ROW.pack(*rule.blank(path.buffer_info()[0], len(start.before) + num_tokens)),
            *self._found_addresses,
            *(0, 0, 0, 0, 0, 0),
        )
        self._function(*self._arguments, self._call_address)
        self._where = where  # what is computed ahead reads its arrays, whatever becomes of the sequence meanwhile
        if not where.is_lasting:
            self.team.settle()
        num_found, is_left, forward_ns, first_ns, _, hidden_ns = _FOUND.unpack_from(self._call, _FOUND_AT)
        picks, probs = self._picks[:num_found].copy(), self._probs[:num_found]
        found = picks, probs.copy() if rule.with_prob else probs, bool(is_left), forward_ns, first_ns
        if not rule.with_second:
            return Followed(*found, hidden_ns=hidden_ns)
        return Followed(*found, self._seconds[:num_found].copy(), self._behinds[:num_found].copy(), hidden_ns)

    def settle(self) -> None:
        """See ThinTeam."""
        self.team.settle()

    def go_through(self, owner: object, function: Callable[..., None], handle: int, part: int) -> None:
        """Follow by another way with the same results: a C function of these and the call. owner: of the handle, kept."""
        self._way, self._function, self._arguments = owner, function, (handle, part)

    def _make_room(self, num_picks: int) -> None:
        self._picks, self._probs = np.empty(num_picks, np.int32), np.empty(num_picks, np.float32)
        self._seconds, self._behinds = np.empty(num_picks, np.int32), np.empty(num_picks, np.float32)
        found = self._picks, self._probs, self._seconds, self._behinds
        self._found_addresses = tuple([part.ctypes.data for part in found])
