"""A long prompt beside sessions that decode: their tokens keep coming, and it gets on.

The planner and every policy on virtual time, with steps that cost what a stub says; then the engine thread over a table.

    pytest tests/unit/test_prefill_bound.py
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from fakes import TableEngine
from fakes_pacing import session_view
from fakes_scheduler import PROMPT, TABLE, Loop, ended
from outrider.errors import InvalidRequest
from outrider.session.events import FinishReason
from outrider.session.pacing.contract import CostCurve, SessionView
from outrider.session.pacing.prefill_bound import DEFAULT_PREFILL_STRETCH, MIN_PREFILL_ROWS, PrefillBound
from outrider.session.pacing.registry import PACINGS, make_pacing
from outrider.session.pacing.row_budget import Wanted, share_rows
from outrider.types.step import StepPlan, StepResult
from outrider_bench.simulation.event_loop import simulate
from outrider_bench.simulation.world import Phase, World
from verifier_service.policy_key import PolicyKey
from verifier_service.prefill_price import PrefillPrice
from verifier_service.queue_time import QueueTime
from verifier_service.settings import parse_settings
from verifier_service.step_planner import StepPlanner

MAX_ROWS = 512
KNOWN = CostCurve(((1, 10_000.0), (8, 10_700.0), (64, 21_900.0)))  # 200 us a row beyond 8
FLAT = CostCurve(((1, 10_000.0), (64, 10_000.0)))
LATER_DEARER = CostCurve(((1, 10_000.0), (64, 10_000.0), (65, 10_400.0), (66, 10_800.0)))  # 400 us a row beyond the measured ones
PROMPT_LEN = 4_000
MAX_STEPS = 5_000
NUM_TOKENS = 200  # that one who decodes gets while a prompt is read, fewer than a reader may leave undelivered


# --- the bound ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stretch", "num_own"), [(1.5, 1), (2.0, 8), (4.0, 8), (4.0, 40), (20.0, 8)])
def test_before_anything_was_read_the_curve_says_what_fits(stretch: float, num_own: int) -> None:
    num_rows = PrefillBound(KNOWN, stretch, num_own).num_rows(num_own, MAX_ROWS)
    assert KNOWN.verify_us(num_own + num_rows) <= stretch * KNOWN.verify_us(num_own) or num_rows == MIN_PREFILL_ROWS
    assert KNOWN.verify_us(num_own + num_rows + 1) > stretch * KNOWN.verify_us(num_own) or num_rows == MAX_ROWS


def test_what_a_row_was_measured_to_add_is_believed() -> None:
    bound = PrefillBound(KNOWN, 4.0, 1, row_us=500.0)
    assert bound.num_rows(1, MAX_ROWS) == 60
    assert bound.num_rows(1, 40) == 40
    assert replace(bound, row_us=0.0).num_rows(1, MAX_ROWS) == MAX_ROWS
    assert replace(bound, row_us=1e9).num_rows(1, MAX_ROWS) == MIN_PREFILL_ROWS


def test_sessions_of_other_policies_count_and_so_do_their_prompts() -> None:
    bound = PrefillBound(KNOWN, 4.0, 64, row_us=500.0)
    assert bound.num_rows(0, MAX_ROWS) == int(3 * 21_900 / 500)
    assert replace(bound, num_taken=100).num_rows(0, MAX_ROWS) == 31
    assert replace(bound, num_taken=200).num_rows(0, MAX_ROWS) == 0


def test_guesses_leave_a_prompt_the_least_that_it_is_granted() -> None:
    """Without the bound a crowd with long guesses held a prompt up for as long as it pleased."""
    crowd = [Wanted(session_view(at, 64), 64) for at in range(8)]
    prompt = Wanted(session_view(9, num_uncached=300), 0)
    bounded = share_rows([*crowd, prompt], 256, PrefillBound(KNOWN, 4.0, 8, row_us=1e6))
    assert sum(part.num_rows for part in bounded) == 256
    assert bounded[-1].max_feed == MIN_PREFILL_ROWS
    assert all(part.session != 9 for part in share_rows([*crowd, prompt], 256))


# --- what a row of a prompt costs -----------------------------------------------------------------------------------------


def test_nothing_is_bounded_while_nobody_decodes_or_the_operator_says_so() -> None:
    assert PrefillPrice().bound(0, KNOWN) is None
    assert PrefillPrice(0.0).bound(8, KNOWN) is None
    assert PrefillPrice().bound(8, KNOWN) == PrefillBound(KNOWN, DEFAULT_PREFILL_STRETCH, 8)


def test_a_machine_that_stood_still_once_is_not_slow_for_ever() -> None:
    price = PrefillPrice()
    for _ in range(50):
        price.observe(100, 8, KNOWN.verify_us(108), KNOWN)
    usual = price.bound(8, KNOWN)
    price.observe(100, 8, 1e9, KNOWN)
    stalled = price.bound(8, KNOWN)
    assert usual is not None
    assert stalled is not None
    assert stalled.num_rows(8, MAX_ROWS) > usual.num_rows(8, MAX_ROWS) / 3
    for _ in range(100):
        price.observe(100, 8, KNOWN.verify_us(108), KNOWN)
    again = price.bound(8, KNOWN)
    assert again is not None
    assert abs(again.num_rows(8, MAX_ROWS) - usual.num_rows(8, MAX_ROWS)) <= 2


# --- virtual time ---------------------------------------------------------------------------------------------------------


@dataclass
class Verifier:
    """Sessions by what is left to read of each, under a planner; steps cost what `truth` says, whatever was measured before.

    policies: by session. stretches: of each step that read beside sessions that decode, what it took over what it would have taken.
    """

    price: PrefillPrice
    policies: dict[int, str]
    unread: dict[int, int]
    truth: CostCurve = KNOWN
    known: CostCurve = KNOWN
    guessed: int = 0
    now_us: float = 1_000_000.0
    stretches: list[float] = field(default_factory=list)
    num_read: list[int] = field(default_factory=list)

    def run(self) -> float:
        """Until everything is read; returns how long that took."""
        planner, began_us = StepPlanner(4), self.now_us
        for name in self.policies.values():
            planner.policy(PolicyKey(name))
        for _ in range(MAX_STEPS):
            if not any(left > 1 for left in self.unread.values()):
                return self.now_us - began_us
            self._step(planner)
        raise AssertionError("a prompt is never read to its end")

    def _step(self, planner: StepPlanner) -> None:
        decoding = {session for session, left in self.unread.items() if left == 1}
        views = [(PolicyKey(self.policies[session]), self._view(session)) for session in self.unread]
        bound = self.price.bound(len(decoding), self.known)
        plan = planner.plan(views, self.known, MAX_ROWS, int(self.now_us), prefill=bound)
        assert decoding <= {part.session for part in plan.take}, "nobody who decodes is left out"
        own = sum(part.num_rows for part in plan.take if part.session in decoding)
        read = sum(part.num_rows for part in plan.take if part.session not in decoding)
        step_us = self.truth.verify_us(own + read)
        self.now_us += step_us
        self.num_read.append(read)
        if decoding:
            self.stretches.append(step_us / self.truth.verify_us(own))
        if read:
            self.price.observe(read, own, step_us, self.known)
        for part in plan.take:
            self.unread[part.session] = max(1, self.unread[part.session] - part.max_feed)

    def _view(self, session: int) -> SessionView:
        left = self.unread[session]
        guessed = self.guessed if left == 1 else 0
        return session_view(session, guessed, num_uncached=left, has_drafter=False, waiting_since_us=0, acceptance=0.9)


@pytest.mark.parametrize("guessed", [0, 4])
@pytest.mark.parametrize("name", sorted(PACINGS))
def test_beside_a_long_prompt_no_step_takes_longer_than_it_may_and_the_prompt_gets_on(name: str, guessed: int) -> None:
    alone = Verifier(PrefillPrice(), {1: name}, {1: PROMPT_LEN}).run()
    beside = Verifier(PrefillPrice(), {1: name, 2: name, 3: name}, {1: 1, 2: 1, 3: PROMPT_LEN}, guessed=guessed)
    took_us = beside.run()
    assert max(beside.stretches) <= DEFAULT_PREFILL_STRETCH
    assert min(beside.num_read[:-1]) >= MIN_PREFILL_ROWS
    share = DEFAULT_PREFILL_STRETCH / (DEFAULT_PREFILL_STRETCH - 1.0)
    assert took_us <= 1.1 * share * alone, "three quarters of each step are the prompt's"


def test_without_the_bound_the_same_prompt_stalls_everybody() -> None:
    """The broken twin of the test above."""
    unbounded = Verifier(PrefillPrice(0.0), {1: "plain", 2: "plain"}, {1: 1, 2: PROMPT_LEN})
    unbounded.run()
    assert max(unbounded.stretches) > 2.5 * DEFAULT_PREFILL_STRETCH


@pytest.mark.parametrize("name", ["adaptive", "plain", "pearl"])
@pytest.mark.parametrize("acceptance", [0.0, 0.9])
def test_real_sessions_tokens_keep_coming_whatever_a_policy_has_come_to(name: str, acceptance: float) -> None:
    """In the simulator, where every client's next prompt is long; `adaptive` gives a useless drafter up and plans without it."""
    draft = CostCurve(((1, 500.0),))
    world = World(KNOWN, draft, ((Phase(acceptance),),), num_sessions=3, prompt_len=800, output_len=64, max_rows=MAX_ROWS)
    bounded, unbounded = (
        simulate(replace(world, prefill_stretch=stretch), make_pacing(name), 1_000) for stretch in (DEFAULT_PREFILL_STRETCH, 0.0)
    )
    longest_ms = DEFAULT_PREFILL_STRETCH * KNOWN.verify_us(3 * (1 + world.max_draft_len)) / 1000.0
    assert bounded.token_ms_p99 <= (DEFAULT_PREFILL_STRETCH * 10.3 if acceptance == 0.0 else longest_ms)
    assert unbounded.token_ms_p99 > 1.5 * bounded.token_ms_p99
    assert bounded.tokens_per_s > 0.8 * unbounded.tokens_per_s


def test_policies_share_one_bound() -> None:
    prompts = dict.fromkeys(range(4, 8), PROMPT_LEN // 4)
    policies = dict(enumerate(("plain", "serial", "pearl", "lookup", "adaptive", "plain", "serial"), start=1))
    several = Verifier(PrefillPrice(), policies, {1: 1, 2: 1, 3: 1, **prompts})
    several.run()
    assert max(several.stretches) <= 1.02 * DEFAULT_PREFILL_STRETCH, "but for what is measured of rows that get dearer"
    assert min(several.num_read[:-1]) >= MIN_PREFILL_ROWS


def test_rows_dearer_than_the_curve_says_are_found_out() -> None:
    """A curve that ends where rows are free would let a prompt take all there are: 19 times the step. One step tells."""
    found = Verifier(PrefillPrice(), {1: "plain", 2: "plain"}, {1: 1, 2: PROMPT_LEN}, truth=LATER_DEARER, known=FLAT)
    found.run()
    assert found.stretches[0] > 4 * DEFAULT_PREFILL_STRETCH, "nothing was known"
    assert max(found.stretches[1:]) <= 1.1 * DEFAULT_PREFILL_STRETCH
    blind = Verifier(Blind(), {1: "plain", 2: "plain"}, {1: 1, 2: PROMPT_LEN}, truth=LATER_DEARER, known=FLAT)
    blind.run()
    assert max(blind.stretches[1:]) > 4 * DEFAULT_PREFILL_STRETCH


class Blind(PrefillPrice):
    """Learns nothing: the broken twin."""

    def observe(self, num_read: int, num_own: int, step_us: float, cost: CostCurve) -> None:
        pass


def test_the_wait_for_a_first_step_counts_the_steps_that_the_bound_leaves() -> None:
    """4,000 tokens at 200 us beside 8 sessions: a step may take 42.8 ms, of which 10.7 are theirs."""
    bounded, unbounded = QueueTime(MAX_ROWS), QueueTime(MAX_ROWS, 0.0, PrefillPrice(0.0))
    assert unbounded.wait_us(PROMPT_LEN, 8, KNOWN) == pytest.approx(800_000, rel=0.12)
    assert bounded.wait_us(PROMPT_LEN, 8, KNOWN) == pytest.approx(800_000 * 4 / 3, rel=0.02)
    assert bounded.wait_us(PROMPT_LEN, 0, KNOWN) == unbounded.wait_us(PROMPT_LEN, 0, KNOWN)


# --- the engine thread ----------------------------------------------------------------------------------------------------


class RowsCost(TableEngine):
    """Steps cost what their rows do. steps: rows of those who decode, and rows that are read, of each."""

    def __init__(self) -> None:
        super().__init__(TABLE, num_blocks=1024, max_rows=MAX_ROWS)
        self.steps: list[tuple[int, int]] = []

    def step(self, plan: StepPlan) -> StepResult:
        read = sum(len(rows.committed) for rows in plan.sequences if len(rows.committed) != 1)
        result = super().step(plan)
        self.steps.append((result.num_rows - read, read))
        return replace(result, step_us=round(KNOWN.verify_us(result.num_rows)))


def stretches(stretch: float) -> list[float]:
    """Of the steps in which an engine thread read a prompt beside a session that decoded."""
    engine = RowsCost()
    loop = Loop(engine, prefill_price=PrefillPrice(stretch))
    prompt = np.asarray([2 + at % 30 for at in range(PROMPT_LEN)], np.int32)
    with loop.scheduler.inbox._lock:  # found at once: the short prompt is read in the first step, and decodes from then on
        running = loop.open(NUM_TOKENS)
        late = loop.open(4, prefix=prompt, num_prompt=PROMPT_LEN, max_len=PROMPT_LEN + 4)
    assert [ended(loop, answer).reason for answer in (running, late)] == [FinishReason.LENGTH] * 2
    loop.stop()
    assert loop.tokens(running) == TABLE.answer(PROMPT, len(PROMPT) + NUM_TOKENS, frozenset({TABLE.eos}))
    return [KNOWN.verify_us(own + read) / KNOWN.verify_us(own) for own, read in engine.steps if own and read]


def test_the_engine_thread_holds_prompts_to_the_bound_it_was_given() -> None:
    assert 3.0 < max(stretches(4.0)) <= 4.1
    assert 1.5 < max(stretches(2.0)) <= 2.1
    assert max(stretches(0.0)) > 9.0, "0 is no bound"


@pytest.mark.parametrize("value", ["1", "0.5", "-4", "nan", "1001"])
def test_a_stretch_that_cannot_be_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match="--max-prefill-stretch"):
        parse_settings(["--model", "x", "--max-prefill-stretch", value])


def test_the_operators_stretch_arrives() -> None:
    assert parse_settings(["--model", "x", "--max-prefill-stretch", "0"]).max_prefill_stretch == 0.0
    assert parse_settings(["--model", "x"]).max_prefill_stretch == DEFAULT_PREFILL_STRETCH
