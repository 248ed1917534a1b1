"""Prompt lookup: the index against a naive search, its bounds, what it learns of itself, and the chain that a session makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import TruthTable
from fakes_simulation import spec_of
from outrider.session import verifier as verifier_module
from outrider.session.events import RoundPlanned, RoundVerified
from outrider.session.lookup import MAX_MATCH_LEN, MAX_PLACES, TextLookup
from outrider.session.lookup_guesses import LookupGuesses
from outrider.session.lookup_odds import CLASS_LENS, FIRST_RIGHTS, MEMORY, TESTS_TO_REMEMBER, LookupOdds
from outrider.session.opening import VerifierSpec
from outrider.session.pacing.lookup import LookupPacing
from outrider.session.shared_lookup import NO_TEXTS, SharedTexts
from outrider.session.verifier import VerifierSession
from outrider.types.tree import IntArray, Verdict

TABLE = TruthTable(vocab_size=1000)
few_tokens = st.lists(st.integers(0, 3), max_size=60)


def array(tokens: list[int]) -> IntArray:
    return np.asarray(tokens, np.int32)


def looked_up(tokens: list[int], max_len: int = 8) -> list[int]:
    return TextLookup(array(tokens), LookupOdds()).guess(max_len)


def naive_place(tokens: list[int], followed: int = 0, known_len: int = 0) -> int:
    """Of the newest places that the last two tokens were followed at, and the one that is known to go on as the text did, the newest that
    matches longest; else the newest of the last token. 0: none. known_len: tokens that the place followed is known to match."""
    end = len(tokens)
    pairs = [place for place in range(end - 1, 1, -1) if tokens[place - 2 : place] == tokens[end - 2 :]][:MAX_PLACES]
    if pairs:
        lens = {place: naive_match_len(tokens, place) for place in pairs} | ({followed: known_len} if followed else {})
        return max(lens, key=lambda place: (lens[place], place))
    return max((place for place in range(1, end) if tokens[place - 1] == tokens[-1]), default=0)


def naive_match_len(tokens: list[int], place: int) -> int:
    longest = min(MAX_MATCH_LEN, place)
    return next((num for num in range(longest) if tokens[place - num - 1] != tokens[len(tokens) - num - 1]), longest)


def naive_guess(tokens: list[int], place: int, max_len: int) -> list[int]:
    text = list(tokens)
    while place and len(text) < len(tokens) + max_len:
        text.append(text[place + len(text) - len(tokens)])
    return text[len(tokens) :]


# --- where the end of the text occurred before -------------------------------------------------------------------------------


def test_the_longest_end_decides() -> None:
    assert looked_up([1, 2, 3, 9, 7, 2, 3, 8, 1, 2, 3], 1) == [9]


def test_among_equals_the_newest_decides() -> None:
    assert looked_up([5, 6, 1, 0, 5, 6, 2, 0, 5, 6], 2) == [2, 0]


def test_a_text_that_never_repeats_itself_offers_nothing() -> None:
    assert looked_up(list(range(50))) == []
    assert looked_up([7]) == looked_up([]) == []


def test_one_token_alone_is_a_match_when_there_is_no_longer_one() -> None:
    assert looked_up([4, 1, 2, 4], 2) == [1, 2]


def test_a_guess_goes_on_over_its_own_end() -> None:
    assert looked_up([1, 2, 3, 1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]


@given(prefix=few_tokens, commits=st.lists(few_tokens, max_size=4), max_len=st.integers(1, 12))
def test_it_finds_what_a_naive_search_finds(prefix: list[int], commits: list[list[int]], max_len: int) -> None:
    index, text = TextLookup(array(prefix), LookupOdds()), list(prefix)
    place = naive_place(text)
    for token in [token for tokens in commits for token in tokens]:
        match_len = naive_match_len(text, place) if place else 0
        assert index.guess(max_len) == naive_guess(text, place, max_len)
        assert index.match_len == match_len
        index.extend([token])
        text.append(token)
        place = naive_place(text, place + 1, match_len + 1) if place and text[place] == token else naive_place(text)
    assert index.guess(max_len) == naive_guess(text, place, max_len)


@given(tokens=few_tokens, split=st.integers(0, 60))
def test_a_prefix_is_read_as_if_it_had_been_committed(tokens: list[int], split: int) -> None:
    """But for a place that was followed from before the newest of its pair: a prefix is not followed, it is there at once."""
    read, committed = TextLookup(array(tokens), LookupOdds()), TextLookup(array(tokens[:split]), LookupOdds())
    committed.extend(tokens[split:])
    assert (read._singles, read._pairs, read._before) == (committed._singles, committed._pairs, committed._before)
    assert committed.match_len >= read.match_len == (naive_match_len(tokens, naive_place(tokens)) if tokens and naive_place(tokens) else 0)


def test_a_place_that_the_text_follows_is_kept_however_many_newer_ones_its_pair_has() -> None:
    rare, common = [50, 51, 7, 8, 60, 61, 62], [7, 8, 0]
    index = TextLookup(array(rare + [token for _ in range(MAX_PLACES) for token in common] + [50, 51]), LookupOdds())
    for token in (7, 8, 60):
        assert index.guess(1) == [token]
        index.extend([token])
    assert index.match_len == 5


def test_a_place_that_the_text_follows_for_longer_than_is_compared_is_kept_though_a_newer_one_matches_as_much() -> None:
    """Behind a title of its own the passage went on with 1, in the copy that came later with 2."""
    title, passage = list(range(50, 54)), list(range(60, 60 + MAX_MATCH_LEN + 4))
    index = TextLookup(array([*title, *passage, 1, *passage, 2]), LookupOdds())
    index.extend([*title, *passage])
    assert index.guess(1) == [1]
    untitled = TextLookup(array([*title, *passage, 1, *passage, 2]), LookupOdds())
    untitled.extend(passage)
    assert untitled.guess(1) == [2]


def test_memory_is_bounded_by_the_text() -> None:
    index = TextLookup(array(list(range(5_000))), LookupOdds())
    index.extend(range(10_000, 15_000))
    index.extend([1, 2] * 5_000)
    assert len(index._singles) <= len(set(index._tokens))
    assert len(index._pairs) <= 10_003
    assert len(index._before) == len(index._tokens) == 20_000


# --- what it learns of itself ------------------------------------------------------------------------------------------------


def test_every_commit_tells_whether_the_guess_there_was_right() -> None:
    odds = LookupOdds()
    index = TextLookup(array([1, 2, 3, 4, 1, 2]), odds)
    index.extend([3, 4, 9])
    assert odds.num_tested == (0, 1, 2, 0, 0, 0), "two tokens matched, then three, then four"
    assert odds.rights[1] > FIRST_RIGHTS[1]
    index.extend([9])
    assert sum(odds.num_tested) == 3, "nothing was found, so nothing was judged"


def test_odds_follow_the_outcomes_of_their_own_class() -> None:
    odds = LookupOdds()
    for _ in range(200):
        odds.count(2, right=False)
        odds.count(40, right=True)
    assert odds.right(2) < 0.05
    assert odds.right(16) > 0.97
    assert odds.right(3) == odds.right(4) == FIRST_RIGHTS[2]


def test_longer_matches_are_of_later_classes() -> None:
    odds = LookupOdds(tuple(at / 10 for at in range(len(CLASS_LENS))))
    found = [odds.right(length) for length in range(1, 40)]
    assert found == sorted(found)
    assert [odds.right(length) for length in CLASS_LENS] == list(odds.rights)


def test_the_next_session_begins_with_what_this_one_had_enough_of() -> None:
    odds = LookupOdds()
    for _ in range(TESTS_TO_REMEMBER):
        odds.count(8, right=False)
    odds.count(2, right=True)
    known = (0.5,) * len(CLASS_LENS)
    remembered = odds.remembered(known)
    assert remembered[4] == pytest.approx(0.5 + MEMORY * (odds.right(8) - 0.5))
    assert remembered[1] == pytest.approx(0.5 + MEMORY * 0.5 / TESTS_TO_REMEMBER), "one token, and it was right"
    assert (remembered[0], *remembered[2:4], remembered[5]) == (0.5,) * 4


def test_short_answers_teach_those_after_them() -> None:
    """Six tokens of a class each, of which two in three are right: none has enough for a verdict of its own."""
    known: tuple[float, ...] = FIRST_RIGHTS
    for _ in range(40):
        odds = LookupOdds(known)
        for at in range(6):
            odds.count(1, right=at % 3 > 0)
        known = odds.remembered(known)
    assert known[0] == pytest.approx(2.0 / 3.0, abs=0.05)
    assert known[1:] == FIRST_RIGHTS[1:]


# --- the chain of a session --------------------------------------------------------------------------------------------------


def test_a_chain_ends_with_the_answer() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 0, 7, 1, 2]
    guesses = LookupGuesses(spec_of(1, prompt, 40, TABLE, stop_token_ids=frozenset({5})))
    assert guesses.chain(8).tokens.tolist() == [3, 4, 5], "nothing follows a token that ends the answer"
    assert LookupGuesses(spec_of(1, prompt, 3, TABLE)).chain(8).tokens.tolist() == [3, 4], "the last position is the target's own"
    assert LookupGuesses(spec_of(1, prompt, 1, TABLE)).rights == ()
    assert LookupGuesses(spec_of(1, prompt, 40, TABLE, max_draft_len=1)).chain(8).tokens.tolist() == [3]
    assert guesses.chain(2).parents.tolist() == [-1, 0]


def test_a_chain_ends_where_nothing_is_to_be_hoped_for() -> None:
    spec = spec_of(1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2], 40, TABLE)
    assert len(LookupGuesses(replace(spec, lookup_priors=(0.1,) * 6)).rights) == 2
    assert len(LookupGuesses(replace(spec, lookup_priors=(0.9,) * 6)).rights) > 8


def test_a_text_that_repeats_itself_less_than_those_before_is_trusted_less() -> None:
    odds, fair = LookupOdds((0.5,) * 6), LookupOdds((0.5,) * 6)
    for at in range(12):
        odds.count(1, right=False)
        fair.count(1, right=at % 2 == 0)
    assert odds.trust < 0.5, "short matches speak for long ones"
    assert fair.trust > 0.8
    for _ in range(200):
        odds.count(8, right=True)
    assert odds.trust > 0.95, "what comes later may be other text"
    assert odds.right(16) == 0.5, "chances of classes are learned apart, and remembered"


def test_deeper_guesses_stand_on_longer_matches() -> None:
    spec = spec_of(1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2], 40, TABLE)
    guesses = LookupGuesses(replace(spec, lookup_priors=(0.6, 0.7, 0.8, 0.85, 0.9, 0.95)))
    assert guesses.rights[:7] == (0.7, 0.8, 0.8, 0.85, 0.85, 0.85, 0.9)
    guesses.observe_commit([3, 4])
    assert guesses.chain(2).tokens.tolist() == [5, 6]


# --- when a session looks through its prompt ---------------------------------------------------------------------------------


def session_of(prompt: list[int], texts: SharedTexts = NO_TEXTS) -> VerifierSession:
    return VerifierSession(spec_of(1, prompt, 40, TABLE, lookup=True), LookupPacing(), 0, texts)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the texts that were looked through, as it happens."""
    lens: list[int] = []

    class Counted(LookupGuesses):
        def __init__(self, spec: VerifierSpec, texts: SharedTexts = NO_TEXTS) -> None:
            lens.append(len(spec.prefix))
            super().__init__(spec, texts)

    monkeypatch.setattr(verifier_module, "LookupGuesses", Counted)
    return lens


def test_a_prompt_is_looked_through_once_it_is_read_and_tells_as_much_as_before(made: list[int]) -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    session = session_of(prompt)
    assert session.view(10).lookup_rights == ()
    session.step(RoundPlanned(64, 0, 20))
    assert made == [], "nothing holds the reading up"
    session.step(RoundVerified(Verdict((), 3, bonus=True), 10, 30))
    early = LookupGuesses(session.spec)
    early.observe_commit([3])
    assert made == [len(prompt)]
    assert session.view(40).lookup_rights == early.rights
    assert len(early.rights) > 1
    priors = session.lookup_priors(FIRST_RIGHTS)
    assert priors == early.odds.remembered(FIRST_RIGHTS)


def test_who_has_its_prompt_in_the_cache_has_guesses_for_its_first_round(made: list[int]) -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    session = session_of(prompt)
    session.skip(len(prompt) - 1)
    assert session.view(10).lookup_rights == LookupGuesses(session.spec).rights
    session.step(RoundPlanned(64, 4, 20, from_lookup=True))
    assert made == [len(prompt)]


def test_other_answers_are_asked_for_while_the_prompt_is_read() -> None:
    asked: list[list[int]] = []

    class Asked:
        def find(self, end: Sequence[int]) -> tuple[int, Sequence[int]]:
            asked.append(list(end))
            return 0, ()

    session_of([1, 2, 3], Asked())
    assert asked == [[1, 2, 3]]


def test_a_session_that_takes_no_guesses_from_texts_looks_through_none(made: list[int]) -> None:
    session = VerifierSession(spec_of(1, [1, 2, 1, 2], 40, TABLE, lookup=False), LookupPacing(), 0)
    session.step(RoundPlanned(64, 0, 20))
    session.step(RoundVerified(Verdict((), 1, bonus=True), 10, 30))
    assert session.view(40).lookup_rights == ()
    assert made == []
