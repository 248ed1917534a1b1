"""Penalties and logit bias along tree paths: the sparse, incremental way equals recounting every row's whole history."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from outrider.engine.sampling.penalties import apply_penalties
from outrider.engine.sampling.penalty_state import PenaltyState
from outrider.engine.sampling.pick import pick
from outrider.engine.sampling.rows import RowSampling
from outrider.noise.reference_pick import pick_processed, processed_logits, reference_pick
from outrider.types.sampling import MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY, SamplingParams
from outrider_kernels.thin_touched import UNSEEN

VOCAB = 60
CASES = (
    SamplingParams(),
    SamplingParams(repetition_penalty=1.3),
    SamplingParams(presence_penalty=0.7),
    SamplingParams(frequency_penalty=-0.4),
    SamplingParams(repetition_penalty=0.8, presence_penalty=-0.5, frequency_penalty=0.9, top_p=0.8),
    SamplingParams(logit_bias=((3, 5.0), (17, -100.0))),
    SamplingParams(repetition_penalty=1.7, frequency_penalty=0.3, logit_bias=((0, -3.0), (5, 2.5), (59, 1.0)), top_k=9),
    SamplingParams(temperature=0.0, presence_penalty=1.5, repetition_penalty=1.2),
)


def random_history(generator: np.random.Generator) -> tuple[list[int], list[int], tuple[list[int], ...]]:
    prompt, output = generator.integers(0, VOCAB, 30).tolist(), generator.integers(0, VOCAB, 100).tolist()
    paths = tuple(generator.integers(0, VOCAB, length).tolist() for length in (0, 1, 2, 5))
    return prompt, output, paths


def grown_state(params: SamplingParams, prompt: list[int], output: list[int]) -> PenaltyState:
    """A state that was grown commit by commit, as an engine does."""
    state = PenaltyState(params, prompt)
    for begin in range(0, len(output), 7):
        state.append(output[begin : begin + 7])
    return state


@pytest.mark.parametrize("seed", range(5))
def test_processed_logits_equal_a_recount_of_every_history(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rows, expected, blocks = [], [], []
    for params in CASES:
        prompt, output, paths = random_history(generator)
        logits = (generator.standard_normal((len(paths), VOCAB)) * 4).astype(np.float32)
        blocks.append(logits)
        rows.append(RowSampling(params, 9, np.arange(len(paths)), grown_state(params, prompt, output), paths))
        expected += [processed_logits(row, params, prompt, output + path) for row, path in zip(logits, paths, strict=True)]
    processed = apply_penalties(torch.from_numpy(np.concatenate(blocks)), rows)
    assert np.array_equal(processed.numpy().view(np.int32), np.stack(expected).view(np.int32))


@pytest.mark.parametrize("params", CASES)
def test_picks_follow_the_path(params: SamplingParams) -> None:
    generator = np.random.default_rng(77)
    prompt, output, paths = random_history(generator)
    logits = (generator.standard_normal((len(paths), VOCAB)) * 2).astype(np.float32)
    positions = len(prompt) + len(output) + np.array([len(path) for path in paths])
    picks = pick(torch.from_numpy(logits), [RowSampling(params, 31, positions, grown_state(params, prompt, output), paths)])
    for row, path in enumerate(paths):
        assert int(picks[row]) == reference_pick(logits[row], params, 31, int(positions[row]), prompt, output + path)


def test_forgetting_the_path_is_caught() -> None:
    """The recount can fail: dropping the paths changes the result."""
    params = SamplingParams(frequency_penalty=0.5)
    logits: npt.NDArray[np.float32] = np.ones((2, VOCAB), np.float32)
    with_paths = apply_penalties(torch.from_numpy(logits), [RowSampling(params, 1, np.arange(2), PenaltyState(params), ([], [4, 4]))])
    without = apply_penalties(torch.from_numpy(logits), [RowSampling(params, 1, np.arange(2), PenaltyState(params))])
    assert with_paths[1, 4] == 0.0
    assert without[1, 4] == 1.0
    assert torch.equal(with_paths[0], without[0])


def test_repetition_counts_the_prompt_and_the_others_do_not() -> None:
    logits = torch.ones(1, VOCAB)
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.125)
    state = PenaltyState(params, prompt=[5], output=[6, 6])
    processed = apply_penalties(logits, [RowSampling(params, 1, np.arange(1), state)])
    assert processed[0, [4, 5, 6]].tolist() == [1.0, 0.5, 0.5 - 2 * 0.125 - 0.25]


def test_logits_are_not_written_to_and_not_copied_without_need() -> None:
    logits = torch.ones(1, VOCAB)
    plain = RowSampling(SamplingParams(), 1, np.arange(1), PenaltyState(SamplingParams(), [1], [2]))
    assert apply_penalties(logits, [plain]) is logits
    params = SamplingParams(presence_penalty=1.0)
    penalised = RowSampling(params, 1, np.arange(1), PenaltyState(params, [1], [2]))
    assert apply_penalties(logits, [penalised])[0, 2] == 0.0
    assert logits[0, 2] == 1.0


def test_a_state_holds_more_distinct_tokens_than_it_was_made_for() -> None:
    state = PenaltyState(SamplingParams(frequency_penalty=1.0, logit_bias=((4, 2.0), (900, -1.0))), range(500), [3, 700, 3])
    assert sorted(state.ids.tolist()) == [*range(500), 700, 900]
    told = dict(zip(state.ids.tolist(), zip(state.counts.tolist(), state.biases.tolist(), strict=True), strict=True))
    assert [told[token] for token in (3, 4, 5, 700, 900)] == [(2, 0.0), (0, 2.0), (0, 0.0), (1, 0.0), (UNSEEN, -1.0)]
    assert (state.bias(4), state.bias(5), state.bias(9999)) == (2.0, 0.0, 0.0)
    assert (state.output_count(3), state.output_count(700), state.output_count(4), state.output_count(9999)) == (2, 1, 0, 0)


@pytest.mark.parametrize("repetition", [MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY])
@pytest.mark.parametrize("scale", [-1e4, 1e4])
def test_the_strongest_penalties_allowed_leave_finite_logits_to_pick_from(repetition: float, scale: float) -> None:
    vocab = 40
    params = SamplingParams(
        temperature=0.8,
        top_p=0.9,
        repetition_penalty=repetition,
        presence_penalty=2.0,
        frequency_penalty=2.0,
        logit_bias=tuple((token, 100.0) for token in range(vocab)),
    )
    params.check(vocab)
    rows = [RowSampling(params, 12345, np.array([3, 4]), PenaltyState(params, range(vocab), [5] * 1000))]
    logits = torch.linspace(0.5, 1.0, 2 * vocab).reshape(2, vocab) * scale
    processed = apply_penalties(logits, rows)
    assert bool(torch.isfinite(processed).all())
    slow = [pick_processed(row.numpy(), params, 12345, position) for row, position in zip(processed, (3, 4), strict=True)]
    assert pick(logits, rows).tolist() == slow
