"""Every Engine keeps the same promises: steps, trees, keep, truncate, admission, and not a block lost.

Run: pytest tests/contract/test_engine_contract.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes_engines import BLOCK_LEN, ENGINES, MAX_ROWS, NONE, NUM_BLOCKS, VOCAB, feed, ints, results_fail
from outrider.engine.contract import Engine, EngineLimits
from outrider.errors import AlreadyExists, DoesNotFit, InvalidRequest, Overloaded, UnknownSession
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.step import SequenceRows, SequenceSpec, StepPlan

PROMPT = np.asarray([5, 9, 2, 40, 7, 7, 31, 60, 3, 18, 25], np.int32)


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    torch.set_num_threads(1)
    return ENGINES[request.param](tmp_path)


def spec(max_len: int = 60, max_nodes: int = 16, **sampling: Any) -> SequenceSpec:
    return SequenceSpec(SamplingParams(**{"temperature": 0.7, **sampling}), NoiseAddress(11), len(PROMPT), max_len, max_nodes)


def plain(engine: Engine, count: int, **sampling: Any) -> list[int]:
    engine.open(99, spec(**sampling))
    tokens, committed = [], PROMPT
    for _ in range(count):
        committed = feed(engine, 99, committed).picks
        tokens.append(int(committed[0]))
    engine.close(99)
    return tokens


def test_limits_and_identity_are_consistent(engine: Engine) -> None:
    assert engine.limits == EngineLimits(MAX_ROWS, BLOCK_LEN, NUM_BLOCKS, 512, prefix_cache=True)
    assert engine.num_free_blocks == NUM_BLOCKS
    assert engine.identity.vocab_size == VOCAB
    assert engine.identity.fingerprint


def test_a_step_that_raises_has_changed_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = plain(engine, 8, repetition_penalty=1.5)
    engine.open(1, spec(repetition_penalty=1.5))
    with results_fail(engine, monkeypatch):
        feed(engine, 1, PROMPT, ints(*truth[:2]), ints(-1, 0))
    assert engine.cached_len(1) == 0
    assert feed(engine, 1, PROMPT, ints(*truth[:2]), ints(-1, 0)).picks.tolist() == truth[:3]
    with results_fail(engine, monkeypatch):
        feed(engine, 1, tokens=ints(9, truth[2]), parents=ints(0, 1))
    assert feed(engine, 1, tokens=ints(truth[2]), parents=ints(1)).picks.tolist() == truth[3:4]
    engine.keep(1, (0, 1, 2))
    with results_fail(engine, monkeypatch):
        feed(engine, 1, ints(truth[3]), ints(4), ints(-1))
    assert engine.cached_len(1) == len(PROMPT) + 3
    assert feed(engine, 1, ints(truth[3]), ints(truth[4]), ints(-1)).picks.tolist() == truth[4:6]


def test_an_engine_with_threads_of_its_own_takes_plans_that_lend_it_more(engine: Engine) -> None:
    truth = plain(engine, 4)
    assert engine.limits.lent_threads == 0
    engine.open(1, spec())
    tokens, committed = [], PROMPT
    for lent_threads in (3, 0, 1, 64):
        committed = engine.step(StepPlan((SequenceRows(1, committed, NONE, NONE),), lent_threads)).results[0].picks
        tokens.append(int(committed[0]))
        engine.end_loan()
    assert tokens == truth
    assert torch.get_num_threads() == 1


def test_prefill_in_chunks_gives_the_same_picks(engine: Engine) -> None:
    truth = plain(engine, 6)
    engine.open(1, spec())
    for begin in range(0, len(PROMPT) - 1, 3):
        rows = SequenceRows(1, PROMPT[begin : min(begin + 3, len(PROMPT) - 1)], NONE, NONE, wanted=False)
        assert len(engine.step(StepPlan((rows,))).results[0].picks) == 0
    assert engine.cached_len(1) == len(PROMPT) - 1
    tokens, committed = [], PROMPT[-1:]
    for _ in range(6):
        committed = feed(engine, 1, committed).picks
        tokens.append(int(committed[0]))
    assert tokens == truth


def test_a_right_chain_is_picked_through_and_kept_in_place(engine: Engine) -> None:
    truth = plain(engine, 10)
    engine.open(1, spec())
    first = feed(engine, 1, PROMPT, ints(*truth[:4]), ints(-1, 0, 1, 2))
    assert first.picks.tolist() == truth[:5]
    assert len(engine.keep(1, (0, 1, 2, 3))) == 0
    assert engine.cached_len(1) == len(PROMPT) + 4
    assert feed(engine, 1, ints(truth[4]), ints(*truth[5:8]), ints(-1, 0, 1)).picks.tolist() == truth[5:9]


def test_the_true_path_of_a_scattered_tree_survives_compaction(engine: Engine) -> None:
    truth = plain(engine, 12)
    wrong = [(token + 1) % VOCAB for token in truth]
    engine.open(1, spec())
    tokens = ints(wrong[0], truth[0], wrong[1], 3, truth[1], truth[2], wrong[3], truth[3])
    parents = ints(-1, -1, 1, 0, 1, 4, 5, 5)
    picks = feed(engine, 1, PROMPT, tokens, parents).picks
    assert [int(picks[row]) for row in (0, 2, 5, 6, 8)] == truth[:5]
    engine.keep(1, (1, 4, 5, 7))
    assert engine.cached_len(1) == len(PROMPT) + 4
    answer, committed = truth[:4], ints(truth[4])
    while len(answer) < 11:
        answer.append(int(committed[0]))
        committed = feed(engine, 1, committed).picks
    assert answer == truth[:11]


def test_wrong_nodes_pick_what_their_own_path_says(engine: Engine) -> None:
    engine.open(1, spec())
    picks = feed(engine, 1, PROMPT, ints(4, 8, 15), ints(-1, -1, 1)).picks
    engine.close(1)
    for path, row in (([4], 1), ([8], 2), ([8, 15], 3)):
        engine.open(1, spec())
        alone = feed(engine, 1, PROMPT, ints(*path), ints(*range(-1, len(path) - 1)))
        assert alone.picks[-1] == picks[row]
        engine.close(1)


def test_nodes_of_earlier_steps_stay_live_and_may_be_parents(engine: Engine) -> None:
    truth = plain(engine, 8)
    engine.open(1, spec())
    feed(engine, 1, PROMPT, ints(9, truth[0]), ints(-1, -1))
    second = feed(engine, 1, NONE, ints(truth[1], 77, truth[2]), ints(1, 0, 2))
    assert [int(second.picks[0]), int(second.picks[2])] == truth[2:4]
    assert engine.cached_len(1) == len(PROMPT)
    engine.keep(1, (1, 2, 4))
    assert engine.cached_len(1) == len(PROMPT) + 3
    assert feed(engine, 1, ints(truth[3])).picks.tolist() == truth[4:5]


def test_keep_with_subtree_reindexes_descendants(engine: Engine) -> None:
    truth = plain(engine, 9)
    engine.open(1, spec())
    # 0: decoy, 1: t0, 2: decoy below 0, 3: t1, 4: decoy below 1, 5: t2, 6: decoy below 3
    tokens = ints(9, truth[0], 33, truth[1], 44, truth[2], 55)
    feed(engine, 1, PROMPT, tokens, ints(-1, -1, 0, 1, 1, 3, 3))
    assert engine.keep(1, (1,), subtree=True).tolist() == [3, 4, 5, 6]
    assert engine.cached_len(1) == len(PROMPT) + 1
    deeper = feed(engine, 1, NONE, ints(truth[3], 66), ints(2, -1))
    assert int(deeper.picks[0]) == truth[4]
    assert engine.keep(1, (0, 2), subtree=True).tolist() == [4]
    assert int(feed(engine, 1, NONE, ints(truth[4]), ints(0)).picks[0]) == truth[5]
    assert engine.keep(1, (), subtree=True).tolist() == [0, 1]
    engine.keep(1, (0, 1))
    assert feed(engine, 1, ints(truth[5])).picks.tolist() == truth[6:7]


def test_truncate_forgets_tokens_and_nodes(engine: Engine) -> None:
    truth = plain(engine, 6, frequency_penalty=0.4)
    engine.open(1, spec(frequency_penalty=0.4))
    feed(engine, 1, PROMPT, ints(1, 2), ints(-1, 0))
    engine.keep(1, (0, 1))
    feed(engine, 1, ints(3), ints(4), ints(-1))
    engine.truncate(1, len(PROMPT) - 2)
    assert engine.cached_len(1) == len(PROMPT) - 2
    answer, committed = [], PROMPT[-2:]
    for _ in range(6):
        committed = feed(engine, 1, committed).picks
        answer.append(int(committed[0]))
    assert answer == truth


def test_penalties_follow_the_path(engine: Engine) -> None:
    penalised: dict[str, Any] = {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.3}
    truth = plain(engine, 10, **penalised)
    engine.open(1, spec(**penalised))
    tokens = ints(truth[1], truth[0], truth[1], truth[2], truth[3])
    picks = feed(engine, 1, PROMPT, tokens, ints(-1, -1, 1, 2, 3)).picks
    assert [int(picks[row]) for row in (0, 2, 3, 4, 5)] == truth[:5]


def test_neighbours_do_not_change_picks(engine: Engine) -> None:
    truth = plain(engine, 4)
    for sequence in (1, 2, 3):
        engine.open(sequence, spec())
    rows = (
        SequenceRows(2, ints(50, 51, 52), ints(1, 2), ints(-1, -1)),
        SequenceRows(1, PROMPT, ints(*truth[:2]), ints(-1, 0)),
        SequenceRows(3, ints(13), NONE, NONE, wanted=False),
    )
    result = engine.step(StepPlan(rows))
    assert result.num_rows == 5 + len(PROMPT) + 2 + 1
    assert [entry.sequence for entry in result.results] == [2, 1, 3]
    assert result.results[1].picks.tolist() == truth[:3]
    assert [len(entry.picks) for entry in result.results] == [3, 3, 0]


def test_candidates_begin_with_the_pick(engine: Engine) -> None:
    engine.open(1, spec())
    rows = SequenceRows(1, PROMPT, ints(6), ints(-1), num_choices=3)
    result = engine.step(StepPlan((rows,))).results[0]
    assert result.choices is not None
    assert result.choices.ids.shape == result.choices.scores.shape == result.choices.probs.shape == (2, 3)
    assert result.choices.entropy.shape == (2,)
    assert result.choices.ids[:, 0].tolist() == result.picks.tolist()
    assert all(len(set(row)) == 3 for row in result.choices.ids.tolist())
    engine.close(1)
    engine.open(1, spec())
    assert feed(engine, 1, PROMPT, ints(6), ints(-1)).picks.tolist() == result.picks.tolist()


SECONDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "warm": {"temperature": 0.9},
    "top k": {"temperature": 0.9, "top_k": 3},
    "nearly one left": {"temperature": 0.9, "top_k": 1},
    "filtered": {"temperature": 1.2, "top_p": 0.8, "min_p": 0.02},
    "penalised": {"temperature": 0.9, "repetition_penalty": 1.3},
}


@pytest.mark.parametrize("sampling", list(SECONDS))
def test_seconds_are_the_second_draws_and_change_nothing_else(engine: Engine, sampling: str) -> None:
    """Of committed tokens alone and of a tree; where there is no second draw none is given."""
    changes = SECONDS[sampling]
    for fed in ((PROMPT, NONE, NONE), (PROMPT, ints(5, 6, 8, 9), ints(-1, 0, 0, -1))):
        results = []
        for asked in ({}, {"seconds": True}, {"num_choices": 2}):
            engine.open(1, spec(**changes))
            results.append(engine.step(StepPlan((SequenceRows(1, *fed, pick_probs=True, **asked),))).results[0])
            engine.close(1)
        bare, hedged, drawn = results
        assert bare.seconds is drawn.seconds is None
        assert hedged.picks.tolist() == bare.picks.tolist()
        assert hedged.pick_probs is not None
        assert bare.pick_probs is not None
        assert hedged.pick_probs.tolist() == pytest.approx(bare.pick_probs.tolist(), rel=1e-5)
        assert hedged.seconds is not None
        assert drawn.choices is not None
        there = np.isfinite(drawn.choices.scores[:, 1])
        assert hedged.seconds.ids.dtype == np.int32
        assert hedged.seconds.ids.tolist() == np.where(there, drawn.choices.ids[:, 1], -1).tolist()
        behind = np.where(there, drawn.choices.scores[:, 0] - drawn.choices.scores[:, 1], np.nan)
        np.testing.assert_allclose(hedged.seconds.behind, behind, atol=1e-4)


def test_the_coupled_verdict_walks_the_picks_and_brings_logprobs(engine: Engine) -> None:
    truth = plain(engine, 6)
    wrong = (truth[1] + 1) % VOCAB
    engine.open(1, spec())
    tokens, parents = ints(truth[0], wrong, 1), ints(-1, 0, 1)
    rows = SequenceRows(1, PROMPT, tokens, parents, acceptance="coupled", top_logprobs=2)
    result = engine.step(StepPlan((rows,))).results[0]
    assert result.verdict is not None
    assert (result.verdict.path, result.verdict.emitted, result.verdict.bonus) == ((0,), truth[1], False)
    assert result.logprobs is not None
    assert result.logprobs.chosen.shape == (2,)
    assert result.logprobs.top_ids.shape == result.logprobs.top.shape == (2, 2)
    assert (result.logprobs.top[:, 0] >= result.logprobs.chosen).all()
    engine.keep(1, result.verdict.path)
    rows = SequenceRows(1, ints(truth[1]), ints(truth[2]), ints(-1), acceptance="coupled")
    verdict = engine.step(StepPlan((rows,))).results[0].verdict
    assert verdict is not None
    assert (verdict.path, verdict.emitted, verdict.bonus) == ((0,), truth[3], True)
    engine.keep(1, (0,))
    verdict = engine.step(StepPlan((SequenceRows(1, ints(truth[3]), NONE, NONE, acceptance="coupled"),))).results[0].verdict
    assert verdict is not None
    assert (verdict.path, verdict.emitted, verdict.bonus) == ((), truth[4], True)


def test_admission_is_refused_before_anything_is_held(engine: Engine) -> None:
    with pytest.raises(DoesNotFit):
        engine.open(1, spec(max_len=513))
    with pytest.raises(DoesNotFit):
        engine.open(1, spec(max_len=NUM_BLOCKS * BLOCK_LEN, max_nodes=1))
    with pytest.raises(InvalidRequest, match="temperature"):
        engine.open(1, spec(temperature=-1.0))
    assert engine.num_free_blocks == NUM_BLOCKS
    engine.open(1, spec(max_len=BLOCK_LEN * (NUM_BLOCKS - 2) - 16))
    assert engine.num_free_blocks == 2
    with pytest.raises(AlreadyExists):
        engine.open(1, spec())
    with pytest.raises(Overloaded):
        engine.open(2, spec(max_len=17))
    assert engine.num_free_blocks == 2
    engine.close(1)
    assert engine.num_free_blocks == NUM_BLOCKS
    with pytest.raises(UnknownSession):
        engine.close(1)


def test_a_text_grows_into_room_that_is_reserved_for_it_and_no_pick_is_another(engine: Engine) -> None:
    truth = plain(engine, 44)
    engine.open(1, replace(spec(), first_len=len(PROMPT)), PROMPT)
    room = BLOCK_LEN  # 11 tokens and 16 nodes are two blocks
    assert engine.num_free_blocks == NUM_BLOCKS - 2
    engine.open(2, spec(max_len=len(PROMPT), max_nodes=5))  # what follows in the pool is another's
    committed = PROMPT
    for begin in range(0, 40, 4):
        if engine.cached_len(1) + len(committed) > room:
            with pytest.raises(InvalidRequest, match="room"):
                feed(engine, 1, committed)
            room += BLOCK_LEN
            engine.reserve(1, room)
        picks = feed(engine, 1, committed, ints(*truth[begin : begin + 3]), ints(-1, 0, 1)).picks
        assert picks.tolist() == truth[begin : begin + 4]
        engine.keep(1, (0, 1, 2))
        committed = picks[-1:]
    assert engine.num_free_blocks == NUM_BLOCKS - 1 - (room + 16) // BLOCK_LEN
    engine.close(1)
    engine.close(2)
    assert engine.num_free_blocks == NUM_BLOCKS


def test_room_is_never_less_than_it_was_nor_more_than_there_is(engine: Engine) -> None:
    engine.open(1, replace(spec(), first_len=20))
    engine.open(2, spec(max_len=BLOCK_LEN * (NUM_BLOCKS - 4) - 16))
    assert engine.num_free_blocks == 1
    engine.reserve(1, 3)
    assert engine.num_free_blocks == 1
    with pytest.raises(Overloaded):
        engine.reserve(1, 60)
    assert engine.num_free_blocks == 1
    with pytest.raises(UnknownSession):
        engine.reserve(3, 1)
    feed(engine, 1, PROMPT)
    assert engine.cached_len(1) == len(PROMPT)
    engine.close(2)
    engine.reserve(1, 1000)
    assert engine.num_free_blocks == NUM_BLOCKS - 5, "60 tokens are the most it may have, with 16 nodes"
    for first_len in (-1, 61):
        with pytest.raises(InvalidRequest, match="first_len"):
            engine.open(2, replace(spec(), first_len=first_len))
    with pytest.raises(InvalidRequest, match="first_len"):
        engine.open(2, replace(spec(), first_len=len(PROMPT) - 1), PROMPT)
    assert engine.num_free_blocks == NUM_BLOCKS - 5


BAD_ROWS = {
    "unknown sequence": SequenceRows(7, PROMPT, NONE, NONE),
    "token beyond the vocabulary": SequenceRows(1, ints(VOCAB), NONE, NONE),
    "negative node": SequenceRows(1, ints(1), ints(-2), ints(-1)),
    "parent is itself": SequenceRows(1, ints(1), ints(2, 3), ints(-1, 1)),
    "parent below the root": SequenceRows(1, ints(1), ints(2), ints(-2)),
    "too many nodes": SequenceRows(1, ints(1), np.zeros(17, np.int32), np.full(17, -1, np.int32)),
    "beyond max_len": SequenceRows(1, np.zeros(61, np.int32), NONE, NONE),
    "no rows": SequenceRows(1, NONE, NONE, NONE),
    "an acceptance rule nobody wrote": SequenceRows(1, ints(1), NONE, NONE, acceptance="hopeful"),
    "a verdict without the root's row": SequenceRows(1, NONE, ints(2), ints(-1), acceptance="coupled"),
    "lengths differ": SequenceRows(1, ints(1), ints(2, 3), ints(-1)),
}


@pytest.mark.parametrize("case", list(BAD_ROWS))
def test_bad_plans_change_nothing(engine: Engine, case: str) -> None:
    truth = plain(engine, 2)
    engine.open(1, spec())
    engine.open(2, spec())
    good = SequenceRows(2, ints(1, 2), ints(5), ints(-1))
    with pytest.raises((InvalidRequest, UnknownSession)):
        engine.step(StepPlan((good, BAD_ROWS[case])))
    assert engine.cached_len(1) == engine.cached_len(2) == 0
    assert feed(engine, 1, PROMPT).picks.tolist() == truth[:1]
    assert len(feed(engine, 2, ints(1, 2), ints(5), ints(-1)).picks) == 2


def test_committed_tokens_are_refused_while_nodes_live(engine: Engine) -> None:
    engine.open(1, spec())
    with pytest.raises(InvalidRequest):
        feed(engine, 1, NONE, ints(1), ints(-1))
    feed(engine, 1, PROMPT, ints(1, 2), ints(-1, -1))
    with pytest.raises(InvalidRequest):
        feed(engine, 1, ints(3))
    with pytest.raises(InvalidRequest):
        engine.keep(1, (0, 1))
    with pytest.raises(InvalidRequest):
        engine.keep(1, (2,))
    with pytest.raises(InvalidRequest):
        engine.truncate(1, len(PROMPT) + 1)
    engine.keep(1, ())
    assert engine.cached_len(1) == len(PROMPT)
    with pytest.raises(InvalidRequest):
        engine.step(StepPlan((SequenceRows(1, np.zeros(40, np.int32), NONE, NONE), SequenceRows(1, ints(1), NONE, NONE))))
    with pytest.raises(InvalidRequest):
        engine.step(StepPlan(()))


def test_no_block_is_lost_over_many_sessions(engine: Engine) -> None:
    generator = np.random.default_rng(2)
    live: list[int] = []
    for turn in range(60):
        if live and generator.random() < 0.45:
            engine.close(live.pop(int(generator.integers(len(live)))))
        else:
            try:
                engine.open(turn, spec(max_len=int(generator.integers(12, 90)), max_nodes=int(generator.integers(0, 16))))
            except Overloaded:
                continue
            live.append(turn)
            feed(engine, turn, PROMPT)
    for sequence in live:
        engine.close(sequence)
    assert engine.num_free_blocks == NUM_BLOCKS
