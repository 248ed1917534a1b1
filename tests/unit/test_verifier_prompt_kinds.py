"""Prompts that begin alike: sessions of one kind expect what those before them showed, and nobody else does."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fakes import TruthTable
from fakes_simulation import spec_of
from outrider.session.opening import VerifierSpec
from outrider.session.pacing.serial import SerialPacing
from outrider.session.statistics import FIRST_PRIORS
from outrider.session.verifier import VerifierSession
from verifier_service.prompt_kinds import BEGINNING_LENS, MAX_BEGINNINGS, MIN_PROMPTS, PromptKinds

TEMPLATE = [0, 1, 7, 8, 9]
TABLE = TruthTable(vocab_size=1000)


def spec(prompt: list[int], **changes: object) -> VerifierSpec:
    return dataclasses.replace(spec_of(1, prompt, 40, TABLE), **changes)  # type: ignore[arg-type]


def answer(kinds: PromptKinds, prompt: list[int], acceptance: float, num_tested: int = 64, **changes: object) -> int:
    """A session from its beginning to its end, whose drafter is right so often; its kind."""
    asked = spec(prompt, **changes)
    kind = kinds.of(asked)
    session = VerifierSession(dataclasses.replace(asked, kind=kind.number, draft_priors=kind.priors.drafts), SerialPacing(4), 0)
    session.statistics.acceptance, session.statistics.num_tested = acceptance, num_tested
    session.statistics._num_first_right = round(acceptance * num_tested)
    kinds.ended(session)
    return kind.number


def expected(kinds: PromptKinds, prompt: list[int], **changes: object) -> float:
    return kinds.of(spec(prompt, **changes)).priors.drafts.acceptance


def test_sessions_expect_what_others_of_their_beginning_showed() -> None:
    kinds = PromptKinds()
    for at in range(8):
        answer(kinds, [*TEMPLATE, 20, 21, 100 + at, 5], 0.05)
        answer(kinds, [*TEMPLATE, 30, 31, 200 + at, 5], 0.95)
    assert expected(kinds, [*TEMPLATE, 20, 21, 999, 5]) < 0.2
    assert expected(kinds, [*TEMPLATE, 30, 31, 999, 5]) > 0.85
    assert 0.2 < expected(kinds, [*TEMPLATE, 40, 41, 999, 5]) < 0.85, "a beginning that both have"


def test_a_prompt_like_none_before_expects_what_its_own_like_showed() -> None:
    """What is known of instructions that come again is kept from it."""
    kinds = PromptKinds()
    assert kinds.of(spec([5, 6, 7])) is kinds.unlike
    assert kinds.unlike.priors.drafts == FIRST_PRIORS
    for at in range(8):
        answer(kinds, [20, 21, 100 + at, 5], 0.05)
        answer(kinds, [300 + at, 400 + at, 5], 0.95)
    assert kinds.of(spec([900, 901, 5])) is kinds.unlike
    assert expected(kinds, [900, 901, 5]) > 0.8 > 0.2 > expected(kinds, [20, 21, 999, 5])


def test_a_prompt_that_comes_again_and_again_makes_no_kind_of_itself() -> None:
    """Else a bench that repeats its prompts would measure what no new prompt can have."""
    kinds = PromptKinds()
    prompt = list(range(50, 90))
    assert {answer(kinds, prompt, 0.95) for _ in range(10)} == {0}
    numbers = [answer(kinds, [*prompt[:20], *range(500 + at, 520 + at)], 0.95) for at in range(MIN_PROMPTS)]
    assert numbers[0] == 0 < numbers[-1]
    assert kinds.of(spec(prompt)).number == numbers[-1], "as far as others went along with it"


@pytest.mark.parametrize("apart", [{"tenant": "other"}, {"adapter": "other"}])
def test_kinds_are_apart_for_tenants_and_adapters(apart: dict[str, str]) -> None:
    kinds = PromptKinds()
    for at in range(8):
        answer(kinds, [20, 21, 100 + at, 5], 0.05)
    assert kinds.of(spec([20, 21, 999, 5])).number > 0
    assert kinds.of(spec([20, 21, 999, 5], **apart)) is kinds.unlike


def test_greedy_answers_are_a_kind_apart() -> None:
    kinds = PromptKinds()
    greedy = dataclasses.replace(spec([1, 2]).sampling, temperature=0.0)
    drawn = dataclasses.replace(greedy, temperature=0.8)
    for at in range(8):
        answer(kinds, [20, 21, 100 + at, 5], 0.05, sampling=drawn)
        answer(kinds, [20, 21, 100 + at, 5], 0.95, sampling=greedy)
    assert expected(kinds, [20, 21, 999, 5], sampling=greedy) > 0.8 > 0.2 > expected(kinds, [20, 21, 999, 5], sampling=drawn)


def test_a_longer_beginning_knows_from_the_start_what_the_shorter_one_did() -> None:
    kinds = PromptKinds()
    for at in range(8):
        answer(kinds, [20, 21, 100 + at, 5], 0.05)
    for at in range(MIN_PROMPTS):
        answer(kinds, [20, 21, 60, 61, 62, 63, 100 + at, 5], 0.05, num_tested=0)
    longer, shorter = spec([20, 21, 60, 61, 62, 63, 999, 5]), spec([20, 21, 999, 5])
    assert kinds.of(longer).number != kinds.of(shorter).number
    assert expected(kinds, [20, 21, 60, 61, 62, 63, 999, 5]) == pytest.approx(expected(kinds, [20, 21, 999, 5]), abs=0.02)


def test_beginnings_are_bounded_and_those_in_use_stay() -> None:
    kinds = PromptKinds()
    for at in range(MIN_PROMPTS + 1):
        kept = answer(kinds, [20, 21, 100 + at, 5], 0.05)
    assert kept > 0
    draws = np.random.default_rng(1).integers(1000, 1_000_000, (MAX_BEGINNINGS // 8, 300)).tolist()
    for at, prompt in enumerate(draws):
        answer(kinds, prompt, 0.5)
        if at % 64 == 0:
            answer(kinds, [20, 21, 2000 + at, 5], 0.05)
    assert len(kinds._beginnings) == MAX_BEGINNINGS < len(BEGINNING_LENS) * len(draws)
    assert kinds.of(spec([20, 21, 999, 5])).number == kept


def test_a_prompt_is_no_beginning_of_itself() -> None:
    kinds = PromptKinds()
    for _ in range(2):
        answer(kinds, [20, 21, 22, 23], 0.5)
    answer(kinds, [20, 21, 22, 23, 24], 0.5)
    answer(kinds, [20, 21, 22, 30, 31], 0.5)
    assert kinds.of(spec([20, 21, 22, 23, 99])).number == kinds.of(spec([20, 21, 22, 99])).number > 0


def test_a_kind_knows_which_one_its_sessions_were_of_before() -> None:
    kinds = PromptKinds()
    for at in range(MIN_PROMPTS + 1):
        short = answer(kinds, [20, 21, 100 + at, 5], 0.05)
    for at in range(MIN_PROMPTS + 1):
        long = answer(kinds, [20, 21, 60, 61, 62, 63, 100 + at, 5], 0.05)
    assert 0 < short != long
    assert (kinds.of(spec([20, 21, 999, 5])).shorter, kinds.of(spec([20, 21, 60, 61, 62, 63, 999, 5])).shorter) == (0, short)
