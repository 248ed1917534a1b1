"""Gumbel-top-k: the k best perturbed tokens of each row, which are k draws without replacement, in draw order.

Choice 0 is the pick (same noise, same order), the others are the natural siblings of a tree (ARCHITECTURE.md section 1). At T = 0 they are
the k largest logits. The bulk stage of the pick leaves a few survivors; where their order lies within
a proven margin the canonical noise over everything decides. Must not know trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from outrider.engine.sampling.filters import filtered_row
from outrider.engine.sampling.head import fetch_head
from outrider.engine.sampling.nucleus import approximate_exponents
from outrider.engine.sampling.penalties import apply_penalties
from outrider.engine.sampling.pick import approximate_gumbel, rows_at, score_margin
from outrider.engine.sampling.rows import RowSampling, RowTable
from outrider.engine.sampling.sanity import check_best_logits
from outrider.engine.sampling.survivors import surviving_tokens
from outrider.noise.field import token_bits
from outrider.noise.reference_pick import perturbed, support

IdArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray64 = npt.NDArray[np.float64]

_MIN_TEMPERATURE = 1e-30  # below it the division would overflow; the bound only gets looser


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
    """The k (at most vocab) first draws of each row. Raises ModelRefused where a row's largest logit is no number."""
    processed = apply_penalties(logits, rows)
    check_best_logits(processed.amax(dim=1).cpu().numpy())
    table = RowTable.of(rows)
    k = min(k, processed.shape[1])
    kept = _filter(processed, table)
    ids, scores = _all_draws(processed, kept, table, k)
    chosen = torch.from_numpy(ids)
    probs, entropy = _distribution(kept, table, chosen)
    is_draw = torch.from_numpy(np.isfinite(scores))
    return TopChoices(chosen, torch.from_numpy(scores.astype(np.float32)), probs.cpu() * is_draw, entropy.cpu())


def _all_draws(processed: Tensor, kept: Tensor, table: RowTable, k: int) -> tuple[IdArray, FloatArray64]:
    ids, scores = np.empty((len(processed), k), np.int64), np.empty((len(processed), k))
    unsure = np.zeros(len(processed), np.bool_)
    sampled = table.temperatures > 0.0
    for index, draw in ((np.flatnonzero(sampled), _draw), (np.flatnonzero(~sampled), _draw_greedy)):
        if len(index):
            ids[index], scores[index], unsure[index] = draw(rows_at(kept, index), table, index, k)
    for row in np.flatnonzero(unsure):
        ids[row], scores[row] = _canonical(processed[row].cpu().numpy(), table, int(row), k)
    for row in np.flatnonzero((ids < 0).any(axis=1)):
        _fill(ids[row])
    return ids, scores


def _fill(ids: IdArray) -> None:
    """Replace the missing ids (-1) at the end of a row by the lowest ones not in it, so that every id is a token."""
    present = set(ids.tolist())
    others = (token for token in count() if token not in present)
    for place in np.flatnonzero(ids < 0):
        ids[place] = next(others)


def _filter(processed: Tensor, table: RowTable) -> Tensor:
    """Logits with everything outside the support at -inf; the very tensor when no row is filtered."""
    is_filtered = (table.top_ks > 0) | (table.top_ps < 1.0) | (table.min_p_gaps < np.inf)
    filtered = np.flatnonzero(is_filtered & (table.temperatures > 0.0))
    if not len(filtered):
        return processed
    part = rows_at(processed, filtered).cpu().numpy()
    kept = np.stack([filtered_row(row, table.params[at]) for row, at in zip(part, filtered.tolist(), strict=True)])
    if len(filtered) == len(processed):
        return torch.from_numpy(kept).to(processed.device)
    result = processed.clone()
    result[torch.from_numpy(filtered).to(result.device)] = torch.from_numpy(kept).to(result.device)
    return result


def _distribution(kept: Tensor, table: RowTable, ids: Tensor) -> tuple[Tensor, Tensor]:
    """float32 probabilities [rows, k] of ids, and entropy [rows] in nats."""
    temperatures = np.where(table.temperatures > 0.0, table.temperatures, 1.0)
    exponents = approximate_exponents(kept, temperatures)
    weights = exponents.exp()
    totals = weights.sum(dim=1)
    entropy = totals.log() - exponents.mul_(weights).sum(dim=1) / totals
    return weights.gather(1, ids.to(weights.device)) / totals[:, None], entropy


def _draw(kept: Tensor, table: RowTable, index: IdArray, k: int) -> tuple[IdArray, FloatArray64, BoolArray]:
    """ids, float64 scores [rows, k] in draw order, and which rows are too close to call; rows `index` of the table, all with T > 0.

    The k best scores are at least the worst score among the k largest logits, which bounds the survivors.
    """
    subkeys, temperatures = table.subkeys[index], table.temperatures[index]
    head = fetch_head(kept, k)
    head_logits = head.logits.astype(np.float64)
    best = head_logits[:, 0]
    head_gumbel = approximate_gumbel(token_bits(subkeys[:, None], head.ids))
    divisors, margins = np.maximum(temperatures, _MIN_TEMPERATURE), score_margin(temperatures, best)
    bounds = ((head_logits - best[:, None]) / divisors[:, None] + head_gumbel).min(axis=1)
    bounds -= margins / divisors  # what ties with the head once scores are rounded must be seen, for the tie goes by the id
    rows, tokens = surviving_tokens(kept, best, temperatures, bounds, subkeys)
    device = kept.device
    values = kept[torch.from_numpy(rows).to(device), torch.from_numpy(tokens).to(device)].cpu().numpy().astype(np.float64)
    scores = values + temperatures[rows] * approximate_gumbel(token_bits(subkeys[rows], tokens))
    order = np.lexsort((-scores, rows))
    ids, ranked = _first_of_rows(rows[order], tokens[order], scores[order], len(index), k + 1)
    unsure = _close(ranked, margins)
    for row in np.flatnonzero(ids[:, k - 1] < 0):  # few are left by the filters, or the bulk stage saw none of them in a row that cold
        num_found, num_left = np.count_nonzero(ids[row] >= 0), int(torch.isfinite(kept[row]).sum())
        unsure[row] |= num_found < min(k, num_left)
    return ids[:, :k], ranked[:, :k], unsure


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
    """One row by definition: canonical noise over the whole support; -1 and -inf where it is smaller than k."""
    params = table.params[row]
    order = support(processed, params) if params.temperature > 0.0 else np.argsort(-processed, kind="stable")
    scores = processed[order].astype(np.float64)
    if params.temperature > 0.0:
        scores = perturbed(processed, order, params.temperature, int(table.keys[row]), int(table.positions[row]))
    best = np.argsort(-scores, kind="stable")[:k]
    ids, best_scores = order[best].astype(np.int64), scores[best]
    missing = k - len(ids)
    return np.pad(ids, (0, missing), constant_values=-1), np.pad(best_scores, (0, missing), constant_values=-np.inf)
