"""The first tokens of a row in canonical order, and how many of them the filters leave, without sorting the vocabulary.

Canonical order is (logit descending, token id ascending); top-k, top-p and min-p each keep a prefix of it (reference_pick.support).
torch.topk fixes no order among ties, so fetched tokens are re-sorted and a tie that may continue past the fetched ones is reported as
unresolved: the caller then asks the reference. Must not know noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IdArray = npt.NDArray[np.int64]
FloatArray64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    """ids int64, logits float32: [num_rows, fetched_len] in canonical order.

    complete: the whole vocabulary was fetched. settled_len int64 [num_rows]: leading tokens that are certainly the canonical ones.
    """

    ids: IdArray
    logits: npt.NDArray[np.float32]
    complete: bool

    @property
    def settled_len(self) -> IdArray:
        """Leading tokens that no tie beyond the fetched ones can displace."""
        if self.complete:
            return np.full(len(self.ids), self.ids.shape[1], np.int64)
        settled: IdArray = np.count_nonzero(self.logits > self.logits[:, -1:], axis=1).astype(np.int64)
        return settled


def fetch_head(logits: Tensor, fetched_len: int) -> Head:  # logits: [num_rows, vocab] float32
    """The `fetched_len` (at most vocab) largest logits of each row."""
    fetched_len = min(fetched_len, logits.shape[1])
    top = torch.topk(logits, fetched_len, dim=1)
    values, ids = top.values.cpu().numpy(), top.indices.cpu().numpy()
    order = np.lexsort((ids, -values), axis=1)
    return Head(
        ids=np.take_along_axis(ids, order, axis=1),
        logits=np.take_along_axis(values, order, axis=1),
        complete=fetched_len == logits.shape[1],
    )


def head_weights(head: Head, temperatures: FloatArray64) -> FloatArray64:
    """float64 [num_rows, fetched_len] exp((logit - best) / T), as reference_pick.relative_weights."""
    wide = head.logits.astype(np.float64)
    weights: FloatArray64 = np.exp((wide - wide[:, :1]) / temperatures[:, None])
    return weights


def kept_lens(head: Head, weights: FloatArray64, top_ks: IdArray, top_ps: FloatArray64, min_p_gaps: FloatArray64) -> IdArray:
    """int64 [num_rows]: how many leading tokens top-k (at most fetched_len), then top-p, then min-p leave."""
    limits = np.minimum(top_ks, head.ids.shape[1])
    cumulative = np.cumsum(weights, axis=1)
    mass = cumulative[np.arange(len(limits)), limits - 1]
    nucleus = np.count_nonzero(cumulative < (top_ps * mass)[:, None], axis=1) + 1
    limits = np.where(top_ps < 1.0, np.minimum(limits, nucleus), limits)
    wide = head.logits.astype(np.float64)
    near = np.count_nonzero(wide[:, :1] - wide <= min_p_gaps[:, None], axis=1)
    kept: IdArray = np.minimum(limits, near).astype(np.int64)
    return kept
