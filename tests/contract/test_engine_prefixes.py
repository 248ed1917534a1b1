"""Every Engine that shares prefixes shares them alike: what was read is not fed again, and nobody's answer or blocks suffer from it.

Run: pytest tests/contract/test_engine_prefixes.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes_engines import ENGINES, NUM_BLOCKS, VOCAB, feed, ints, results_fail
from outrider.engine.contract import Engine
from outrider.errors import InvalidRequest, Overloaded
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceSpec
from outrider.types.tree import IntArray

LONG_PROMPT: IntArray = np.random.default_rng(4).integers(0, VOCAB, 40).astype(np.int32)
PENALISED: dict[str, Any] = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.3}


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    torch.set_num_threads(1)
    return ENGINES[request.param](tmp_path)


def long_spec(**sampling: Any) -> SequenceSpec:
    return SequenceSpec(SamplingParams(**{"temperature": 0.7, **sampling}), NoiseAddress(11), len(LONG_PROMPT), 90, 16)


def long_answer(engine: Engine, count: int, prompt: IntArray = LONG_PROMPT, **sampling: Any) -> tuple[int, list[int]]:
    """Tokens that need not be fed, and the answer."""
    engine.open(98, long_spec(**sampling), prompt)
    found = engine.cached_len(98)
    tokens, committed = [], prompt[found:]
    for _ in range(count):
        committed = feed(engine, 98, committed).picks
        tokens.append(int(committed[0]))
    engine.close(98)
    return found, tokens


@pytest.mark.parametrize("sampling", [{}, PENALISED], ids=["plain", "penalised"])
def test_a_prompt_that_was_read_is_not_fed_again(engine: Engine, sampling: dict[str, Any]) -> None:
    found, truth = long_answer(engine, 12, **sampling)
    assert found == 0
    assert engine.num_free_blocks == NUM_BLOCKS
    assert long_answer(engine, 12, **sampling) == (32, truth)
    assert long_answer(engine, 12, LONG_PROMPT[:33], **sampling)[0] == 32
    assert long_answer(engine, 12, LONG_PROMPT[:32], **sampling)[0] == 16
    assert engine.num_free_blocks == NUM_BLOCKS


def test_an_open_sequence_shares_what_it_has_read(engine: Engine) -> None:
    _, truth = long_answer(engine, 8)
    engine.open(1, long_spec(), LONG_PROMPT[::-1])
    engine.open(2, long_spec(), LONG_PROMPT[::-1])
    assert engine.cached_len(1) == engine.cached_len(2) == engine.match_prefix(2, LONG_PROMPT[::-1]) == 0
    feed(engine, 1, LONG_PROMPT[::-1])
    free = engine.num_free_blocks
    assert engine.match_prefix(2, LONG_PROMPT[::-1]) == engine.cached_len(2) == 32
    assert engine.num_free_blocks == free + 2
    with pytest.raises(InvalidRequest):
        engine.match_prefix(2, LONG_PROMPT)
    first = feed(engine, 2, LONG_PROMPT[::-1][32:]).picks
    engine.close(1)
    engine.truncate(2, len(LONG_PROMPT) - 20)
    assert feed(engine, 2, LONG_PROMPT[::-1][20:]).picks.tolist() == first.tolist()
    engine.close(2)
    assert engine.num_free_blocks == NUM_BLOCKS
    assert long_answer(engine, 8) == (32, truth)


def test_a_cut_into_a_shared_block_leaves_the_others_theirs(engine: Engine) -> None:
    _, truth = long_answer(engine, 8)
    for sequence in (1, 2):
        engine.open(sequence, long_spec(), LONG_PROMPT)
        feed(engine, sequence, LONG_PROMPT[engine.cached_len(sequence) :])
    engine.truncate(1, 20)
    feed(engine, 1, ints(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14), ints(15, 16), ints(-1, 0))
    engine.keep(1, (0, 1))
    answer, committed = truth[:1], ints(truth[0])
    while len(answer) < 8:
        committed = feed(engine, 2, committed).picks
        answer.append(int(committed[0]))
    assert answer == truth
    engine.close(1)
    engine.close(2)
    assert engine.num_free_blocks == NUM_BLOCKS
    assert long_answer(engine, 8) == (32, truth)


def test_what_a_failed_step_fed_is_not_found(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.open(1, long_spec())
    with results_fail(engine, monkeypatch):
        feed(engine, 1, LONG_PROMPT)
    engine.open(2, long_spec(), LONG_PROMPT)
    assert engine.cached_len(2) == 0


def test_many_sessions_over_shared_prefixes_lose_no_block(engine: Engine) -> None:
    generator = np.random.default_rng(7)
    prompts = [np.concatenate([LONG_PROMPT[:32], ints(*generator.integers(0, VOCAB, 3))]) for _ in range(3)]
    truths = [long_answer(engine, 6, prompt)[1] for prompt in prompts]
    live: dict[int, int] = {}
    for turn in range(80):
        if live and generator.random() < 0.5:
            sequence = int(generator.choice(list(live)))
            which = live.pop(sequence)
            cut = int(generator.integers(0, len(prompts[which])))
            try:
                engine.truncate(sequence, cut)
            except Overloaded:
                cut = engine.cached_len(sequence)
            told = np.concatenate([prompts[which], ints(*truths[which])])
            assert feed(engine, sequence, told[cut:-1]).picks.tolist() == truths[which][-1:]
            engine.close(sequence)
            continue
        which = int(generator.integers(0, 3))
        try:
            engine.open(turn, long_spec(), prompts[which])
        except Overloaded:
            continue
        live[turn] = which
        assert feed(engine, turn, prompts[which][engine.cached_len(turn) :]).picks.tolist() == truths[which][:1]
    for sequence in live:
        engine.close(sequence)
    assert engine.num_free_blocks == NUM_BLOCKS
