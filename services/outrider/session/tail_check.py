"""Whether an untrusted tail is well formed, before anything looks at what it means.

Knows the ranges of a Tail's own fields. Must not know trees or sessions. Raises ProtocolViolation with a sentence; a malformed frame ends
its own session's drafter and nothing else.
"""

from __future__ import annotations

import math

import numpy as np

from outrider.errors import ProtocolViolation
from outrider.session.statistics import MAX_TAIL_DRAFT_US
from outrider.types.frames import Tail, TailEnd
from outrider.types.tree import MAX_TREE_NODES, DraftRow

MAX_TREE_ID = 1 << 40
MAX_SOURCE_LEN = 64
MAX_ROW_SUPPORT = 1024
ROW_MASS_TOLERANCE = 1e-3


def check_tail(tail: Tail, vocab_size: int) -> tuple[list[int], list[int]]:
    """Its tokens and parents as plain numbers. Raises ProtocolViolation naming the first field that cannot be."""
    if not 0 <= tail.tree_id < MAX_TREE_ID:
        raise ProtocolViolation(f"tree id {tail.tree_id} is out of range")
    if not 0 <= tail.first_node <= MAX_TREE_NODES or tail.base < 0:
        raise ProtocolViolation(f"first node {tail.first_node} or base {tail.base} is out of range")
    if len(tail.source) > MAX_SOURCE_LEN or not isinstance(tail.end, TailEnd):
        raise ProtocolViolation("source name or end of the tail is malformed")
    draft_us, hedge_us = tail.draft_us, tail.hedge_us
    if not 0 <= draft_us + hedge_us <= MAX_TAIL_DRAFT_US or draft_us < 0 or hedge_us < 0 or tail.end_ns < tail.begin_ns:
        raise ProtocolViolation(f"drafting time of {draft_us} and {hedge_us} us in [{tail.begin_ns}, {tail.end_ns}] ns cannot be")
    if not 0 <= tail.first_us <= draft_us:
        raise ProtocolViolation(f"the first node took {tail.first_us} us of {draft_us}")
    tokens, parents = _checked_ids("token", tail.tokens, vocab_size), tail.parents
    if len(tokens) > MAX_TREE_NODES:
        raise ProtocolViolation(f"tail has {len(tokens)} nodes, at most {MAX_TREE_NODES}")
    if parents.shape != (len(tokens),):
        raise ProtocolViolation(f"tail has {len(tokens)} tokens but parents of shape {parents.shape}")
    if parents.dtype.kind not in "iu":
        raise ProtocolViolation("parents are not integers")
    if tail.scores is not None and (tail.scores.shape != tail.tokens.shape or not all(map(math.isfinite, tail.scores.tolist()))):
        raise ProtocolViolation("scores are not one finite number per token")
    if len(tail.rows) > len(tokens) + 1:
        raise ProtocolViolation(f"tail of {len(tokens)} nodes has {len(tail.rows)} draft rows")
    for row in tail.rows:
        _check_row(row, vocab_size)
    return tokens, parents.tolist()


def _checked_ids(what: str, ids: np.ndarray[tuple[int, ...], np.dtype[np.int32]], vocab_size: int) -> list[int]:
    if ids.ndim != 1:
        raise ProtocolViolation(f"{what} ids have shape {ids.shape}")
    if ids.dtype.kind not in "iu":
        raise ProtocolViolation(f"{what} ids are not integers")
    values: list[int] = ids.tolist()  # a few plain numbers: array operations would cost more, and so would min and max
    for value in values:
        if not 0 <= value < vocab_size:
            raise ProtocolViolation(f"{what} id outside the vocabulary of {vocab_size}")
    return values


def _check_row(row: DraftRow, vocab_size: int) -> None:
    if len(row.ids) > MAX_ROW_SUPPORT:
        raise ProtocolViolation(f"a draft row has {len(row.ids)} tokens, at most {MAX_ROW_SUPPORT}")
    _checked_ids("draft row", row.ids, vocab_size)
    if row.probs.shape != row.ids.shape or len(row.ids) == 0 or len(np.unique(row.ids)) != len(row.ids):
        raise ProtocolViolation("a draft row needs one probability for each of its distinct ids")
    if not (np.all(np.isfinite(row.probs)) and np.all(row.probs >= 0) and abs(float(row.probs.sum()) - 1.0) < ROW_MASS_TOLERANCE):
        raise ProtocolViolation("a draft row is not a distribution")
