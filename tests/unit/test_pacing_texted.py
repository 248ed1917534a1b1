"""What `adaptive` makes of a text that offers guesses: as much as plain decoding is worth with them, and as much as asking a drafter must
repay. Run: pytest tests/unit/test_pacing_texted.py"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fakes_pacing import NOW_US, READY
from outrider.session.pacing import adaptive
from outrider.session.pacing.achieved_speed import LEAST_TOKENS, AchievedSpeed
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import PLAIN_REPEATS, CostCurve, PacingPlan, SessionView, StepView
from outrider.session.pacing.draft_length import DraftLength, serial_tokens_per_us
from outrider.session.pacing.lone_rounds import Extra
from outrider.session.pacing.offers import Margins, Offers
from outrider.session.pacing.pace_rates import PaceRates
from outrider.session.pacing.round_model import Pace

STEP_US = 400.0
COST = CostCurve(((1, STEP_US), (4, 1.1 * STEP_US), (32, 4 * STEP_US)))
AHEAD = CostCurve(((1, 1.2 * STEP_US), (32, 5 * STEP_US)))
BESIDE_US = 100.0  # of any round, beside its step
RESIDENT: dict[str, Any] = {"takes_turns": True, "has_drafter": True, "draft_us_per_token": 40.0, "draft_alone_us": 40.0, "link_us": 5.0}


class Texts:
    """Sessions one after the other, alone with a drafter of the target's own thread: each round is whatever the policy plans, and takes its
    step, BESIDE_US, with drafted guesses drafting_us, and with guesses from the text by_text_us. right: chance of a drafted guess; rights:
    of those that the text offers."""

    def __init__(self, right: float, rights: tuple[float, ...], drafting_us: float, opening_us: float = 0.0, **changes: Any) -> None:
        self.policy = AdaptivePacing()
        self.now_us, self.session = float(NOW_US), 0
        self.right, self.rights, self.drafting_us, self.opening_us = right, rights, drafting_us, opening_us
        self.by_text_us = 0.0
        self.changes = {**RESIDENT, **changes}
        self.num_rounds = {"plain": 0, "drafted": 0, "looked up": 0}
        self.num_asked = 0

    def view(self, committed_len: int, num_tested: int, begin: int, num_nodes: int, num_uncached: int = 1) -> StepView:
        own: dict[str, Any] = {"session": self.session, "num_nodes": num_nodes, "depth": num_nodes, "tail_ended": num_nodes > 0}
        at: dict[str, Any] = {"committed_len": committed_len, "waiting_since_us": int(self.now_us), "num_tested": num_tested}
        texts: dict[str, Any] = {"lookup_rights": self.rights, "acceptance": self.right, "remaining": begin + 40 - committed_len}
        kinds: dict[str, Any] = {"kind": 1, "continue_prob": 0.5, "hope": self.right, "expected_left": begin + 40.0 - committed_len}
        session = replace(READY, num_uncached=num_uncached, **own, **at, **texts, **kinds, **self.changes)
        return StepView((session,), COST, 64, int(self.now_us), cost_ahead=AHEAD)

    def answer(self) -> None:
        """One session of forty tokens, after its prompt."""
        self.session += 1
        committed, tested, begin, carry, is_opened = 100, 0, 100, 0.0, False
        prompt = self.view(committed, tested, begin, 0, num_uncached=20)
        self.policy.draft_ahead(prompt.sessions[0])
        self.policy.plan(prompt)
        self.now_us += 4 * STEP_US
        committed += 1
        while committed < begin + 38:
            view = self.view(committed, tested, begin, 0)
            leave = self.policy.draft_ahead(view.sessions[0])
            plan = self.policy.plan(view)
            looked_up = sum(part.max_nodes for part in plan.take if part.from_lookup)
            drafted = 0
            if leave and not looked_up and self.changes["has_drafter"]:
                plan = self.policy.plan(self.view(committed, tested, begin, 1))
                drafted = sum(part.max_nodes for part in plan.take)
            self.num_asked += drafted > 0 and not is_opened
            self.now_us += STEP_US + BESIDE_US + (self.drafting_us if drafted else 0.0)
            self.now_us += self.opening_us if drafted and not is_opened else 0.0
            self.now_us += self.by_text_us if looked_up else 0.0
            is_opened = is_opened or drafted > 0
            carry += 1.0 + (self.right if drafted else sum(self.rights[:looked_up]))
            repeats = min(int(plan.repeats), 3) if not drafted and not looked_up else 0
            self.now_us += repeats * (STEP_US + BESIDE_US)
            committed, tested, carry = committed + int(carry) + repeats, tested + (drafted > 0), carry - int(carry)
            self.num_rounds["drafted" if drafted else "looked up" if looked_up else "plain"] += 1 + repeats

    def lately(self, num: int = 30) -> dict[str, int]:
        """Rounds of so many further answers."""
        self.num_rounds, self.num_asked = dict.fromkeys(self.num_rounds, 0), 0
        for _ in range(num):
            self.answer()
        return self.num_rounds


def test_where_the_text_offers_more_than_drafts_bring_nobody_drafts() -> None:
    """Drafts bring half a token more in a fifth more time; the text half a token more at no price but a row."""
    with_text, without = (Texts(0.5, rights, 0.2 * STEP_US) for rights in ((0.5,), ()))
    for texts in (with_text, without):
        texts.lately()
    by_text, by_drafts = with_text.lately(), without.lately()
    assert by_text["looked up"] > 4 * by_text["drafted"]
    assert by_drafts["drafted"] > 4 * by_drafts["plain"]


@pytest.mark.parametrize("has_drafter", [True, False])
@pytest.mark.parametrize(("by_text_us", "goes"), [(0.0, True), (2.0 * STEP_US, False)])
def test_rounds_by_the_text_are_worth_what_they_bring_in_the_time_they_take(by_text_us: float, goes: bool, has_drafter: bool) -> None:
    """Three in four right, of rows that cost little; where such rounds take three times as long, few are tried. Of a verifier without any
    drafter as well."""
    measured = {} if has_drafter else {"has_drafter": False, "takes_turns": False, "draft_us_per_token": 0.0, "draft_alone_us": 0.0}
    texts = Texts(0.05, (0.75,), 3.0 * STEP_US, **measured)
    texts.by_text_us = by_text_us
    texts.lately()
    rounds = texts.lately()
    assert (rounds["looked up"] > rounds["plain"]) is goes
    assert goes or rounds["looked up"] < 0.1 * rounds["plain"]


def test_a_text_that_offers_something_does_not_keep_anybody_from_drafts_that_bring_more() -> None:
    texts = Texts(0.95, (0.2,), 0.1 * STEP_US)
    texts.lately()
    rounds = texts.lately()
    assert rounds["drafted"] > 4 * (rounds["plain"] + rounds["looked up"])


@pytest.mark.parametrize(("opening_us", "are_asked"), [(0.0, True), (40 * STEP_US, False)])
def test_drafts_that_do_not_repay_the_opening_of_their_drafter_are_asked_for_seldom(opening_us: float, are_asked: bool) -> None:
    """Four tokens in ten more in hardly more time, of answers of forty tokens: thirteen rounds saved of them."""
    texts = Texts(0.4, (), 0.02 * STEP_US, opening_us)
    texts.lately()
    texts.lately(40)
    assert (texts.num_asked > 30) is are_asked
    assert texts.num_asked > 0, "another kind of text is noticed"


def test_what_the_text_offers_is_counted_by_rounds_that_nobody_planned_too() -> None:
    """Half a token more in a round that takes a row more and what passes beside it: 1.5 tokens in 1.23 plain rounds."""
    for rights, least, most in (((0.5,), 1.15, 1.3), ((), 0.99, 1.01)):
        texts = Texts(0.1, rights, 2.0 * STEP_US)
        texts.lately(10)
        kind = texts.policy._sessions.kind(texts.view(100, 0, 100, 0).sessions[0])
        assert least < kind.texted.speed < most


# --- rounds that ended ----------------------------------------------------------------------------------------------------------


def after_a_round(num_tokens: int, took_us: float, *, overhead_us: float = 0.0, **own: Any) -> tuple[AdaptivePacing, SessionView]:
    """A policy with one lone session that decoded so many tokens plainly; own: what it remembers of the round."""
    policy, session = AdaptivePacing(), replace(READY, **RESIDENT, num_tested=9, committed_len=50, step_overhead_us=overhead_us)
    policy._paces = (Pace.SERIAL,)
    policy.plan(StepView((session,), COST, 64, NOW_US))
    known = policy._sessions.known(session.session)
    known.course, known.was_plain = known.course._replace(pace=Pace.PLAIN), True
    for name, value in own.items():
        setattr(known, name, value)
    known.committed_len, known.ready_us = 50, NOW_US
    session = replace(session, committed_len=50 + num_tokens, waiting_since_us=NOW_US + int(took_us))
    policy._ended.count(StepView((session,), COST, 64, session.waiting_since_us), policy._present_times())
    return policy, session


def test_rounds_by_the_text_are_timed_between_plain_ones_only() -> None:
    """Behind a drafted round its drafter has the cores for a while, and beside one that is asked the next draft begins late."""
    for was_plain in (True, False):
        policy, _ = after_a_round(2, 3 * STEP_US, looked_up=1, was_plain=was_plain)
        assert (policy._lone_rounds.guessing_us(STEP_US, 0.0)[0] > 0.0) is was_plain


def test_the_first_draft_behind_a_round_by_the_text_says_what_going_back_to_drafts_takes() -> None:
    for is_return, is_opening, expected in ((True, False, (0.0, 300.0)), (False, True, (300.0, 0.0)), (False, False, (0.0, 0.0))):
        policy, _ = after_a_round(3, 900.0, turn_len=4, expected_us=600.0, is_return=is_return, is_opening=is_opening)
        lone = policy._lone_rounds
        assert (lone.openings.us(STEP_US), lone.returns.us(STEP_US)) == pytest.approx(expected)
    for looked_up in (0, 2):
        policy, session = after_a_round(3, 900.0, looked_up=looked_up)
        assert policy._sessions.known(session.session).is_return is (looked_up > 0)


def test_a_lone_session_is_told_what_its_rounds_by_the_text_and_the_way_back_take() -> None:
    policy, session = after_a_round(1, STEP_US)
    for _ in range(400):
        policy._lone_rounds.count_looked_up(0.0, STEP_US)
        policy._lone_rounds.returns.count(300.0, STEP_US)
        policy._lone_rounds.plain_returns.count(200.0, STEP_US)
    for num_sessions, expected in ((1, (200.0, 300.0)), (2, (0.0, 0.0))):
        sessions = tuple(replace(session, session=each) for each in range(num_sessions))
        policy.plan(StepView(sessions, COST, 64, session.waiting_since_us))
        assert (policy._by_lookup._guessing_us, policy._by_lookup._drafting_us) == pytest.approx(expected, rel=0.05)


def test_what_is_behind_a_round_by_the_text_says_what_that_makes_it_take() -> None:
    """Three plain rounds in the time of four: one behind guesses was not computed ahead. More guesses behind guesses are no price, and
    plain rounds behind plain ones tell what these take."""
    for own, expected in (
        ({"is_return": True}, STEP_US),
        ({"is_return": True, "looked_up": 2}, 0.0),
        ({}, 0.0),
        ({"is_return": True, "was_plain": False}, 0.0),
    ):
        policy, _ = after_a_round(3, 4 * STEP_US, begin=2, **own)
        assert policy._lone_rounds.plain_returns.us(STEP_US) == expected
    for own, num in (({}, 8.0), ({"is_return": True}, 0.0), ({"begin": 49}, 0.0)):
        policy, _ = after_a_round(8, 8 * STEP_US, **{"begin": 2, **own})
        assert policy._lone_rounds._num_plain == num, "not behind guesses, nor behind a prompt: caches are cold there"


def test_many_tokens_of_one_round_are_not_many_plain_rounds() -> None:
    for looked_up in (0, 7):
        policy, session = after_a_round(8, 8.0 * STEP_US, looked_up=looked_up, begin=2)
        kind = policy._sessions.kind(session)
        assert policy._lone_rounds._num_plain == (0.0 if looked_up else 8.0)
        assert kind.texted._num_tokens == pytest.approx(1.0 if looked_up else 8.0, rel=0.1), "what was offered at the round's beginning"
        assert kind.plain._num_tokens == 8.0, "but tokens without a drafter they are"


def test_what_rounds_brought_is_kept_in_steps_for_what_passes_beside_them_is_learned() -> None:
    speeds = []
    for overhead_us in (0.0, STEP_US):
        policy, session = after_a_round(1, 2.0 * STEP_US, overhead_us=overhead_us)
        kind, own = policy._sessions.kind(session), policy._sessions.known(session.session)
        kind.plain.count(LEAST_TOKENS, 2.0 * LEAST_TOKENS)
        own.course = own.course._replace(pace=Pace.SERIAL)
        own.drafted.count(100, 50.0)
        speeds.append((kind.plain.speed, policy._brought(own)))
        assert policy._overhead_us == overhead_us
    assert speeds[0] == speeds[1] == pytest.approx((0.5, 2.0 / STEP_US))


def test_in_turns_lengths_are_weighed_by_what_steps_ahead_cost() -> None:
    session = replace(READY, **RESIDENT, acceptance=0.9, num_tested=50)
    lengths = []
    for ahead in (None, CostCurve(((1, STEP_US), (2, 2 * STEP_US), (32, 32 * STEP_US)))):
        length = DraftLength(None, serial_tokens_per_us)
        length.update(StepView((session,), COST, 64, NOW_US, cost_ahead=ahead))
        lengths.append(length.of(session))
    assert lengths[0] > 2 * lengths[1]


# --- parts of it --------------------------------------------------------------------------------------------------------------


def kind_of(policy: AdaptivePacing, session: SessionView, *, plain: tuple[float, float], texted: tuple[float, float]) -> None:
    """As if so many tokens had come in so many steps, and rounds had offered so many in so many plain ones."""
    own, kind = policy._sessions.of(session), policy._sessions.kind(session)
    kind.plain, own.texted = AchievedSpeed(), AchievedSpeed()
    kind.plain.count(*plain)
    own.texted.count(*texted)


def test_plain_decoding_is_worth_what_it_brought_up_to_what_the_text_offers() -> None:
    policy, session = AdaptivePacing(), replace(READY, session=1)
    for plain, texted, share in (
        ((1_000.0, 1_250.0), (100.0, 100.0), 0.8),
        ((1_000.0, 800.0), (100.0, 100.0), 1.0),
        ((1_000.0, 800.0), (110.0, 100.0), 1.1),
        ((1_000.0, 800.0), (150.0, 100.0), 1.25),
        ((LEAST_TOKENS / 2, 100.0), (150.0, 100.0), 1.5),  # nothing is known of such rounds: they are tried
    ):
        kind_of(policy, session, plain=plain, texted=texted)
        assert policy._sessions.plain_share(session, 1.0) == pytest.approx(share)
    assert policy._sessions.plain_share(session, 2.0) == pytest.approx(1.5)
    kind_of(policy, session, plain=(1_000.0, 1_600.0), texted=(100.0, 100.0))
    assert policy._sessions.plain_share(session, 1.28) == pytest.approx(0.8), "of rounds that are expected to take longer than a step"


def test_commits_at_which_the_text_offers_nothing_count_beside_drafts_too() -> None:
    """One of two commits offers half a token; were the others left out, the text would seem to offer that always."""
    texts = Texts(0.9, (), 0.1 * STEP_US)
    for at in range(40):
        texts.rights = (0.5,) if at % 2 else ()
        texts.session = 1
        view = texts.view(101 + at, at, 100, 0)
        texts.policy.draft_ahead(view.sessions[0])
        texts.policy.plan(view)
        texts.now_us += STEP_US
    known = texts.policy._sessions.known(1)
    tokens, rounds = 20 * 1.5 + 20, 20 * COST.verify_us(2) / STEP_US + 20
    assert known.texted.speed == pytest.approx(tokens / rounds, rel=0.03)


def test_a_machine_that_stalled_for_once_is_not_what_such_rounds_take() -> None:
    extra = Extra()
    for beyond_us in (1_000.0,) * 5 + (1e6,) + (1_000.0,) * 5:
        extra.count(beyond_us, STEP_US)
    assert extra.us(STEP_US) < 1_300.0
    for _ in range(1_000):
        extra.count(50_000.0, STEP_US)
    assert extra.us(STEP_US) > 40_000.0, "longer prompts are read for longer"


def test_what_some_rounds_took_beyond_others_is_a_mean_in_steps() -> None:
    extra = Extra()
    assert extra.us(STEP_US) == 0.0
    for beyond_us in (900.0, 1_100.0, -50.0):
        extra.count(beyond_us, STEP_US)
    assert extra.us(STEP_US) == pytest.approx(1_950.0 / 3.0, rel=0.01), "who took less counts as well, or luck would make it a price"
    assert extra.us(2 * STEP_US) == pytest.approx(3_900.0 / 3.0, rel=0.01)
    quick = Extra()
    for beyond_us in (-900.0, 100.0):
        quick.count(beyond_us, STEP_US)
    assert quick.us(STEP_US) == 0.0


def test_only_first_rounds_with_guesses_say_what_opening_takes() -> None:
    texts = Texts(0.9, (), 0.1 * STEP_US, opening_us=3 * STEP_US)
    texts.lately(20)
    assert texts.policy._lone_rounds.openings.us(STEP_US) == pytest.approx(3 * STEP_US, rel=0.2)


def test_the_first_round_is_not_taken_from_a_drafter_that_is_being_opened() -> None:
    """At a session's first commit its drafter has not answered yet; one that never does is not waited for."""
    for rights, at_once in (((0.4,), False), ((0.95,) * 12, True)):
        texts = Texts(0.97, (), 0.1 * STEP_US)
        texts.lately(20)
        texts.session, policy = texts.session + 1, texts.policy
        policy.draft_ahead(texts.view(100, 0, 100, 0, num_uncached=20).sessions[0])
        policy.plan(texts.view(100, 0, 100, 0, num_uncached=20))
        assert policy._sessions.known(texts.session).is_asked
        first, later = (replace(texts.view(at, 0, 100, 0).sessions[0], has_drafter=False, lookup_rights=rights) for at in (101, 102))
        assert (policy._num_looked_up(first) > 0) is at_once
        assert policy._num_looked_up(later) > 0


@pytest.mark.parametrize("takes_turns", [True, False])
def test_drafts_below_par_are_gone_on_with_but_beside_a_resident_drafter(monkeypatch: pytest.MonkeyPatch, takes_turns: bool) -> None:
    """There whole rounds are known, and guesses go on being judged with each new session."""
    found: list[Margins] = []

    def noted(rates: Any, margins: Margins, *others: Any) -> Offers:
        found.append(margins)
        return Offers(rates, margins, *others)

    monkeypatch.setattr(adaptive, "Offers", noted)
    policy, now_us = AdaptivePacing(), float(NOW_US)
    for at in range(40):
        now_us += 100 * STEP_US
        changes = {**RESIDENT, "takes_turns": takes_turns, "committed_len": 50 + at, "num_tested": 9 + at, "waiting_since_us": int(now_us)}
        policy.plan(StepView((replace(READY, **changes),), COST, 64, int(now_us)))
    assert {margins.keep for margins in found} == {adaptive.LONE_KEEP_GAIN if takes_turns else adaptive.KEEP_GAIN}
    assert adaptive.KEEP_GAIN < adaptive.LONE_KEEP_GAIN


def test_without_a_drafter_plain_steps_pass_unasked() -> None:
    """Also before anything is known, when a drafter would be waited for."""

    def planned(**changes: Any) -> PacingPlan:
        return AdaptivePacing().plan(StepView((replace(READY, **changes),), COST, 64, NOW_US))

    assert planned(has_drafter=False, tail_ended=True).repeats == PLAIN_REPEATS
    assert planned(has_drafter=False, tail_ended=True, num_nodes=2, depth=2).repeats == 0, "what it has left is verified"
    assert planned(has_drafter=True, tail_ended=False).repeats == 0


@pytest.mark.parametrize("change", [{}, {"takes_turns": False}, {"num_sessions": 2}, {"cost_ahead": None}])
def test_steps_computed_ahead_are_those_of_a_lone_session_s_drafts_in_turns(change: dict[str, Any]) -> None:
    session = replace(READY, takes_turns=bool(change.get("takes_turns", True)))
    sessions = tuple(replace(session, session=at) for at in range(int(change.get("num_sessions", 1))))
    view = StepView(sessions, COST, 64, NOW_US, cost_ahead=change.get("cost_ahead", AHEAD))
    turns = COST if change else AHEAD
    assert view.turn_cost == turns
    rates = PaceRates()
    of: Callable[[Pace], float] = lambda pace: float(rates.of_rounds(view, pace).step_us[3])  # noqa: E731
    num = len(sessions)
    assert of(Pace.SERIAL) == pytest.approx(turns.verify_us(3 * num))
    assert of(Pace.PLAIN) == of(Pace.AHEAD) == pytest.approx(COST.verify_us(3 * num))


def test_plain_decoding_is_expected_at_the_cost_of_plain_steps() -> None:
    texts = Texts(0.9, (), 0.1 * STEP_US)
    texts.lately(5)
    rates = texts.policy._seen_rates
    assert rates is not None
    assert float(rates[Pace.PLAIN].step_us[1]) == STEP_US
    assert float(rates[Pace.SERIAL].step_us[1]) == 1.2 * STEP_US
