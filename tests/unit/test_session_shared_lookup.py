"""Guesses from other answers: followed while they are right, left where the own text promises more, judged apart, clipped like all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fakes import TruthTable
from fakes_simulation import spec_of
from outrider.session.lookup_guesses import LookupGuesses
from outrider.session.lookup_odds import LookupOdds
from outrider.session.shared_lookup import END_LEN, FIRST_SHARED_RIGHTS, LEAST_LEFT, SharedLookup
from outrider.types.tree import IntArray

TABLE = TruthTable(vocab_size=1000)
PROMPT = list(range(100, 120))
SURE = (0.9,) * 6


class OtherText:
    """One other answer: found where the whole end given occurs in it."""

    def __init__(self, tokens: Sequence[int], max_len: int = 16) -> None:
        self.tokens = list(tokens)
        self.max_len = max_len
        self.num_asked = 0

    def find(self, end: Sequence[int]) -> tuple[int, Sequence[int]]:
        self.num_asked += 1
        for at in range(len(end), len(self.tokens)):
            if self.tokens[at - len(end) : at] == list(end):
                return len(end), tuple(self.tokens[at : at + self.max_len])
        return 0, ()


def array(tokens: Sequence[int]) -> IntArray:
    return np.asarray(tokens, np.int32)


ANSWER = TABLE.answer(PROMPT, 100, frozenset())


def test_it_follows_the_other_answer_and_asks_before_it_is_used_up() -> None:
    texts, odds = OtherText(PROMPT + ANSWER), LookupOdds(FIRST_SHARED_RIGHTS)
    lookup = SharedLookup(texts, array(PROMPT), odds)
    for at in range(len(ANSWER) - 1):
        assert lookup.match_len == END_LEN
        assert list(lookup.guess(4)) == ANSWER[at : at + 4]
        lookup.extend([ANSWER[at]])
    assert sum(odds.num_tested) == len(ANSWER) - 1, "every token judges, whether its guess was used or not"
    assert odds.rights[-1] > FIRST_SHARED_RIGHTS[-1]
    assert texts.num_asked < 2 + len(ANSWER) / LEAST_LEFT + LEAST_LEFT


def test_a_token_that_differs_ends_it() -> None:
    lookup = SharedLookup(OtherText(PROMPT + ANSWER), array(PROMPT), LookupOdds())
    lookup.extend([ANSWER[0], ANSWER[1] + 1])
    assert lookup.match_len == 0
    assert list(lookup.guess(4)) == []
    assert lookup.odds.num_tested == (0, 0, 0, 0, 0, 2)


def test_it_is_used_up_where_the_other_answer_ends() -> None:
    lookup = SharedLookup(OtherText(PROMPT + ANSWER[:3]), array(PROMPT), LookupOdds())
    lookup.extend(ANSWER[:3])
    assert lookup.match_len == 0
    lookup.extend(ANSWER[3:9])
    assert list(lookup.guess(4)) == []


def test_several_tokens_at_once_are_as_one_by_one() -> None:
    ones, many = (SharedLookup(OtherText(PROMPT + ANSWER), array(PROMPT), LookupOdds()) for _ in range(2))
    for token in ANSWER[:21]:
        ones.extend([token])
    for begin in range(0, 21, 7):
        many.extend(ANSWER[begin : begin + 7])
    assert list(ones.guess(5)) == list(many.guess(5)) == ANSWER[21:26]
    assert ones.odds.num_tested == many.odds.num_tested


def test_a_session_guesses_from_what_promises_more() -> None:
    spec = replace(spec_of(1, PROMPT, 60, TABLE), shared_priors=SURE)
    guesses = LookupGuesses(spec, OtherText(PROMPT + ANSWER))
    assert guesses.are_shared
    assert guesses.chain(8).tokens.tolist() == ANSWER[:8]
    assert guesses.rights[:2] == (0.9, 0.9)
    own = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5, 6, 7, 8]
    text = OtherText([*own, 77, 78, 79])
    spec = spec_of(1, own, 60, TABLE)
    assert LookupGuesses(replace(spec, lookup_priors=SURE, shared_priors=(0.1,) * 6), text).chain(2).tokens.tolist() == [9, 10]
    assert LookupGuesses(replace(spec, lookup_priors=(0.1,) * 6, shared_priors=SURE), text).chain(2).tokens.tolist() == [77, 78]


def test_both_are_judged_by_every_commit_and_apart() -> None:
    own = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5, 6, 7, 8]
    guesses = LookupGuesses(replace(spec_of(1, own, 60, TABLE), lookup_priors=SURE), OtherText([*own, 77, 78, 79]))
    assert not guesses.are_shared
    guesses.observe_commit([77])
    assert guesses.shared_odds.num_tested == (0, 0, 0, 0, 0, 1)
    assert guesses.shared_odds.rights[-1] > FIRST_SHARED_RIGHTS[-1]
    assert guesses.odds.num_tested == (0, 0, 0, 0, 1, 0)
    assert guesses.odds.rights[4] < 0.9
    assert guesses.are_shared, "only the other answer goes on"


def test_a_shared_chain_ends_with_the_answer() -> None:
    stop = ANSWER[3]
    spec = replace(spec_of(1, PROMPT, 60, TABLE, stop_token_ids=frozenset({stop})), shared_priors=SURE)
    assert LookupGuesses(spec, OtherText(PROMPT + ANSWER)).chain(8).tokens.tolist() == ANSWER[:4]
    short = replace(spec_of(1, PROMPT, 3, TABLE), shared_priors=SURE)
    assert LookupGuesses(short, OtherText(PROMPT + ANSWER)).chain(8).tokens.tolist() == ANSWER[:2]


def test_without_other_answers_nothing_changes() -> None:
    assert LookupGuesses(spec_of(1, PROMPT, 60, TABLE)).rights == ()
    assert not LookupGuesses(spec_of(1, PROMPT, 60, TABLE)).are_shared
