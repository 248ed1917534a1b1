"""The pick: argmax over the filtered tokens of logit + T * gumbel, for many rows at once, exactly as reference_pick defines it.

Approximate first, decide exactly last. Greedy rows cost one argmax. Rows without top-k never sort: the bulk stage leaves a few
survivors, library logarithms order them, and top-p only has to answer whether the winner lies in the nucleus (the mass before it is
below top_p). Whatever lies within a proven margin of a decision goes to the reference itself. Must not know trees or KV.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.engine.sampling.head import fetch_head, head_weights, kept_lens
from outrider.engine.sampling.nucleus import NucleusMass
from outrider.engine.sampling.penalties import apply_penalties
from outrider.engine.sampling.rows import RowSampling, RowTable
from outrider.engine.sampling.sanity import check_best_logits
from outrider.engine.sampling.survivors import surviving_tokens
from outrider.noise.field import MAX_GUMBEL, BitsArray, token_bits, uniform_of
from outrider.noise.reference_pick import pick_processed

IdArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray64 = npt.NDArray[np.float64]
Real = TypeVar("Real", float, FloatArray64)

# |float32 gumbel - float64 library gumbel| <= half a float32 ulp below 64 (1.91e-6) + a few float64 ulps; twice that for two tokens.
GUMBEL_MARGIN = 4e-6
# rounding of logit + T * gumbel in float64, relative to its size, with room
SCORE_MARGIN = 1e-14
# passes over the vocabulary for one top-p row; each failure rules out every survivor with a smaller logit, so few are ever needed
MAX_NUCLEUS_TRIES = 16


@dataclass(frozen=True, slots=True, eq=False)
class _Survivors:
    """Candidates of all rows: tokens int64 and logits float64, those of row i at [starts[i], starts[i + 1]), best score first."""

    tokens: IdArray
    values: FloatArray64
    starts: IdArray

    def next_before(self, failed: int, row: int) -> int:
        """The next candidate of the row that comes before the failed one in canonical order; the others fail with it."""
        rest = slice(failed + 1, int(self.starts[row + 1]))
        values, tokens = self.values[rest], self.tokens[rest]
        earlier = (values > self.values[failed]) | ((values == self.values[failed]) & (tokens < self.tokens[failed]))
        return failed + 1 + int(earlier.argmax())


def pick(logits: Tensor, rows: Sequence[RowSampling]) -> Tensor:  # logits: [num_rows, vocab] float32
    """int64 [num_rows] on the CPU: each row's token. Rows of the entries follow one another in `logits`.

    Raises ModelRefused where a row's largest logit is no number.
    """
    assert logits.dtype == torch.float32, "the pick is defined on float32 logits"
    return pick_from_processed(apply_penalties(logits, rows), RowTable.of(rows))


def pick_from_processed(processed: Tensor, table: RowTable) -> Tensor:  # processed: [num_rows, vocab] float32
    """int64 [num_rows] on the CPU, from logits that bias and penalties are already in."""
    if not len(processed):
        return torch.empty(0, dtype=torch.int64)
    picks = _argmax(processed)
    best_logits = processed.gather(1, torch.from_numpy(picks).to(processed.device)[:, None])[:, 0].cpu().numpy()
    check_best_logits(best_logits)
    sampled = table.temperatures > 0.0
    if not sampled.any():
        return torch.from_numpy(picks)
    whole = np.flatnonzero(sampled & (table.top_ks == 0))
    if len(whole):
        picks[whole] = _pick_whole(rows_at(processed, whole), table, whole, best_logits[whole], picks[whole])
    headed = np.flatnonzero(sampled & (table.top_ks > 0))
    if len(headed):
        picks[headed] = _pick_headed(rows_at(processed, headed), table, headed)
    return torch.from_numpy(picks)


def approximate_gumbel(noise_bits: BitsArray) -> FloatArray64:
    """float64 Gumbel by the library's logarithm, within GUMBEL_MARGIN / 2 of the canonical value."""
    return -np.log(-np.log(uniform_of(noise_bits)))


def score_margin(temperatures: Real, best_logits: Real) -> Real:
    """How far apart two approximate scores must be to order the canonical ones."""
    return GUMBEL_MARGIN * temperatures + SCORE_MARGIN * (abs(best_logits) + MAX_GUMBEL * temperatures)


def rows_at(processed: Tensor, index: IdArray) -> Tensor:
    """The rows at an ascending index, without a copy when it names all of them."""
    return processed if len(index) == len(processed) else processed[torch.from_numpy(index).to(processed.device)]


def _argmax(processed: Tensor) -> IdArray:
    """The first index of each row's largest logit; numpy's is several times faster than torch's on a CPU."""
    if processed.device.type == "cpu":
        best: IdArray = processed.numpy().argmax(axis=1)
    else:
        best = processed.argmax(dim=1).cpu().numpy()
    return best


def _pick_whole(logits: Tensor, table: RowTable, index: IdArray, best: npt.NDArray[np.float32], best_ids: IdArray) -> IdArray:
    """Rows without top-k; logits, best and best_ids are theirs, index places them in the table."""
    subkeys, temperatures, wide_best = table.subkeys[index], table.temperatures[index], best.astype(np.float64)
    best_gumbel = approximate_gumbel(token_bits(subkeys, best_ids))
    rows, tokens = surviving_tokens(logits, wide_best, temperatures, best_gumbel, subkeys)
    values = _gather(logits, rows, tokens)
    scores = values + temperatures[rows] * approximate_gumbel(token_bits(subkeys[rows], tokens))
    near = wide_best[rows] - values <= table.min_p_gaps[index][rows]
    rows, tokens, values, scores = rows[near], tokens[near], values[near], scores[near]
    order = np.lexsort((-scores, rows))
    rows, tokens, values, scores = rows[order], tokens[order], values[order], scores[order]
    starts = np.searchsorted(rows, np.arange(len(index) + 1))
    winners = starts[:-1].copy()
    unsure = np.zeros(len(index), np.bool_)
    nucleus = np.flatnonzero(table.top_ps[index] < 1.0)
    if len(nucleus):
        unsure[nucleus] = _step_into_nucleus(logits, table, index, nucleus, _Survivors(tokens, values, starts), winners)
    unsure |= _leads(scores, starts, winners) <= score_margin(temperatures, wide_best)
    picks = tokens[winners]
    for row in np.flatnonzero(unsure):
        picks[row] = _reference(logits, table, index, int(row))
    return picks


def _gather(logits: Tensor, rows: IdArray, tokens: IdArray) -> FloatArray64:
    device = logits.device
    picked = logits[torch.from_numpy(rows).to(device), torch.from_numpy(tokens).to(device)]
    return picked.cpu().numpy().astype(np.float64)


def _leads(scores: FloatArray64, starts: IdArray, winners: IdArray) -> FloatArray64:
    """How far each winner is ahead of the next survivor of its row; those before it were ruled out for good."""
    followers = np.minimum(winners + 1, len(scores) - 1)
    return np.where(winners + 1 < starts[1:], scores[winners] - scores[followers], np.inf)


def _step_into_nucleus(
    logits: Tensor, table: RowTable, index: IdArray, nucleus: IdArray, survivors: _Survivors, winners: IdArray
) -> BoolArray:
    """Advance winners[row] of each row in `nucleus` to its first survivor inside the nucleus; true where that is too close to say.

    A token is inside when the mass strictly before it in canonical order is below top_p of the whole. The row's best logit always
    is, and it is a survivor, so every row ends; MAX_NUCLEUS_TRIES bounds the passes over the vocabulary all the same.
    """
    part = rows_at(logits, nucleus)
    nucleus_mass = NucleusMass(part, table.temperatures[index][nucleus], table.top_ps[index][nucleus])
    unsure = np.zeros(len(nucleus), np.bool_)
    pending = np.arange(len(nucleus))
    for _ in range(MAX_NUCLEUS_TRIES):
        if not len(pending):
            break
        now = winners[nucleus[pending]]
        is_inside, is_close = nucleus_mass.judge(pending, survivors.tokens[now], survivors.values[now])
        unsure[pending[is_close]] = True
        pending = pending[~is_inside & ~is_close]
        for row in nucleus[pending]:
            winners[row] = survivors.next_before(int(winners[row]), int(row))
    unsure[pending] = True
    return unsure


def _pick_headed(logits: Tensor, table: RowTable, index: IdArray) -> IdArray:
    """Rows with top-k: fetch k tokens, filter, and race among them."""
    top_ks = np.minimum(table.top_ks[index], logits.shape[1])
    temperatures = table.temperatures[index]
    head = fetch_head(logits, int(top_ks.max()) + 1)
    weights = head_weights(head, np.maximum(temperatures, 1e-300))
    kept = kept_lens(head, weights, top_ks, table.top_ps[index], table.min_p_gaps[index])
    noise = approximate_gumbel(token_bits(table.subkeys[index][:, None], head.ids))
    scores = head.logits.astype(np.float64) + temperatures[:, None] * noise
    scores[np.arange(head.ids.shape[1]) >= kept[:, None]] = -np.inf
    winners = scores.argmax(axis=1)
    at = np.arange(len(index))
    best_scores = scores[at, winners]
    scores[at, winners] = -np.inf
    gaps = best_scores - scores.max(axis=1)
    unsure = (gaps <= score_margin(temperatures, head.logits[:, 0].astype(np.float64))) | (top_ks > head.settled_len)
    picks: IdArray = head.ids[at, winners]
    for row in np.flatnonzero(unsure):
        picks[row] = _reference(logits, table, index, int(row))
    return picks


def _reference(logits: Tensor, table: RowTable, index: IdArray, row: int) -> int:
    at = int(index[row])
    return pick_processed(logits[row].cpu().numpy(), table.params[at], int(table.keys[at]), int(table.positions[at]))
