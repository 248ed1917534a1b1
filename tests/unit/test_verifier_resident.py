"""A drafter inside the verifier's process: its guesses are used, what it holds is freed, and its failure costs drafts only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from drafter_service.drafting_thread import LoadedDrafter
from fakes import TableEngine, TruthTable
from fakes_scheduler import PROMPT, TABLE, WAIT_S, Loop, ended
from outrider.drafting.replay_source import ReplayOptions, ReplaySource
from outrider.engine.contract import Engine
from outrider.errors import IncompatiblePair
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import PacingPlan, StepView
from outrider.types.frames import Commit, DrafterFrame, VerifierFrame
from outrider.types.identity import ModelIdentity
from pair_service.next_door import MAX_MESSAGES, DrafterNextDoor
from verifier_service.answer import MAX_UNDELIVERED_TOKENS, TokensCommitted
from verifier_service.resident import RESIDENT
from verifier_service.scheduler import Scheduler

NUM_TOKENS = 60
TRUTH = TABLE.answer(PROMPT, len(PROMPT) + NUM_TOKENS, frozenset({0}))


def next_door(table: TruthTable = TABLE, acceptance: float = 0.8) -> DrafterNextDoor:
    """A drafter that knows the text, and is right with this probability."""
    engine = TableEngine(table)
    size = engine.identity.vocab_size
    source = ReplaySource(ReplayOptions(((*PROMPT, *TRUTH),), acceptance, size, seed=4))
    bounds = DrafterBounds(source.name, size, frozenset(), 4096, 4096)
    return DrafterNextDoor(LoadedDrafter(engine, source, bounds))


class Failing:
    """A resident drafter that raises in one of its calls, from the given one on."""

    def __init__(self, where: str, after: int) -> None:
        self.drafter = next_door()
        self.identity: ModelIdentity = self.drafter.identity
        self.num_freed = 0
        self._where = where
        self._left = after

    def meet(self, target: Engine) -> None:
        self._fail("meet")
        self.drafter.meet(target)

    def tell(self, frames: list[VerifierFrame]) -> None:
        self._fail("tell")
        self.drafter.tell(frames)

    def work(self) -> list[DrafterFrame]:
        self._fail("work")
        return self.drafter.work()

    def free(self) -> None:
        self.num_freed += 1
        self.drafter.free()

    def _fail(self, where: str) -> None:
        if where == self._where:
            self._left -= 1
            if self._left < 0:
                raise ZeroDivisionError("a bug of the drafter's")


@contextmanager
def looping(drafter: DrafterNextDoor | Failing) -> Iterator[Loop]:
    loop = Loop(TableEngine(TABLE), lambda: drafter)
    yield loop
    loop.stop()


@pytest.mark.parametrize("pacing", ["serial", "pearl", "adaptive"])
def test_its_guesses_are_used_and_nothing_is_held_afterwards(pacing: str) -> None:
    drafter = next_door()
    with looping(drafter) as loop:
        answers = [loop.open(NUM_TOKENS, pacing) for _ in range(3)]
        ends = [ended(loop, answer) for answer in answers]
        assert [loop.tokens(answer) for answer in answers] == [TRUTH] * 3
        if pacing == "serial":  # how much the others draft depends on what they measure
            assert all(0 < end.statistics.num_accepted < end.statistics.num_drafted for end in ends)
            assert all(end.statistics.num_rounds < NUM_TOKENS for end in ends)
        assert not loop.frames, "nothing was handed to the event loop that is for a drafter of this thread"
    assert drafter.num_sessions == 0


def test_pacing_hears_that_it_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    plan = AdaptivePacing.plan

    def watched(self: AdaptivePacing, view: StepView) -> PacingPlan:
        seen.extend(session.takes_turns for session in view.sessions if session.has_drafter)
        return plan(self, view)

    monkeypatch.setattr(AdaptivePacing, "plan", watched)
    with looping(next_door()) as loop:
        ended(loop, loop.open(NUM_TOKENS, "adaptive"))
    assert seen
    assert all(seen)


@pytest.mark.parametrize("where", ["tell", "work"])
@pytest.mark.parametrize("after", [0, 3])
def test_one_that_fails_costs_its_drafts_only(where: str, after: int) -> None:
    costs_drafts_only(where, after)


def test_one_that_fails_to_meet_the_target_costs_its_drafts_only() -> None:
    costs_drafts_only("meet", 0)


def costs_drafts_only(where: str, after: int) -> None:
    drafter = Failing(where, after)
    with looping(drafter) as loop:
        for _ in range(2):
            answer = loop.open(NUM_TOKENS, "serial")
            end = ended(loop, answer)
            assert end.error is None
            assert loop.tokens(answer) == TRUTH
        assert end.statistics.num_drafted == 0, "the second answer began after the loss"
        assert loop.scheduler.resident is not None
        assert "ZeroDivisionError" in loop.scheduler.resident.problem
        assert not loop.scheduler.sessions.drafters
    assert drafter.num_freed == 1
    assert drafter.drafter.num_sessions == 0


def test_a_session_that_ends_early_is_freed_there_too() -> None:
    drafter = next_door()
    with looping(drafter) as loop:
        answer = loop.open(NUM_TOKENS, "serial", stop_token_ids=frozenset({TRUTH[20]}))
        ended(loop, answer)
        ended(loop, loop.open(NUM_TOKENS, "serial"))  # one more turn for it, and all that it was told is taken
        assert loop.tokens(answer) == TRUTH[: TRUTH.index(TRUTH[20]) + 1]
    assert drafter.num_sessions == 0


def test_one_of_another_vocabulary_is_refused_at_start() -> None:
    scheduler = Scheduler(
        lambda: TableEngine(TABLE),
        lambda _: None,
        lambda: None,
        lambda: None,
        max_sessions=1,
        draft_len=None,
        load_resident=lambda: next_door(TruthTable(vocab_size=TABLE.vocab_size + 1, seed=3)),
    )
    scheduler.start()
    with pytest.raises(IncompatiblePair, match="differs"):
        scheduler.engine_ready.result(WAIT_S)


def test_what_it_is_told_without_a_turn_is_bounded() -> None:
    drafter = next_door()
    for _ in range(MAX_MESSAGES):
        drafter.tell([])
    with pytest.raises(RuntimeError, match="no turn"):
        drafter.tell([])
    drafter.work()
    drafter.tell([])


def test_its_name_is_no_address() -> None:
    assert ":" not in RESIDENT


class Watching:
    """A resident drafter that notes, at each turn after a commit, how many tokens clients have been sent."""

    def __init__(self) -> None:
        self.drafter = next_door()
        self.identity: ModelIdentity = self.drafter.identity
        self.num_sent: Callable[[], int] = lambda: 0
        self.at_turns: list[tuple[int, int]] = []  # tokens committed as it was told, tokens sent
        self._committed = 0

    def meet(self, target: Engine) -> None:
        self.drafter.meet(target)

    def tell(self, frames: list[VerifierFrame]) -> None:
        self._committed += sum(len(frame.tokens) for frame in frames if isinstance(frame, Commit))
        self.drafter.tell(frames)

    def work(self) -> list[DrafterFrame]:
        self.at_turns.append((self._committed, self.num_sent()))
        return self.drafter.work()

    def free(self) -> None:
        self.drafter.free()


def test_what_was_committed_leaves_for_clients_before_its_turn() -> None:
    drafter = Watching()
    loop = Loop(TableEngine(TABLE), lambda: drafter)
    drafter.num_sent = lambda: sum(
        len(message.tokens) for one in loop.messages.values() for message in one if isinstance(message, TokensCommitted)
    )
    ended(loop, loop.open(NUM_TOKENS, "serial"))
    loop.stop()
    turns = [(told, sent) for told, sent in drafter.at_turns if told]
    assert len(turns) > 5
    assert all(sent >= told for told, sent in turns)


def test_the_end_of_the_thread_frees_what_it_holds_for_live_sessions() -> None:
    drafter = next_door()
    loop = Loop(TableEngine(TABLE, num_blocks=1024), lambda: drafter)
    slow = loop.open(4 * MAX_UNDELIVERED_TOKENS, "serial")  # nobody reads, so it never ends
    with loop.changed:
        assert loop.changed.wait_for(lambda: slow.is_slow, WAIT_S)
    loop.stop()
    assert drafter.num_sessions == 0
