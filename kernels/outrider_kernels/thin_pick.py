"""The tokens after a few rows of logits, compiled (thin/pick.c): argmax, or the Gumbel race over what top-k, top-p and min-p leave.

A row is decided for certain or left, as near ties, edges of filters and logits that are no numbers are: whoever asks has the definition,
which is `outrider.noise.reference_pick.pick_processed`. The pick's probability comes along, and the next best token. A row's result depends
on the row alone, so that one row and many, or a chain (thin_chain.py), find the same. Must not know models, how tokens are counted, or who
asks.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from outrider_kernels.array_address import address_of
from outrider_kernels.thin_team import ThinTeam
from outrider_kernels.thin_touched import ThinTouched

LEFT = -1  # as in thin/thin.h
MAX_TOP_K = 256  # as there

_NOTHING = LEFT, math.nan, LEFT, math.nan
_NO_PATHS: Mapping[int, Sequence[npt.NDArray[np.int32]]] = MappingProxyType({})

_FloatArray = npt.NDArray[np.float32]
_IntArray = npt.NDArray[np.int32]

# thin_pick_row of thin/thin.h: logits, key, position, temperature, top_p, min_p_gap, top_k, touched, path, path_len, with_prob,
# with_second, token, prob, second, behind. A structure of plain numbers is filled several times as fast as an array of records.
PICK_ROW = struct.Struct("@QQqdddqQQqiiifif")
_NAMES = ["token", "prob", "second", "behind"]
_FOUND = np.dtype({"names": _NAMES, "formats": ["i4", "f4"] * 2, "offsets": [88, 92, 96, 100], "itemsize": PICK_ROW.size})


@dataclass(frozen=True, slots=True)
class PickRule:
    """How a row is picked after. key: unsigned 64 bits. temperature: NaN leaves the row. min_p_gap: how far below the best logit a token
    may be.

    with_prob: whether the probability of the pick is wanted, under softmax(logits / T) without filters; at T = 0 at temperature 1.
    with_second: whether the token with the next best score is wanted, for guesses. top_k: at most MAX_TOP_K; 0: all. touched: what biases
    and penalties change in the logits before all this, and is put back behind it; None: nothing.
    """

    key: int
    temperature: float
    top_p: float = 1.0
    min_p_gap: float = math.inf
    with_prob: bool = False
    with_second: bool = False
    top_k: int = 0
    touched: ThinTouched | None = None

    @property
    def touched_address(self) -> int:
        """0 for None."""
        return 0 if self.touched is None else self.touched.address

    def blank(self, path: int = 0, path_len: int = 0) -> tuple[float, ...]:
        """The fields of a PICK_ROW of logits and a position yet to come, nothing found. path: where tokens of output lie that `touched`
        does not count, int32 [path_len]."""
        filters = self.temperature, self.top_p, self.min_p_gap, self.top_k
        return 0, self.key, 0, *filters, self.touched_address, path, path_len, self.with_prob, self.with_second, *_NOTHING


@dataclass(frozen=True, slots=True)
class ThinPicks:
    """tokens: int32 [rows], LEFT where the definition must decide. probs: float32 [rows], NaN where not asked for, or left.

    seconds: int32 [rows], the token with the next best score of those that the filters leave (LEFT: not asked for, the row is left, there
    is none, or it is hopelessly far behind or not clear); behinds: float32 [rows], how far its score lies behind, else NaN. None where no
    row was asked for one.
    """

    tokens: _IntArray
    probs: _FloatArray
    seconds: _IntArray | None = None
    behinds: _FloatArray | None = None


class ThinPick:
    """Picks after rows of logits."""

    def __init__(self, team: ThinTeam) -> None:
        self._function, self.team = team.library.thin_pick, team
        self._handle = team.handle
        self._grow(1)

    def run(
        self,
        logits: _FloatArray,
        groups: Sequence[tuple[PickRule, Sequence[int]]],
        paths: Mapping[int, Sequence[_IntArray]] = _NO_PATHS,
    ) -> ThinPicks:
        """logits: float32 [rows, ids], writable, each row in one piece; groups: how rows that follow one another are picked after, and the
        positions of their picks. paths: by the places of groups whose rule has `touched`, the tokens of each row that it does not count.
        Raises ValueError where logits and groups do not fit."""
        num_rows, num_ids = logits.shape
        row_bytes, item_bytes = logits.strides
        if logits.dtype != np.float32 or item_bytes != 4 or sum([len(positions) for _, positions in groups]) != num_rows:
            raise ValueError(f"logits of {logits.dtype} and shape {logits.shape} are not what is to be picked after")
        if num_rows > len(self._tokens):
            self._grow(2 * num_rows)
        at, address, with_second = 0, address_of(logits[0]) if num_rows else 0, False
        for place, (rule, positions) in enumerate(groups):
            with_second = with_second or rule.with_second
            filters, touched = (rule.temperature, rule.top_p, rule.min_p_gap, rule.top_k), rule.touched_address
            asked, own_paths = (rule.with_prob, rule.with_second, *_NOTHING), paths.get(place, ())
            for row, position in enumerate(positions):
                path, path_len = (address_of(own_paths[row]), len(own_paths[row])) if own_paths and len(own_paths[row]) else (0, 0)
                PICK_ROW.pack_into(self._rows, at, address, rule.key, position, *filters, touched, path, path_len, *asked)
                at += PICK_ROW.size
                address += row_bytes
        self._function(self._handle, self._address, num_rows, num_ids)
        tokens, probs = self._tokens[:num_rows].copy(), self._probs[:num_rows].copy()
        if not with_second:
            return ThinPicks(tokens, probs)
        return ThinPicks(tokens, probs, self._seconds[:num_rows].copy(), self._behinds[:num_rows].copy())

    def _grow(self, num_rows: int) -> None:
        self._rows = bytearray(num_rows * PICK_ROW.size)
        found = np.frombuffer(self._rows, _FOUND)
        self._tokens, self._probs, self._seconds, self._behinds = (found[name] for name in _NAMES)
        self._address = found.ctypes.data
