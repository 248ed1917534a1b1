"""Draws for rejection acceptance: what was sent is exactly what was sampled from (chi-square, with a broken twin that fails)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from fakes_drafting import TableEngine
from outrider.drafting.contract import ProposeRequest, SourceSession
from outrider.drafting.draft_rows import RowDrawer, draft_probs
from outrider.drafting.model_source import ModelSource
from outrider.session.guess_tree import GuessTree
from outrider.types.frames import DraftLimits, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import ROOT, DraftRow

NUM_DRAWS = 4000
TOP_IDS = np.array([7, 2, 30, 4, 11], np.int32)
TOP_LOGPROBS = np.log(np.array([0.4, 0.25, 0.15, 0.1, 0.05], np.float32))
SAMPLINGS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_k=4),
    SamplingParams(temperature=1.3, top_p=0.9),
    SamplingParams(temperature=1.0, min_p=0.3),
]


def draw(sampling: SamplingParams, seed: int, num_children: int = 1) -> tuple[DraftRow, list[int]]:
    row, tokens, _ = RowDrawer(sampling, NoiseAddress(seed)).draw(ROOT, 9, TOP_IDS, TOP_LOGPROBS, 7, num_children)
    return row, tokens


def pvalue(sampling: SamplingParams, row: DraftRow) -> float:
    place = {int(token): index for index, token in enumerate(row.ids)}
    counts = np.zeros(len(row.ids))
    for seed in range(NUM_DRAWS):
        counts[place[draw(sampling, seed)[1][0]]] += 1
    expected = row.probs.astype(np.float64) * NUM_DRAWS
    return float(chisquare(counts, expected * counts.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_first_child_is_a_sample_of_the_row_that_is_sent(sampling: SamplingParams) -> None:
    row, _ = draw(sampling, 0)
    assert row.probs.sum() == pytest.approx(1.0, abs=1e-6)
    assert pvalue(sampling, row) > 1e-3


def test_a_row_that_was_not_sampled_from_is_noticed() -> None:
    sampling = SamplingParams(temperature=1.0)
    row, _ = draw(sampling, 0)
    untempered = draft_probs(SamplingParams(temperature=0.8), TOP_LOGPROBS)
    assert pvalue(sampling, DraftRow(ROOT, row.ids, untempered)) < 1e-3


def test_children_are_drawn_without_replacement() -> None:
    row, tokens = draw(SamplingParams(temperature=1.0), 3, num_children=5)
    assert sorted(tokens) == sorted(row.ids.tolist())


def test_the_second_child_follows_the_law_of_sequential_draws() -> None:
    row, _ = draw(SamplingParams(temperature=1.0), 0)
    probs = row.probs.astype(np.float64)
    second = np.array([sum(probs[i] * probs[j] / (1 - probs[i]) for i in range(5) if i != j) for j in range(5)])
    counts = np.zeros(5)
    for seed in range(NUM_DRAWS):
        counts[row.ids.tolist().index(draw(SamplingParams(temperature=1.0), seed, 2)[1][1])] += 1
    assert chisquare(counts, second / second.sum() * NUM_DRAWS).pvalue > 1e-3


def test_without_temperature_the_row_is_the_pick() -> None:
    row, tokens = draw(SamplingParams(temperature=0.0), 1, num_children=3)
    assert (row.ids.tolist(), row.probs.tolist(), tokens) == ([7], [1.0], [7])


def test_filters_leave_what_they_should() -> None:
    assert len(draft_probs(SamplingParams(temperature=1.0, top_k=2), TOP_LOGPROBS)) == 2
    assert len(draft_probs(SamplingParams(temperature=1.0, top_p=0.6), TOP_LOGPROBS)) == 2
    assert len(draft_probs(SamplingParams(temperature=1.0, min_p=0.3), TOP_LOGPROBS)) == 3


@pytest.mark.parametrize("width", [1, 3])
def test_the_source_sends_a_row_for_every_parent_and_ignores_stop_rules(width: int) -> None:
    source = ModelSource(TableEngine())
    limits = DraftLimits(100, 24, width, stop_below=0.99, svip_threshold=1e-6)
    prefix = np.array([1, 2], np.int32)
    source.open(SourceSession(1, prefix, 2, SamplingParams(temperature=1.0), NoiseAddress(5), limits, with_rows=True))
    tree = GuessTree(0, 2)
    rows: dict[int, DraftRow] = {}
    end = TailEnd.MORE
    while end is TailEnd.MORE:
        (proposal,) = source.propose([ProposeRequest(1, 0, 10)])
        tree.append(proposal.tokens, proposal.parents)
        assert proposal.scores is None
        rows.update({row.parent: row for row in proposal.rows})
        end = proposal.end
    assert end in (TailEnd.CREDIT, TailEnd.LIMIT)
    assert tree.num_nodes == (8 if width == 1 else 24)
    assert set(rows) == set(tree.parents)
    for node in range(tree.num_nodes):
        assert tree.tokens[node] in rows[tree.parents[node]].ids
