"""Rounds of guesses from the text itself: the policy `lookup`, and when `adaptive` prefers them to its drafter's."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from fakes import TableEngine, TruthTable
from fakes_pacing import FLAT_COST, NOW_US, session_view, step_view
from fakes_simulation import Request, ScriptedDrafter, Simulation, spec_of
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.by_lookup import BEGIN_GAIN, KEEP_GAIN, ByLookup, StepRest, least_paying, paying_len
from outrider.session.pacing.contract import PLAIN_REPEATS, CostCurve, Pacing, SessionPlan, SessionView, StepView
from outrider.session.pacing.lookup import LookupPacing
from outrider.session.pacing.plain import PlainPacing
from outrider.session.pacing.round_model import Pace

STEP_US = 10_000
GENTLE = CostCurve(((1, 10_000.0), (32, 13_000.0)))
STEEP = CostCurve(((1, 1_000.0), (64, 64_000.0)))
SURE = (0.95,) * 12
COPIED = TruthTable(vocab_size=40, seed=3, period=25)


# --- how many pay ------------------------------------------------------------------------------------------------------------


def test_free_rows_are_all_taken_and_dear_ones_only_while_they_are_likely() -> None:
    rest = StepRest(FLAT_COST, 1, 1.0, 0.0)
    num, added = paying_len(SURE, rest)
    assert num == 12
    assert added == pytest.approx(sum(0.95**depth for depth in range(1, 13)))
    assert paying_len((0.9, 0.01, 0.9), StepRest(GENTLE, 1, 1.0, 0.0))[0] == 1
    assert paying_len(SURE, StepRest(STEEP, 1, 1.0, 0.0)) == (0, 0.0)
    assert paying_len((), rest) == (0, 0.0)


def test_rows_that_delay_others_must_be_worth_it_to_them_too() -> None:
    unsure = (0.6,) * 12
    alone, shared = (paying_len(unsure, StepRest(GENTLE, num, float(num), 0.0))[0] for num in (1, 8))
    assert 0 < shared < alone


# --- the policy without a drafter ---------------------------------------------------------------------------------------------


def test_everybody_goes_at_once_with_what_its_text_offers() -> None:
    sessions = session_view(1, lookup_rights=SURE), session_view(2), session_view(3, guessed=5)
    plan = LookupPacing().plan(step_view(*sessions))
    assert set(plan.take) == {SessionPlan(1, 1, 12, from_lookup=True), SessionPlan(2, 1, 0), SessionPlan(3, 1, 0)}
    assert plan.wake_us is None


def test_a_given_length_is_taken_whatever_it_costs() -> None:
    (part,) = LookupPacing(4).plan(step_view(session_view(1, lookup_rights=SURE), cost=STEEP)).take
    assert part == SessionPlan(1, 1, 4, from_lookup=True)


def test_it_drafts_nothing_and_its_prompts_are_read_without_guesses() -> None:
    policy = LookupPacing()
    assert not policy.drafts
    assert policy.draft_ahead(session_view(1, lookup_rights=SURE)) == 0
    (part,) = policy.plan(step_view(session_view(1, num_uncached=40, lookup_rights=SURE))).take
    assert part == SessionPlan(1, 40, 0)


def test_guesses_stay_within_the_requests_own_bounds() -> None:
    for bounds in ({"max_draft_len": 3}, {"remaining": 4}):
        (part,) = LookupPacing().plan(step_view(session_view(1, lookup_rights=SURE, **bounds))).take
        assert part.max_nodes == 3


def test_steps_without_guesses_pass_unasked_until_a_text_promises_what_would_pay() -> None:
    """With one guess at hand, as much as the plan says must be expected of it."""
    (cost, sessions), policy = (GENTLE, (session_view(1), session_view(2))), LookupPacing()
    plan = policy.plan(step_view(*sessions, cost=cost))
    assert plan.repeats == PLAIN_REPEATS
    least = plan.least_promise
    assert 0.0 < least < 0.1
    for right, is_taken in ((0.99 * least, False), (1.01 * least, True)):
        asked = policy.plan(step_view(replace(sessions[0], lookup_rights=(right,)), sessions[1], cost=cost))
        assert any(part.from_lookup for part in asked.take) is is_taken
        assert asked.repeats == (0 if is_taken else PLAIN_REPEATS)
    dear = replace(sessions[0], step_overhead_us=5_000.0)
    least = policy.plan(step_view(dear, sessions[1], cost=cost)).least_promise
    assert any(
        part.from_lookup for part in policy.plan(step_view(replace(dear, lookup_rights=(1.01 * least,)), sessions[1], cost=cost)).take
    )
    assert not any(
        part.from_lookup for part in policy.plan(step_view(replace(dear, lookup_rights=(0.99 * least,)), sessions[1], cost=cost)).take
    )
    fixed = LookupPacing(4).plan(step_view(*sessions, cost=STEEP))
    assert (fixed.repeats, fixed.least_promise) == (PLAIN_REPEATS, 0.0), "whatever is there is taken"
    assert least_paying(StepRest(GENTLE, 1, 1.0, 0.0, 500.0)) > least_paying(StepRest(GENTLE, 1, 1.0, 0.0))


# --- deciding once per commit -------------------------------------------------------------------------------------------------


def decided(rights: tuple[float, ...], promise: float, *, before: int = 0) -> int:
    """Guesses of the second decision; before: rights of the first one, as many sure guesses."""
    decisions = ByLookup(32)
    decisions.observe(step_view(session_view(1), cost=GENTLE), 0.0)
    decisions.num_guesses(session_view(1, committed_len=90, lookup_rights=SURE[:before]), 0.0)
    return decisions.num_guesses(session_view(1, lookup_rights=rights), promise)


def test_what_the_course_promises_must_be_beaten_by_a_margin_to_begin_and_not_to_go_on() -> None:
    num, added = paying_len(SURE, StepRest(GENTLE, 1, 1.0, 0.0))
    speed = (1.0 + added) / GENTLE.verify_us(1 + num)
    just_less = speed / (1.0 + 0.5 * BEGIN_GAIN)
    assert decided(SURE, just_less) == 0
    assert decided(SURE, just_less, before=12) == num
    assert decided(SURE, speed / (1.0 + 2.0 * BEGIN_GAIN)) == num
    assert decided(SURE, 1.01 * speed, before=12) == 0


def test_who_is_alone_and_decodes_plainly_begins_with_guesses_each_time() -> None:
    """Whoever drafts, or has company, goes on with them for less."""
    for num_sessions, plainly, goes in ((1, True, False), (1, False, True), (2, True, True)):
        decisions = ByLookup(32)
        decisions.observe(step_view(*(session_view(at) for at in range(num_sessions)), cost=FLAT_COST), 0.0)
        assert decisions.least_promise == pytest.approx(BEGIN_GAIN)
        promise = decisions.plain_speed
        decisions.num_guesses(session_view(0, committed_len=90, lookup_rights=SURE), promise, plainly=plainly)
        little = session_view(0, lookup_rights=(0.5 * (KEEP_GAIN + BEGIN_GAIN),))
        assert (decisions.num_guesses(little, promise, plainly=plainly) > 0) is goes


def test_a_text_that_promises_enough_in_more_rows_than_that_pays_for_upsets_no_plan() -> None:
    """What would be gone by is exactly what upsets a plan of a lone session that decodes plainly."""
    cost = CostCurve(((1, 1_000.0), (2, 1_500.0), (4, 2_500.0), (64, 60_000.0)))
    session = session_view(0, has_drafter=False)
    plan = AdaptivePacing().plan(step_view(session, cost=cost))
    assert plan.repeats == PLAIN_REPEATS
    upset: list[bool] = []
    for right in (0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.97):
        rights = (right,) * 10
        promise = sum(right**power for power in range(1, 11))
        asked = AdaptivePacing().plan(step_view(replace(session, lookup_rights=rights), cost=cost))
        upset.append(plan.is_upset_by(promise, rights))
        assert upset[-1] is any(part.from_lookup for part in asked.take)
        assert promise > plan.least_promise or not upset[-1]
    assert upset == sorted(upset) != [upset[0]] * len(upset)
    assert not upset[3], "ten such guesses promise 2.3 tokens, more than one guess must bring, and no number of them pays for its rows"
    assert plan.least_promise < 1.0


def test_who_drafts_weighs_guesses_from_the_text_with_the_way_back() -> None:
    """It is a price of any number of them, and what the text offers others is not concerned."""
    found = []
    for return_us in (0.0, 9_000.0):
        decisions = ByLookup(32)
        decisions.observe(step_view(session_view(1), cost=GENTLE), 0.0, 0.0, return_us)
        few, many = (session_view(1, committed_len=100 + num, lookup_rights=(0.5,) * num) for num in (1, 12))
        offers = [(decisions.num_guesses(one, decisions.plain_speed) > 0, decisions.offered(1, one.committed_len)) for one in (few, many)]
        found.append(offers)
        assert decisions.num_guesses(replace(few, committed_len=200), decisions.plain_speed, plainly=True) > 0
    (free, dear) = found
    assert [taken for taken, _ in free] == [True, True]
    assert [taken for taken, _ in dear] == [False, False]
    assert [offered for _, offered in free] == [offered for _, offered in dear]
    decisions.num_guesses(session_view(1, committed_len=300, lookup_rights=SURE), decisions.plain_speed)
    assert decisions.goes(session_view(1, committed_len=300)) == 12, "sure ones are worth it"


def test_what_the_text_offers_is_known_whether_or_not_it_is_taken() -> None:
    decisions = ByLookup(32)
    decisions.observe(step_view(session_view(1), cost=GENTLE), 0.0)
    session = session_view(1, lookup_rights=(0.5,))
    assert decisions.offered(1, session.committed_len) == (1.0, 1.0), "nothing was decided"
    assert decisions.num_guesses(session, 1.0) == 0
    tokens, rounds = decisions.offered(1, session.committed_len)
    assert tokens == pytest.approx(1.5)
    assert rounds == pytest.approx(GENTLE.verify_us(2) / GENTLE.verify_us(1))
    assert decisions.offered(1, 101) == (1.0, 1.0), "of the newest commit"


def test_what_rounds_with_guesses_take_beside_plain_ones_is_a_price_of_all_of_them() -> None:
    """It makes none pay that promise little, and of those that pay more worth their rows."""
    rights = (0.4, 0.35, 0.3, 0.3)
    dear = 0.5 * GENTLE.verify_us(1)
    steep = CostCurve(((1, 10_000.0), (32, 103_000.0)))
    cheaply, dearly = (paying_len((0.8,) * 12, StepRest(steep, 1, 1.0, 0.0, price)) for price in (0.0, dear))
    assert 0 < cheaply[0] < dearly[0]
    assert paying_len(rights, StepRest(GENTLE, 1, 1.0, 0.0, 20.0 * dear)) == (0, 0.0)
    found = []
    for guessing_us in (0.0, dear):
        decisions = ByLookup(32)
        decisions.observe(step_view(session_view(1), cost=GENTLE), 0.0, guessing_us)
        session = session_view(1, lookup_rights=rights)
        num = decisions.num_guesses(session, decisions.plain_speed, plainly=True)
        found.append((num, decisions.least_promise, decisions.offer(session)[1]))
    (num, least, offered), (num_dear, least_dear, offered_dear) = found
    assert num > 0 == num_dear
    assert least_dear > least + 0.4
    assert offered > offered_dear


def test_a_decision_stands_until_the_next_commit() -> None:
    decisions = ByLookup(32)
    decisions.observe(step_view(session_view(1), cost=GENTLE), 0.0)
    session = session_view(1, lookup_rights=SURE)
    assert decisions.num_guesses(session, 0.0) == decisions.num_guesses(session, 1.0) == decisions.goes(session) > 0
    assert decisions.num_guesses(replace(session, committed_len=101), 1.0) == 0


def test_a_plan_asks_who_shares_the_step_only_for_those_with_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = ByLookup._rest

    def noted(self: ByLookup, session: SessionView) -> StepRest | None:
        asked.append(session.session)
        return original(self, session)

    monkeypatch.setattr(ByLookup, "_rest", noted)
    policy, without = AdaptivePacing(), [session_view(number) for number in range(1, 65)]
    reading = session_view(65, num_uncached=40, lookup_rights=SURE)  # it cannot verify any yet
    policy.plan(step_view(*without, reading))
    assert asked == []
    policy.plan(step_view(*without, reading, session_view(66, lookup_rights=SURE)))
    assert set(asked) == {66}


# --- adaptive -----------------------------------------------------------------------------------------------------------------


def taught(acceptance: float = 0.8, draft_us: float = 2_000.0) -> tuple[AdaptivePacing, SessionView]:
    """A policy that has decoded with its drafter for a while, and the session after its newest commit."""
    policy = AdaptivePacing()
    session = session_view(1, acceptance=acceptance, draft_us_per_token=draft_us, remaining=5_000)
    now_us = NOW_US
    for _ in range(40):
        now_us += STEP_US
        session = replace(
            session, committed_len=session.committed_len + 2, num_tested=session.num_tested + 2, waiting_since_us=now_us,
            draft_deadline_us=now_us + 50_000,
        )  # fmt: skip
        policy.plan(StepView((session,), GENTLE, 64, now_us))
    return policy, session


def committed(session: SessionView, num: int = 5, **changes: object) -> SessionView:
    """The same session one commit later."""
    now_us = session.waiting_since_us + STEP_US
    fields = {"waiting_since_us": now_us, "draft_deadline_us": now_us + 50_000, "committed_len": session.committed_len + num} | changes
    return replace(session, **fields)  # type: ignore[arg-type]


def step_of(session: SessionView) -> StepView:
    return StepView((session,), GENTLE, 64, session.waiting_since_us)


def goes_by_lookup(policy: AdaptivePacing, session: SessionView) -> bool:
    return any(part.from_lookup for part in policy.plan(step_of(session)).take)


def test_sure_guesses_from_the_text_are_verified_at_once_and_the_drafter_rests() -> None:
    policy, session = taught()
    assert not goes_by_lookup(policy, session)
    session = committed(session, lookup_rights=SURE)
    assert policy.draft_ahead(session) == 0
    plan = policy.plan(step_of(session))
    assert plan.take == (SessionPlan(1, 1, 12, from_lookup=True),), "and it has no rest: its drafter's turn may come with the next commit"
    assert not plan.repeats


def test_the_drafter_goes_on_when_the_text_offers_nothing_more() -> None:
    policy, session = taught()
    session = committed(session, lookup_rights=SURE)
    policy.plan(step_of(session))
    session = committed(session, lookup_rights=())
    assert policy.draft_ahead(session) > 0
    assert not goes_by_lookup(policy, session)


def test_guesses_that_are_seldom_right_change_nothing() -> None:
    policy, session = taught()
    session = committed(session, lookup_rights=(0.2,) * 12)
    assert policy.draft_ahead(session) > 0
    assert not goes_by_lookup(policy, session)


def test_without_a_drafter_the_text_has_only_plain_decoding_to_beat() -> None:
    policy, session = taught()
    alone = committed(session, has_drafter=False, tail_ended=True, lookup_rights=(0.4, 0.4))
    assert goes_by_lookup(policy, alone)
    assert not goes_by_lookup(policy, committed(alone, has_drafter=True, tail_ended=False))


def test_an_unknown_drafter_is_tried_before_middling_guesses_and_after_sure_ones() -> None:
    for rights, goes in (((0.5, 0.5), False), (SURE, True)):
        policy = AdaptivePacing()
        plan = policy.plan(step_view(session_view(1, lookup_rights=rights), cost=GENTLE))
        assert bool(plan.take) is goes


def test_a_session_that_has_its_guesses_shares_the_step_of_one_that_waits() -> None:
    policy, session = taught()
    copying, other = committed(session, lookup_rights=SURE), replace(committed(session), session=2)
    plan = policy.plan(StepView((copying, other), GENTLE, 64, copying.waiting_since_us))
    if not plan.take:
        assert plan.wake_us is not None
        assert plan.wake_us <= copying.draft_deadline_us
        plan = policy.plan(StepView((copying, other), GENTLE, 64, copying.draft_deadline_us))
    assert {(part.session, part.from_lookup) for part in plan.take} == {(1, True), (2, False)}


def test_rounds_by_lookup_say_nothing_of_the_course() -> None:
    policy, session = taught()
    session = committed(session, lookup_rights=SURE)
    assert goes_by_lookup(policy, session)
    before = [policy._memory.factor(pace) for pace in Pace]
    for rights in (SURE, SURE, SURE, ()):
        session = committed(session, lookup_rights=rights)
        session = replace(session, waiting_since_us=session.waiting_since_us + 200_000)
        policy.draft_ahead(session)
        assert goes_by_lookup(policy, session) is bool(rights)
    policy.plan(step_of(committed(session)))
    assert [policy._memory.factor(pace) for pace in Pace] == before


# --- whole requests -----------------------------------------------------------------------------------------------------------


def decoded(
    pacing: Pacing, table: TruthTable, alpha: float | None, *, lookup: bool = True, kill_us: int | None = None
) -> tuple[Request, int]:
    """A request of 300 tokens beside a drafter that is right with probability alpha (None: no drafter), and how long it took."""
    drafters = [] if alpha is None else [ScriptedDrafter("d", table, alpha, 1_000)]
    simulation = Simulation(TableEngine(table, step_us=STEP_US), pacing, drafters, step_cost=lambda rows: STEP_US + 100 * rows)
    request = simulation.add(spec_of(1, prompt(table), 300, table, lookup=lookup))
    if kill_us is not None:
        simulation.agenda.append((simulation.clock.now_us + kill_us, partial(simulation.kill, "d")))
    begin_us = simulation.clock.now_us
    simulation.run()
    assert request.tokens == table.answer(prompt(table), len(prompt(table)) + 300, frozenset({0}))
    return request, simulation.clock.now_us - begin_us


def prompt(table: TruthTable) -> list[int]:
    return [1, *table.answer([1], 80, frozenset())]


def test_without_a_drafter_a_text_that_repeats_itself_takes_a_fraction_of_the_rounds() -> None:
    looked_up, took_us = decoded(LookupPacing(), COPIED, None)
    plain, plain_us = decoded(PlainPacing(), COPIED, None)
    statistics = looked_up.session.statistics
    assert statistics.num_rounds < 0.3 * plain.session.statistics.num_rounds
    assert took_us < 0.4 * plain_us
    assert statistics.num_drafted == statistics.num_looked_up > statistics.num_looked_up_accepted == statistics.num_accepted > 200


def test_adaptive_is_as_fast_as_lookup_where_the_text_repeats_itself_and_as_its_drafter_elsewhere() -> None:
    new_text = replace(COPIED, vocab_size=5_000, period=0)
    for table, other in (
        (COPIED, decoded(LookupPacing(), COPIED, None)[1]),
        (new_text, decoded(AdaptivePacing(), new_text, 0.8, lookup=False)[1]),
    ):
        assert decoded(AdaptivePacing(), table, 0.8)[1] < 1.15 * other


def test_what_is_looked_up_says_nothing_of_the_drafter() -> None:
    request, _ = decoded(AdaptivePacing(), COPIED, 0.0)
    statistics = request.session.statistics
    assert statistics.num_looked_up_accepted > 200
    assert statistics.acceptance < 0.5, "not one guess of the drafter was right"
    request, _ = decoded(LookupPacing(), COPIED, 0.9)
    assert request.session.statistics.num_tested == 0


@pytest.mark.parametrize("kill_us", [20_000, 100_000, 300_000])
def test_a_drafter_killed_while_the_text_repeats_itself_costs_no_token_and_little_time(kill_us: int) -> None:
    request, took_us = decoded(AdaptivePacing(), COPIED, 0.9, kill_us=kill_us)
    assert request.session.statistics.num_looked_up_accepted > 100
    assert took_us < 1.3 * decoded(LookupPacing(), COPIED, None)[1]
