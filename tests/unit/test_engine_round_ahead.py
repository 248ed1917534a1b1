"""A pair of engines on one thread that compute rounds ahead, under the verifier's own scheduler: every answer is that of plain decoding, of
sessions one by one, side by side and cut off, right guesses and wrong ones, and nothing is held in the end. And what an engine does before
it may not be at work.

Run: pytest tests/unit/test_engine_round_ahead.py
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from drafter_service.drafting_thread import LoadedDrafter
from fakes_followed import MAX_NODES, NONE, NUM_IDS, SAMPLINGS, FollowingEngines, ints, opened, step
from fakes_scheduler import Loop, ended
from mostly_slow import crossed
from outrider.drafting.model_source import ModelSource
from outrider.engine import round_ahead
from outrider.engine.paged_engine import PagedEngine
from outrider.engine.round_ahead import compute_ahead, compute_plain_ahead, share_cores
from outrider.engine.step_threads import TeamThreads
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.pacing.contract import CostCurve, PacingPlan, StepView
from outrider.session.pacing.plain import PlainPacing
from outrider.session.pacing.serial import SerialPacing
from outrider.types.frames import DraftLimits
from outrider.types.sampling import NoiseAddress
from outrider.types.step import Follow, SequenceRows, StepPlan, StepResult
from outrider_kernels.thin_ahead import ThinAhead
from outrider_kernels.thin_chain import ThinChain
from outrider_kernels.thin_matrix import PANEL
from pair_service import next_door
from verifier_service.answer import AnswerStream, SessionEnded
from verifier_service.inbox import CancelAsked

MAX_TOKENS = 50
WAIT_S = 20.0  # a bound on what would hang, no measure of speed
NEVER = (3, 11, 17, 29, 40)  # the target picks none of these: where the draft would, it is wrong


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> FollowingEngines:
    return FollowingEngines(tmp_path_factory.mktemp)


def emptied(engine: PagedEngine) -> PagedEngine:
    """Without the sequences that it was made with."""
    for sequence in list(engine._sequences.states):
        engine.close(sequence)
    return engine


@pytest.fixture
def engines(alone: FollowingEngines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PagedEngine, PagedEngine]]:
    """A draft's and a target's of one model, each with a team of its own: a team computes ahead for one pair in its life."""
    drafts, targets = FollowingEngines(tmp_path_factory.mktemp), FollowingEngines(tmp_path_factory.mktemp, num_threads=2)
    draft, target = emptied(drafts.make(num_blocks=400)), emptied(targets.make(num_blocks=400, missing_ids=NEVER))
    free = draft.num_free_blocks, target.num_free_blocks
    yield draft, target
    assert (draft.num_free_blocks, target.num_free_blocks) == free


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> list[ThinAhead]:
    """Those that were made."""
    made: list[ThinAhead] = []

    def noted(draft: PagedEngine, target: PagedEngine) -> ThinAhead | None:
        ahead = compute_ahead(draft, target)
        if ahead is not None:
            made.append(ahead)
        return ahead

    monkeypatch.setattr(next_door, "share_cores", noted)
    return made


def loop_of(draft: PagedEngine, target: PagedEngine) -> Loop:
    source = ModelSource(draft, max_depth=16)
    bounds = DrafterBounds(source.name, NUM_IDS, frozenset(), 70, 70, 8)
    return Loop(target, lambda: next_door.DrafterNextDoor(LoadedDrafter(draft, source, bounds)), draft_len=6)


def wait_for_what_is_ahead(monkeypatch: pytest.MonkeyPatch, engine: PagedEngine, pairs: list[ThinAhead]) -> list[StepResult]:
    """Before each step; all results, as they come. A helper that finds no core for itself has not begun when its round is asked for, which
    is then computed there and then: beside other tests nearly every time."""
    at_once, results = engine.step, list[StepResult]()

    def patient(plan: StepPlan) -> StepResult:
        while not all(pair.is_at_rest for pair in pairs):
            os.sched_yield()
        results.append(at_once(plan))
        return results[-1]

    monkeypatch.setattr(engine, "step", patient)
    return results


def noted_costs_ahead(monkeypatch: pytest.MonkeyPatch) -> list[CostCurve | None]:
    """What `serial` is told, plan by plan."""
    seen, plan_of = list[CostCurve | None](), SerialPacing.plan

    def noted(policy: SerialPacing, view: StepView) -> PacingPlan:
        seen.append(view.cost_ahead)
        return plan_of(policy, view)

    monkeypatch.setattr(SerialPacing, "plan", noted)
    return seen


def asked(loop: Loop, seed: int, sampling: str, pacing: str) -> AnswerStream:
    changes: dict[str, Any] = {
        "prefix": np.array([5 + seed, 6, 7], np.int32),
        "sampling": SAMPLINGS[sampling],
        "noise": NoiseAddress(seed),
        "vocab_size": NUM_IDS,
        "stop_token_ids": frozenset(),
        "limits": DraftLimits(max_len=3 + MAX_TOKENS, max_nodes=6),
        "max_draft_len": 6,
        "max_nodes": MAX_NODES,
    }
    return loop.open(MAX_TOKENS, pacing, **changes)


SAMPLED = ["greedy", "warm", "top p", "top k", "penalised", "biased", "left"]


@pytest.mark.parametrize(("sampling", "pacing"), crossed(SAMPLED, ["serial", "adaptive", "plain"]))
def test_answers_are_those_of_plain_decoding(
    alone: FollowingEngines,
    engines: tuple[PagedEngine, PagedEngine],
    pairs: list[ThinAhead],
    monkeypatch: pytest.MonkeyPatch,
    sampling: str,
    pacing: str,
) -> None:
    plain = Loop(emptied(alone.make(num_blocks=400, missing_ids=NEVER)))
    expected = []
    for seed in range(6):
        answer = asked(plain, seed, sampling, "plain")
        assert ended(plain, answer).error is None
        expected.append(plain.tokens(answer))
    plain.stop()
    steps: list[StepResult] = []
    seen = noted_costs_ahead(monkeypatch)
    if pacing != "adaptive":  # which takes its chances
        _, steps = (wait_for_what_is_ahead(monkeypatch, engine, pairs) for engine in engines)
    loop = loop_of(*engines)
    for seed in range(6):
        answer = asked(loop, seed, sampling, pacing)
        assert ended(loop, answer).error is None
        assert loop.tokens(answer) == expected[seed]
    together = [asked(loop, seed, sampling, pacing) for seed in range(3)]
    for seed, answer in enumerate(together):
        assert ended(loop, answer).error is None
        assert loop.tokens(answer) == expected[seed]
    for seed in range(6):
        cut = asked(loop, seed, sampling, pacing)
        loop.more(cut, 5 * seed)
        loop.scheduler.inbox.put(CancelAsked(cut, "enough"))
        loop.wait(cut, SessionEnded)
        got = loop.tokens(cut)
        assert got == expected[seed][: len(got)]
    loop.stop()
    (ahead,) = pairs
    if sampling == "left":  # its rows are left to the general pick, so nothing can be known ahead
        assert ahead.counts == (0, 0, 0)
        assert ahead.plain_counts == (0, 0)
        assert loop.scheduler.steps.loan.ahead is None
    elif pacing == "plain":
        num_sent, num_asked = ahead.plain_counts
        assert ahead.counts == (0, 0, 0)
        assert num_sent >= num_asked > 100, "nearly every step of a session alone"
        assert 0 < sum(result.was_ahead for result in steps) <= num_asked
        assert loop.scheduler.steps.loan.ahead is None, "what steps over a draft cost so is another matter"
    elif pacing == "serial":  # what the other drafts depends on what it measures
        assert all(count > 5 for count in ahead.counts), ahead.counts
        assert 0 < sum(result.was_ahead for result in steps) <= ahead.counts[2], "a step may be asked for just as it begins"
        assert loop.scheduler.steps.loan.ahead is not None
        assert seen[0] is None
        assert seen[-1] is not None, "and policies are told"


SHORTLIST = 64  # of 93 ids, so that what is listed changes again and again
NUM_ROUNDS, NUM_GUESSES = 18, 3


def rounds_of(draft: PagedEngine, target: PagedEngine, ahead: ThinAhead | None, top_logprobs: int | None = None) -> list[list[int]]:
    """The guesses of each round, the target's pick behind what is right of them committed."""
    committed, found = ints(5, 6, 7), list[list[int]]()
    unread = committed  # by the draft
    for _ in range(NUM_ROUNDS):
        until = time.monotonic() + WAIT_S
        while ahead is not None and not ahead.is_at_rest:
            assert time.monotonic() < until, "an errand that nobody does"
            os.sched_yield()
        guesses = step(draft, SequenceRows(51, unread, NONE, NONE, pick_probs=True, follow=Follow(NUM_GUESSES - 1))).picks
        found.append(guesses.tolist())
        parents = np.arange(-1, len(guesses) - 1, dtype=np.int32)
        verdict = step(target, SequenceRows(51, committed, guesses, parents, acceptance="coupled", top_logprobs=top_logprobs)).verdict
        assert verdict is not None
        target.keep(51, verdict.path)
        num_right, num_fed = len(verdict.path), min(len(verdict.path), len(guesses) - 1)
        draft.keep(51, tuple(range(num_fed)))
        committed = ints(verdict.emitted)
        unread = np.concatenate((guesses[num_fed:num_right], committed))
    return found


@pytest.mark.parametrize("sampling", ["greedy", "warm", "penalised"])
def test_guesses_among_a_shortlist_are_the_same_with_rounds_ahead_and_without(
    tmp_path_factory: pytest.TempPathFactory, sampling: str
) -> None:
    """A list that changes drops what was computed by the one before."""
    drafts, targets = FollowingEngines(tmp_path_factory.mktemp), FollowingEngines(tmp_path_factory.mktemp, num_threads=2)
    guesses, counts = list[list[list[int]]](), (0, 0, 0)
    for is_ahead in (False, True):
        draft = opened(drafts.make(shortlist=SHORTLIST), SAMPLINGS[sampling])
        target = opened(targets.make(missing_ids=NEVER), SAMPLINGS[sampling])
        ahead = compute_ahead(draft, target) if is_ahead else None
        guesses.append(rounds_of(draft, target, ahead))
        counts = ahead.counts if ahead is not None else counts
    assert all(counts), counts
    assert guesses[0] == guesses[1]
    assert len({token // PANEL for picks in guesses[0] for token in picks}) > SHORTLIST // PANEL, "more than any one list holds"


@pytest.mark.parametrize("top_logprobs", [None, 2])
def test_nothing_is_computed_ahead_where_log_probabilities_are_read(
    tmp_path_factory: pytest.TempPathFactory, top_logprobs: int | None
) -> None:
    """They are of logits that it would write over."""
    drafts, targets = FollowingEngines(tmp_path_factory.mktemp), FollowingEngines(tmp_path_factory.mktemp, num_threads=2)
    draft, target = (opened(made, SAMPLINGS["greedy"]) for made in (drafts.make(), targets.make(missing_ids=NEVER)))
    ahead = compute_ahead(draft, target)
    assert ahead is not None
    rounds_of(draft, target, ahead, top_logprobs)
    assert any(ahead.counts) == (top_logprobs is None)


class Recorder:
    """In a chain's place: what was called, and how often it was settled."""

    def __init__(self) -> None:
        self.num_settled = 0

    def settle(self) -> None:
        self.num_settled += 1


def test_whatever_moves_or_frees_what_a_sequence_lies_in_settles_before(alone: FollowingEngines) -> None:
    engine = opened(alone.make())
    engine.chain = chain = Recorder()  # type: ignore[assignment]
    step(engine, SequenceRows(51, ints(4, 5, 6), NONE, NONE))
    assert chain.num_settled == 0, "a chain looks after itself"
    step(engine, SequenceRows(51, NONE, ints(7, 8), ints(-1, -1)))
    assert chain.num_settled == 1, "a tree does not go through the chain"
    engine.keep(51, (1,))
    assert chain.num_settled == 2, "a node is moved to where it belongs"
    engine.truncate(51, 2)
    assert chain.num_settled == 3
    engine.close(51)
    assert chain.num_settled == 4


def test_a_draft_that_reads_much_has_all_cores_in_its_turn_and_nothing_is_computed_ahead(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft, target = (FollowingEngines(tmp_path_factory.mktemp, num_threads=2).make() for _ in range(2))
    chain = draft.chain
    assert isinstance(chain, ThinChain)

    def active_after(shared_bytes: int) -> tuple[int, bool]:
        """Threads of the draft's next step, and whether rounds are computed ahead."""
        assert isinstance(chain, ThinChain)
        draft._threads = TeamThreads(chain.team, most_lent=1)
        monkeypatch.setattr(round_ahead, "SHARED_BYTES", shared_bytes)
        ahead = share_cores(draft, target)
        draft._threads.use(0)
        return chain.team.num_active, ahead is not None

    assert active_after(chain.row_bytes) == (2, False)
    assert active_after(chain.row_bytes + 1) == (1, True)


def test_what_a_row_reads_is_every_matrix_once_and_of_a_short_head_what_is_listed(alone: FollowingEngines) -> None:
    engine = alone.make()
    weights, chain = engine._forward._weights, engine.chain  # type: ignore[attr-defined]
    assert isinstance(chain, ThinChain)
    thin = [layer.thin for layer in weights.layers]
    layers = sum(each.num_bytes for of in thin for each in (of.qkv, of.output, of.gate_up, of.down))
    assert chain.row_bytes == layers + weights.thin_head.num_bytes
    chain._rows.head.limit_to(np.array([0], np.int32))
    assert layers < chain.row_bytes < layers + weights.thin_head.num_bytes


@pytest.mark.parametrize("sampling", ["greedy", "warm", "penalised"])
def test_a_verifier_without_a_drafter_computes_plain_steps_ahead(
    alone: FollowingEngines, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, sampling: str
) -> None:
    """Of a session that is alone; beside others, steps are as ever."""
    made: list[ThinAhead] = []

    def noted(target: PagedEngine) -> ThinAhead | None:
        ahead = compute_plain_ahead(target)
        if ahead is not None:
            made.append(ahead)
        return ahead

    monkeypatch.setattr("verifier_service.scheduler.compute_plain_ahead", noted)
    seen, plan_of = list[bool](), PlainPacing.plan

    def seeing(policy: PlainPacing, view: StepView) -> PacingPlan:
        seen.append(view.plain_ahead)
        return plan_of(policy, view)

    monkeypatch.setattr(PlainPacing, "plan", seeing)
    answers: list[list[list[int]]] = []
    for engine in (alone.make(num_blocks=400), FollowingEngines(tmp_path_factory.mktemp, num_threads=2).make(num_blocks=400)):
        emptied(engine)
        free = engine.num_free_blocks
        wait_for_what_is_ahead(monkeypatch, engine, made)
        loop = Loop(engine)
        heard: list[list[int]] = []
        for seed in range(4):
            answer = asked(loop, seed, sampling, "plain")
            assert ended(loop, answer).error is None
            heard.append(loop.tokens(answer))
        for answer in [asked(loop, seed, sampling, "plain") for seed in range(4, 7)]:
            assert ended(loop, answer).error is None
            heard.append(loop.tokens(answer))
        loop.stop()
        assert engine.num_free_blocks == free
        answers.append(heard)
    assert answers[0] == answers[1]
    assert (seen[0], seen[-1]) == (False, True), "policies are told, once there was one"
    (ahead,) = made
    num_sent, num_asked = ahead.plain_counts
    assert num_sent >= num_asked > 100
    assert ahead.counts == (0, 0, 0)


def plain_steps(engine: PagedEngine, lent: list[int]) -> list[int]:
    """What is picked, step by step, on so many lent threads each."""
    picks = [4]
    for num_lent in lent:
        rows = SequenceRows(51, ints(picks[-1]), NONE, NONE, acceptance="coupled")
        verdict = engine.step(StepPlan((rows,), num_lent)).results[0].verdict
        assert verdict is not None
        picks.append(int(verdict.emitted))
    return picks


def test_threads_compute_ahead_while_they_are_lent_and_no_longer(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = [opened(FollowingEngines(tmp_path_factory.mktemp, num_threads=2).make(), SAMPLINGS["greedy"]) for _ in range(2)]
    engine, chain = engines[0], engines[0].chain
    assert isinstance(chain, ThinChain)
    engine._threads, engine._limits = TeamThreads(chain.team, most_lent=1), replace(engine.limits, lent_threads=1)
    ahead = compute_plain_ahead(engine)
    assert ahead is not None
    wait_for_what_is_ahead(monkeypatch, engine, [ahead])
    lent = [0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0]
    assert plain_steps(engine, lent) == plain_steps(engines[1], [0] * len(lent))
    assert ahead.plain_counts[0] == sum(lent), "none where the owner has its core"
    assert ahead.plain_counts[1] == sum(a and b for a, b in itertools.pairwise(lent)), "nor where it has it back by then"
    engine.end_loan()
    assert ahead.is_at_rest
    assert chain.team.num_active == 1


def test_who_takes_lent_threads_back_has_them_at_once(alone: FollowingEngines) -> None:
    engine = opened(alone.make())
    engine.chain = chain = Recorder()  # type: ignore[assignment]
    plain_steps(engine, [1, 1])
    assert chain.num_settled == 0
    engine.end_loan()
    assert chain.num_settled == 1, "what is computed ahead there is dropped"
    engine.end_loan()
    plain_steps(engine, [0, 0])
    assert chain.num_settled == 1, "none is lent"
    plain_steps(engine, [1, 0])
    assert chain.num_settled == 2


def test_an_engine_without_a_chain_or_a_thread_to_spare_computes_nothing_ahead(alone: FollowingEngines) -> None:
    draft, target = alone.make(), alone.make("qwen3")
    assert compute_ahead(draft, target) is None
    assert compute_plain_ahead(target) is None
    draft.chain = None
    assert compute_ahead(target, draft) is None
