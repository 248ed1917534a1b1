"""Biases and penalties on a row of logits, compiled: what they make of it has the definition's bits, and behind the pick all is as it was;
picks, probabilities and seconds are those of logits that were changed before, alone and in chains.

Broken copies of the C file show that the comparisons would notice.
Run: pytest tests/kernels/test_thin_touched.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from broken_c import break_thin
from fakes_chains import NUM_IDS, ChainModel
from mostly_slow import mostly_slow
from outrider.engine.sampling.penalty_state import PenaltyState
from outrider.engine.sampling.quick_picks import pick_rule
from outrider.noise.reference_pick import processed_logits
from outrider.types.sampling import SamplingParams
from outrider_kernels.array_address import address_of
from outrider_kernels.thin_chain import ChainIds, ChainSlots, ChainStart, ThinChain
from outrider_kernels.thin_pick import PICK_ROW, PickRule, ThinPick
from outrider_kernels.thin_team import ThinTeam

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

VOCAB, KEY = 300, 77
PARAMS = {
    "repetition": SamplingParams(temperature=0.8, repetition_penalty=1.3),
    "repetition is sought": SamplingParams(temperature=0.8, top_p=0.8, repetition_penalty=0.7),
    "frequency": SamplingParams(temperature=0.0, frequency_penalty=1.0 / 3.0),  # three times that is 1, but only when it is rounded
    "presence": SamplingParams(temperature=0.8, top_k=20, presence_penalty=-0.61),
    "biases": SamplingParams(temperature=0.8, logit_bias=((0, 3.3), (7, -100.0), (299, 1.1))),
    "all": SamplingParams(
        temperature=1.1, repetition_penalty=1.17, frequency_penalty=0.29, presence_penalty=0.41, logit_bias=((3, 5.1), (200, -2.3))
    ),
}
Case = tuple[FloatArray, PenaltyState, list[int], list[int], IntArray]


def cases(params: SamplingParams) -> list[Case]:
    """Logits, what is counted of prompt and output, those, and a path on which tokens come again; histories of all lengths."""
    found = []
    for seed in range(12):
        chance = np.random.default_rng(seed)
        most = VOCAB if seed % 2 else 9  # of few tokens, each comes often
        prompt, output = (chance.integers(0, most, int(chance.integers(0, 90))).tolist() for _ in range(2))
        path = chance.integers(0, most, (0, 1, 2, 7, 30, 3)[seed % 6]).astype(np.int32)
        logits = (chance.standard_normal(VOCAB) * 4).astype(np.float32)
        logits[chance.integers(0, VOCAB, 20)] = -np.inf
        logits[chance.integers(0, VOCAB, 20)] = 0.0
        logits[chance.random(VOCAB) < 0.3] = 1.0
        state = PenaltyState(params, prompt)
        for begin in range(0, len(output), 7):
            state.append(output[begin : begin + 7])
        found.append((logits, state, prompt, output, path))
    return found


def touch_and_untouch(team: ThinTeam, logits: FloatArray, state: PenaltyState, path: IntArray) -> FloatArray:
    """What the row is in between."""
    own = logits.copy()
    rule = PickRule(KEY, 1.0, touched=state.touched)
    row = bytearray(PICK_ROW.pack(address_of(own), *rule.blank(address_of(path) if len(path) else 0, len(path))[1:]))
    row_address = np.frombuffer(row, np.uint8).ctypes.data
    raw = team.library.thin_touch(row_address)
    between = own.copy()
    team.library.thin_untouch(row_address, raw)
    assert own.tobytes() == logits.tobytes()
    return between


def check_logits(params: SamplingParams) -> None:
    team = ThinTeam(1)
    for logits, state, prompt, output, path in cases(params):
        found = touch_and_untouch(team, logits, state, path)
        right = processed_logits(logits, params, prompt, [*output, *path.tolist()])
        assert (found == right).all(), "a zero may have either sign, which nothing looks at"


@pytest.mark.parametrize("params", list(PARAMS))
def test_touched_logits_are_those_of_the_definition_and_put_back(params: str) -> None:
    check_logits(PARAMS[params])


@pytest.mark.parametrize("with_second", [False, True])
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("params", list(PARAMS))
def test_picks_are_those_of_logits_that_were_changed_before(params: str, num_threads: int, with_second: bool) -> None:
    """Rows of one sequence and a plain one in one call."""
    picker = ThinPick(ThinTeam(num_threads))
    for logits, state, prompt, output, _ in cases(PARAMS[params]):
        paths = [np.array(path, np.int32) for path in ([], [5], [5, 8], [5, 8, 5])]
        rule = pick_rule(PARAMS[params], KEY, True, with_second)
        rows = np.stack([logits] * 5)
        found = picker.run(rows, [(PickRule(KEY, 0.5), [40]), (replace(rule, touched=state.touched), range(50, 54))], {1: paths})
        assert (rows == logits).all()
        changed = np.stack([logits] + [processed_logits(logits, PARAMS[params], prompt, [*output, *path.tolist()]) for path in paths])
        right = picker.run(changed, [(PickRule(KEY, 0.5), [40]), (rule, range(50, 54))])
        for ours, theirs in ((found.tokens, right.tokens), (found.probs, right.probs), (found.seconds, right.seconds)):
            assert (None if ours is None else ours.tobytes()) == (None if theirs is None else theirs.tobytes())


SLOTS = np.arange(64, dtype=np.int64)
WHERE = ChainSlots(SLOTS, np.array([0, 64], np.int64))
PROMPT, OUTPUT = [3, 5, 5, 9], [4, 9, 5, 4, 4]


def chain_of(text: list[int]) -> ThinChain:
    """Of a model that has read all but the last of these."""
    chain = ChainModel(ThinTeam(1)).chain(ChainIds(NUM_IDS))
    chain.follow(ChainStart(text[:-1], 0, 1, 0.0), PickRule(KEY, 1.0), WHERE)
    return chain


def rule_of(params: SamplingParams, output: list[int]) -> PickRule:
    return replace(pick_rule(params, KEY, True), touched=PenaltyState(params, PROMPT, output).touched)


def one_by_one(params: SamplingParams, num_picks: int) -> list[int]:
    """Everything but the newest token counted each time."""
    text = [*PROMPT, *OUTPUT]
    chain = chain_of(text)
    for _ in range(num_picks):
        start = ChainStart(text[-1:], len(text) - 1, 1, 0.0)
        text += chain.follow(start, rule_of(params, text[len(PROMPT) : -1]), WHERE).picks.tolist()
    return text[-num_picks:]


def check_chain(params: SamplingParams) -> None:
    params = replace(params, logit_bias=tuple((token, bias) for token, bias in params.logit_bias if token < NUM_IDS))
    right = one_by_one(params, 20)
    for num_counted in range(len(OUTPUT)):
        start = ChainStart(OUTPUT[-1:], 8, 20, 0.0, before=OUTPUT[num_counted:-1])
        found = chain_of([*PROMPT, *OUTPUT]).follow(start, rule_of(params, OUTPUT[:num_counted]), WHERE)
        assert found.picks.tolist() == right
    start = ChainStart([OUTPUT[-1], *right[:5]], 8, 6, 0.0, 6, before=OUTPUT[2:-1])
    found = chain_of([*PROMPT, *OUTPUT]).follow(start, rule_of(params, OUTPUT[:2]), WHERE)
    assert found.picks.tolist() == right[:6]


@pytest.mark.parametrize("params", list(PARAMS))
def test_a_chain_counts_what_it_was_given_and_what_it_picked(params: str) -> None:
    check_chain(PARAMS[params])


def check_all() -> None:
    for params in PARAMS.values():
        check_logits(params)
        check_chain(params)


BREAKS = {
    "rounded once": (
        "touched.c",
        "    volatile double kept = product;\n    return kept;",
        '    return product;\n}\n#pragma GCC optimize("O2")\nINLINE void nothing(void) {',
    ),
    "nothing is put back": ("touched.c", "row->logits[of->ids[at]] = raw[at];", "(void)raw;"),
    "a path is left there": ("touched.c", "if (is_last(row, at)) row->logits[row->path[at]]", "if (0) row->logits[row->path[at]]"),
    "a path that forgets biases": ("touched.c", "is_known ? of->biases[place] : 0.0", "0.0"),
    "a path that forgets counts": ("touched.c", "before + times_in(", "times_in("),
    "each token of a path once": ("touched.c", "before + times_in(token, row->path, at + 1)", "before + 1"),
    "what comes again is changed twice": ("touched.c", "is_known ? raw[place] : raw_of_path[at]", "raw_of_path[at]"),
    "unseen tokens are penalised": ("touched.c", "if (count >= 0) value", "value"),
    "the prompt counts as output": ("touched.c", "if (count > 0) value", "if (count >= 0) value"),
    "a chain that does not count its picks": ("chain.c", "if (rule->touched) rule->path[rule->path_len++] = rule->token;", ""),
    "rows that count each other": ("chain.c", "rows[row].path_len -= call->num_wanted - 1 - row;", ""),
}


@pytest.mark.parametrize("broken", mostly_slow(BREAKS, 4))
def test_a_broken_copy_would_be_noticed(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_thin(monkeypatch, tmp_path, *BREAKS[broken])
    with pytest.raises(AssertionError):
        check_all()
