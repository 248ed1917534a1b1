"""Log-probabilities of given tokens and of the best few tokens of their rows, compiled (thin/logprobs.c).

Of logits as they are. A row's numbers depend on the row alone. Must not know how tokens were picked.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from outrider_kernels.array_address import address_of
from outrider_kernels.thin_pick import MAX_TOP_K
from outrider_kernels.thin_team import ThinTeam

# thin_scored_row of thin/thin.h: logits, token, num_top, logprob, num_found, top_ids, top_logprobs.
_ROW = struct.Struct("@QqqQQQQ")

_FloatArray = npt.NDArray[np.float32]
_IntArray = npt.NDArray[np.int32]


class ThinLogprobs:
    """Of rows of logits."""

    def __init__(self, team: ThinTeam) -> None:
        self._function, self._team = team.library.thin_logprobs, team
        self._handle = team.handle

    def run(
        self, logits: _FloatArray, rows: Sequence[int], tokens: Sequence[int], num_top: int
    ) -> tuple[_FloatArray, _IntArray, _FloatArray] | None:
        """Of each row's token float32 [rows]; ids int32 [rows, num_top] and float32 [rows, num_top] of its best, larger first, then lower
        ids. None where a row has fewer than that above -inf.

        logits: float32 [any, ids], each row in one piece. rows: of it, with a token each. Raises ValueError where they do not fit.
        """
        num_ids, (row_bytes, item_bytes) = logits.shape[1], logits.strides
        if logits.dtype != np.float32 or item_bytes != 4 or len(rows) != len(tokens) or not 0 <= num_top <= min(MAX_TOP_K, num_ids):
            raise ValueError(f"logits of {logits.dtype} and shape {logits.shape} have no {num_top} best, or {len(tokens)} tokens")
        if not rows:
            return np.empty(0, np.float32), np.empty((0, num_top), np.int32), np.empty((0, num_top), np.float32)
        if min(rows) < 0 or max(rows) >= len(logits) or min(tokens) < 0 or max(tokens) >= num_ids:
            raise ValueError(f"rows {rows} or tokens {tokens} are none of logits of shape {logits.shape}")
        num_rows, begin = len(rows), address_of(logits[0])
        chosen, num_found = np.empty(num_rows, np.float32), np.zeros(num_rows, np.int32)
        top_ids, top = np.empty((num_rows, max(1, num_top)), np.int32), np.empty((num_rows, max(1, num_top)), np.float32)
        addresses = [address_of(part) for part in (chosen, num_found, top_ids, top)]
        sizes = 4, 4, 4 * top_ids.shape[1], 4 * top.shape[1]
        jobs = bytearray(num_rows * _ROW.size)
        for place, (row, token) in enumerate(zip(rows, tokens, strict=True)):
            found = [address + place * size for address, size in zip(addresses, sizes, strict=True)]
            _ROW.pack_into(jobs, place * _ROW.size, begin + row * row_bytes, token, num_top, *found)
        self._function(self._handle, np.frombuffer(jobs, np.uint8).ctypes.data, num_rows, num_ids)
        if (num_found < num_top).any():
            return None
        return chosen, top_ids[:, :num_top], top[:, :num_top]
