"""Gumbel-top-k: the k best perturbed tokens of each row, which are k draws without replacement, in draw order.

Choice 0 is the pick (same noise, same order), the others are the natural siblings of a tree (ARCHITECTURE.md section 1). At T = 0 they are
the k largest logits. The bulk stage of the pick leaves a few survivors; where their order lies within
a proven margin the canonical noise over everything decides. Must not know trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.engine.sampling.head import Head, fetch_head, head_weights, kept_lens
from outrider.engine.sampling.penalties import apply_penalties
from outrider.engine.sampling.pick import MASS_MARGIN, approximate_gumbel, rows_at, score_margin
from outrider.engine.sampling.rows import RowSampling, RowTable
from outrider.engine.sampling.survivors import surviving_tokens
from outrider.noise.field import token_bits
from outrider.noise.reference_pick import perturbed, support

IdArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray64 = npt.NDArray[np.float64]

_MIN_TEMPERATURE = 1e-30  # below it the division would overflow; the bound only gets looser
_HEAD_LENS = (128, 1024)  # prefixes tried for top-p before the whole vocabulary is sorted


@dataclass(frozen=True, slots=True)
class TopChoices:
    """ids int64, scores float32, probs float32: [rows, k] in draw order; entropy float32 [rows] in nats. All on the CPU.

    scores: logit + T * gumbel. probs, entropy: of the processed distribution; at T = 0, where that is a point mass and says nothing
    about confidence, of the unfiltered distribution at temperature 1. Where the filters leave fewer than k tokens the rest have
    score -inf and probability 0 and are no draws.
    """

    ids: Tensor
    scores: Tensor
    probs: Tensor
    entropy: Tensor


def top_choices(logits: Tensor, rows: Sequence[RowSampling], k: int) -> TopChoices:  # logits: [num_rows, vocab] float32
    """The k (at most vocab) first draws of each row."""
    processed = apply_penalties(logits, rows)
    table = RowTable.of(rows)
    k = min(k, processed.shape[1])
    kept = _filter(processed, table)
    probs, entropy = _distribution(kept, table)
    ids, scores = _all_draws(processed, kept, table, k)
    chosen = torch.from_numpy(ids)
    chosen_probs = probs.gather(1, chosen.to(probs.device)).cpu()
    is_draw = torch.from_numpy(np.isfinite(scores))
    return TopChoices(chosen, torch.from_numpy(scores.astype(np.float32)), chosen_probs * is_draw, entropy.cpu())


def _all_draws(processed: Tensor, kept: Tensor, table: RowTable, k: int) -> tuple[IdArray, FloatArray64]:
    ids, scores = np.empty((len(processed), k), np.int64), np.empty((len(processed), k))
    unsure = np.zeros(len(processed), np.bool_)
    sampled = table.temperatures > 0.0
    for index, draw in ((np.flatnonzero(sampled), _draw), (np.flatnonzero(~sampled), _draw_greedy)):
        if len(index):
            ids[index], scores[index], unsure[index] = draw(rows_at(kept, index), table, index, k)
    for row in np.flatnonzero(unsure | (ids < 0).any(axis=1)):
        ids[row], scores[row] = _canonical(processed[row].cpu().numpy(), table, int(row), k)
    return ids, scores


def _filter(processed: Tensor, table: RowTable) -> Tensor:
    """Logits with everything outside the support at -inf; the very tensor when no row is filtered."""
    is_filtered = (table.top_ks > 0) | (table.top_ps < 1.0) | (table.min_p_gaps < np.inf)
    filtered = np.flatnonzero(is_filtered & (table.temperatures > 0.0))
    if not len(filtered):
        return processed
    result = processed.clone()
    part = rows_at(processed, filtered)
    last_logits, last_ids = _last_kept(part, table, filtered)
    cut = torch.from_numpy(last_logits).to(part.device)[:, None]
    cut_ids = torch.from_numpy(last_ids).to(part.device)[:, None]
    ids = torch.arange(part.shape[1], device=part.device)
    inside = (part > cut) | ((part == cut) & (ids <= cut_ids))
    result[torch.from_numpy(filtered).to(part.device)] = part.masked_fill(~inside, -torch.inf)
    return result


def _last_kept(part: Tensor, table: RowTable, index: IdArray) -> tuple[npt.NDArray[np.float32], IdArray]:
    """Logit and id of the last token in canonical order that each row's filters leave."""
    last_logits, last_ids = np.empty(len(index), np.float32), np.empty(len(index), np.int64)
    pending = np.arange(len(index))
    top_ks = table.top_ks[index]
    for head_len in (*_HEAD_LENS, part.shape[1]):
        if not len(pending):
            break
        needed = max(head_len, int(top_ks[pending].max()) + 1)
        rows = rows_at(part, pending)
        head = fetch_head(rows, needed)
        kept, clear = _kept_in_head(rows, head, table, index[pending])
        done = clear & (kept <= head.settled_len)
        at = pending[done]
        last_logits[at] = head.logits[done, kept[done] - 1]
        last_ids[at] = head.ids[done, kept[done] - 1]
        pending = pending[~done]
    for row in pending:
        kept_ids = support(part[row].cpu().numpy(), table.params[index[row]])
        last_ids[row], last_logits[row] = kept_ids[-1], float(part[row, kept_ids[-1]])
    return last_logits, last_ids


def _kept_in_head(rows: Tensor, head: Head, table: RowTable, index: IdArray) -> tuple[IdArray, BoolArray]:
    """How many tokens of each head are left, and whether top-p's boundary is clear of rounding."""
    temperatures = table.temperatures[index]
    weights = head_weights(head, temperatures)
    inverse = torch.from_numpy(1.0 / np.maximum(temperatures, _MIN_TEMPERATURE)).to(rows.device, torch.float32)[:, None]
    totals = ((rows - rows.amax(dim=1, keepdim=True)) * inverse).exp_().sum(dim=1, dtype=torch.float64).cpu().numpy()
    top_ks, top_ps = table.top_ks[index], table.top_ps[index]
    kept = kept_lens(head, weights, totals, top_ks, top_ps, table.min_p_gaps[index])
    if head.complete:
        return kept, (top_ps >= 1.0) | (top_ks > 0) | _is_clear(weights, totals, top_ps)
    return kept, (top_ps >= 1.0) | (top_ks > 0) | (_is_clear(weights, totals, top_ps) & (kept < head.ids.shape[1]))


def _is_clear(weights: FloatArray64, totals: FloatArray64, top_ps: FloatArray64) -> npt.NDArray[np.bool_]:
    """Whether no running sum lies within the totals' rounding of the nucleus boundary."""
    distance = np.abs(np.cumsum(weights, axis=1) / totals[:, None] - top_ps[:, None])
    return np.asarray(distance.min(axis=1) > MASS_MARGIN)


def _distribution(kept: Tensor, table: RowTable) -> tuple[Tensor, Tensor]:
    """float32 probabilities [rows, vocab] and entropy [rows] in nats."""
    inverse = 1.0 / np.where(table.temperatures > 0.0, np.maximum(table.temperatures, _MIN_TEMPERATURE), 1.0)
    column = torch.from_numpy(inverse).to(kept.device, torch.float32)[:, None]
    log_probs = torch.log_softmax((kept - kept.amax(dim=1, keepdim=True)) * column, dim=1)
    probs = log_probs.exp()
    return probs, torch.special.entr(probs).sum(dim=1)


def _draw(kept: Tensor, table: RowTable, index: IdArray, k: int) -> tuple[IdArray, FloatArray64, BoolArray]:
    """ids, float64 scores [rows, k] in draw order, and which rows are too close to call; rows `index` of the table, all with T > 0.

    The k best scores are at least the worst score among the k largest logits, which bounds the survivors.
    """
    subkeys, temperatures = table.subkeys[index], table.temperatures[index]
    head = fetch_head(kept, k)
    head_logits = head.logits.astype(np.float64)
    best = head_logits[:, 0]
    head_gumbel = approximate_gumbel(token_bits(subkeys[:, None], head.ids))
    bounds = ((head_logits - best[:, None]) / np.maximum(temperatures, _MIN_TEMPERATURE)[:, None] + head_gumbel).min(axis=1)
    rows, tokens = surviving_tokens(kept, best, temperatures, bounds, subkeys)
    device = kept.device
    values = kept[torch.from_numpy(rows).to(device), torch.from_numpy(tokens).to(device)].cpu().numpy().astype(np.float64)
    scores = values + temperatures[rows] * approximate_gumbel(token_bits(subkeys[rows], tokens))
    order = np.lexsort((-scores, rows))
    ids, ranked = _first_of_rows(rows[order], tokens[order], scores[order], len(index), k + 1)
    close = _close(ranked, score_margin(temperatures, best))
    return ids[:, :k], ranked[:, :k], close


def _first_of_rows(rows: IdArray, tokens: IdArray, scores: FloatArray64, num_rows: int, width: int) -> tuple[IdArray, FloatArray64]:
    """The first `width` (token, score) of each row of a list sorted by row; -1 and -inf where a row has fewer."""
    starts = np.searchsorted(rows, np.arange(num_rows + 1))
    at = starts[:-1, None] + np.arange(width)
    present = at < starts[1:, None]
    at = np.minimum(at, len(rows) - 1)
    present &= np.isfinite(scores[at])
    return np.where(present, tokens[at], -1), np.where(present, scores[at], -np.inf)


def _close(ranked: FloatArray64, margins: FloatArray64) -> BoolArray:
    """Rows where neighbours of the ranking are nearer than their margin."""
    after = ranked[:, 1:]
    gaps = np.where(np.isfinite(after), ranked[:, :-1] - np.where(np.isfinite(after), after, 0.0), np.inf)
    return np.asarray((gaps <= margins[:, None]).any(axis=1))


def _draw_greedy(processed: Tensor, table: RowTable, index: IdArray, k: int) -> tuple[IdArray, FloatArray64, BoolArray]:
    """The k largest logits of rows at T = 0, ties by id, and which rows tie with a token that was not fetched."""
    head = fetch_head(processed, k + 1)
    return head.ids[:, :k], head.logits[:, :k].astype(np.float64), np.asarray(head.settled_len < k)


def _canonical(processed: npt.NDArray[np.float32], table: RowTable, row: int, k: int) -> tuple[IdArray, FloatArray64]:
    """One row by definition: canonical noise over the whole support; padded with the lowest ids outside it."""
    params = table.params[row]
    order = support(processed, params) if params.temperature > 0.0 else np.argsort(-processed, kind="stable")
    scores = processed[order].astype(np.float64)
    if params.temperature > 0.0:
        scores = perturbed(processed, order, params.temperature, int(table.keys[row]), int(table.positions[row]))
    best = np.argsort(-scores, kind="stable")[:k]
    ids, best_scores = order[best].astype(np.int64), scores[best]
    missing = k - len(ids)
    if missing:
        others = np.setdiff1d(np.arange(len(processed)), ids)[:missing]
        ids, best_scores = np.concatenate([ids, others]), np.concatenate([best_scores, np.full(missing, -np.inf)])
    return ids, best_scores
