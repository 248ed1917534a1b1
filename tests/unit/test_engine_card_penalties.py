"""What penalties and biases change in a step's rows, as the fused pick reads it: with committed tokens of before and of the step, prompt
and output, and paths of nodes, the logits become those of the definition. Rows that touch too many tokens are left.

Run: pytest tests/unit/test_engine_card_penalties.py
"""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from outrider.engine.block_table import BlockTable
from outrider.engine.card_buckets import MAX_TOUCHED
from outrider.engine.card_inputs import CardInputs, CardLayout, CardShape, HostArray
from outrider.engine.card_penalties import fill_touched, touched_tokens
from outrider.engine.card_rules import fill_rules
from outrider.engine.contract import EngineLimits
from outrider.engine.live_tree import LiveTree
from outrider.engine.sequence_state import SequenceState
from outrider.engine.step_batch import StepBatch, build_batch
from outrider.noise import reference_pick
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan
from outrider_kernels.pick_rows import PickRows, TouchedTokens
from outrider_kernels.processed_logits import processed_logits

NUM_IDS, BLOCK_LEN, MAX_LEN = 60, 16, 4000
BIASES = ((2, 3.5), (30, -2.25), (59, 1.0))
SAMPLINGS = {
    "repetition": SamplingParams(repetition_penalty=1.7),
    "all": SamplingParams(repetition_penalty=0.6, presence_penalty=1.1, frequency_penalty=-0.7, logit_bias=BIASES),
    "bias": SamplingParams(logit_bias=BIASES),
    "none": SamplingParams(top_p=0.9),
}


def state_of(index: int, params: SamplingParams, cached: list[int], num_prompt: int) -> SequenceState:
    spec = SequenceSpec(params, NoiseAddress(index), num_prompt, MAX_LEN, 40)
    blocks = [index * 300 + block for block in range(300)]
    state = SequenceState(index, spec, BlockTable(blocks, BLOCK_LEN), LiveTree(40))
    state.append(np.array(cached, np.int32))
    return state


def batch_of(states: list[SequenceState], rows: list[SequenceRows]) -> StepBatch:
    limits = EngineLimits(512, BLOCK_LEN, 1200, MAX_LEN)
    return build_batch(StepPlan(tuple(rows)), dict(enumerate(states)), limits, 1 << 20, 40)


def filled(batch: StepBatch, room: int) -> tuple[CardLayout, CardInputs[HostArray], HostArray, int]:
    """Inputs over words that an earlier step left full of nonsense, and how many rows hold touched tokens."""
    num_rows = max(1, len(batch.wanted()))
    layout = CardLayout(CardShape(batch.num_rows + 3, len(batch.segments), 3, 40, 300, 100, num_rows, room, 1))
    words = np.full(layout.num_words, 0x3A3A3A3A, np.int32)
    inputs = layout.arrays(words)
    fill_rules(inputs, batch, batch.wanted())
    return layout, inputs, words, fill_touched(inputs, batch)


def histories(batch: StepBatch) -> list[tuple[SamplingParams, list[int], list[int]]]:
    """Of each wanted row: its sampling, and the tokens before it, prompt and output."""
    found = []
    for segment in batch.segments:
        state, tree = segment.state, segment.state.tree
        committed = [*state.committed.tolist(), *segment.rows.committed.tolist()]
        paths: list[list[int]] = [[]] if segment.num_committed else []
        paths += [tree.tokens[tree.path_to(node)].tolist() for node in range(segment.live_before, len(tree))]
        num_prompt = state.spec.num_prompt
        found += [(state.spec.sampling, committed[:num_prompt], committed[num_prompt:] + path) for path in paths if segment.num_wanted]
    return found


def random_rows(index: int, chance: np.random.Generator, wanted: bool = True) -> SequenceRows:
    num_committed, num_nodes = int(chance.integers(1, 5)), int(chance.integers(0, 7))
    parents = np.array([int(chance.integers(-1, node)) for node in range(num_nodes)], np.int32)
    committed, tokens = (chance.integers(0, NUM_IDS, count).astype(np.int32) for count in (num_committed, num_nodes))
    return SequenceRows(index, committed, tokens, parents, wanted=wanted)


@pytest.mark.parametrize("seed", range(12))
def test_rows_become_those_of_the_definition(seed: int) -> None:
    chance = np.random.default_rng(seed)
    lens = [int(length) for length in chance.integers(1, 40, 6)]
    samplings = [SAMPLINGS[name] for name in chance.choice(list(SAMPLINGS), 6)]
    states = [
        state_of(index, params, chance.integers(0, NUM_IDS, length).tolist(), int(chance.integers(0, length + 4)))
        for index, (params, length) in enumerate(zip(samplings, lens, strict=True))
    ]
    batch = batch_of(states, [random_rows(index, chance, wanted=index != 3) for index in range(6)])
    layout, inputs, words, num_filled = filled(batch, NUM_IDS)
    expected = histories(batch)
    touching = [row for row, (params, _, _) in enumerate(expected) if params != SAMPLINGS["none"]]
    assert num_filled == (1 + touching[-1] if touching else 0)
    # what lies behind the words that are sent must not matter
    words[layout.used_words(len(batch.segments), num_filled) :] = -1
    logits = torch.from_numpy(chance.normal(0.0, 3.0, (len(expected), NUM_IDS)).astype(np.float32))
    touched = touched_tokens(layout.tensors(torch.from_numpy(words)))
    nothing = torch.zeros(len(expected))
    got = processed_logits(logits, PickRows(nothing, nothing, nothing, touched=_first(touched, len(expected))))
    for row, (params, prompt, output) in enumerate(expected):
        right = reference_pick.processed_logits(logits[row].numpy(), params, prompt, output)
        assert np.array_equal(got[row].numpy(), right), row
    assert not np.isnan(inputs.temperatures[: len(expected)]).any()
    assert (inputs.touched_lens[len(expected) :] == 0).all()


def _first(touched: TouchedTokens, num_rows: int) -> TouchedTokens:
    return TouchedTokens(*(getattr(touched, field.name)[:num_rows] for field in fields(TouchedTokens)))


def test_later_steps_count_what_was_kept() -> None:
    """Counts that grow with commits, and start anew after a truncation."""
    chance = np.random.default_rng(0)
    state = state_of(0, SAMPLINGS["all"], [1, 2, 3], 2)
    for turn in range(6):
        batch = batch_of([state], [random_rows(0, chance)])
        _, inputs, _, _ = filled(batch, NUM_IDS)
        _, prompt, output = histories(batch)[-1]
        row = len(batch.wanted()) - 1
        tokens = inputs.touched[row, : inputs.touched_lens[row]].tolist()
        assert tokens == sorted({*prompt, *output, *dict(BIASES)})
        batch.apply()
        state.take(tuple(state.tree.path_to(len(state.tree) - 1)) if len(state.tree) else (), subtree=False)
        if turn == 3:
            state.cut(5)


def test_rows_with_more_touched_tokens_than_fit_are_left() -> None:
    states = [state_of(index, SAMPLINGS["repetition"], list(range(count)), 0) for index, count in enumerate((MAX_TOUCHED - 1, MAX_TOUCHED))]
    rows = [
        SequenceRows(index, np.array([5000], np.int32), np.array([5000, 5001], np.int32), np.array([-1, 0], np.int32)) for index in (0, 1)
    ]
    _, inputs, _, num_filled = filled(batch_of(states, rows), MAX_TOUCHED)
    assert [math.isnan(value) for value in inputs.temperatures[:6]] == [False, False, True, True, True, True]
    assert inputs.touched_lens[:6].tolist() == [MAX_TOUCHED, MAX_TOUCHED, 0, 0, 0, 0]
    assert num_filled == 6
