"""A drafter that is hardly ever right gets no new sessions for a while; one hard text costs nobody its place, and no token changes.

pytest tests/unit/test_verifier_acceptance_floor.py
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

import pytest

from drafter_service.drafting_thread import LoadedDrafter
from fakes import TableEngine
from fakes_scheduler import PROMPT, TABLE, Loop, ended
from fakes_simulation import ScriptedDrafter, Simulation, spec_of
from outrider.drafting.replay_source import ReplayOptions, ReplaySource
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.drafter_tally import DrafterTally
from outrider.session.pacing.registry import make_pacing
from outrider.session.statistics import SessionStatistics
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.types.frames import Open
from pair_service.next_door import DrafterNextDoor
from verifier_service import judged_portions
from verifier_service.acceptance_floor import (
    FIRST_PAUSE_US,
    MAX_DRAFTERS,
    MAX_JUDGED_OF_A_SESSION,
    MAX_PAUSE_US,
    MIN_JUDGED,
    MIN_JUDGED_ON_TRIAL,
    AcceptanceFloor,
    Verdict,
)
from verifier_service.answer import AnswerStream
from verifier_service.clock import monotonic_us
from verifier_service.drafter_counters import MAX_NAMES, OTHER, DrafterCounters
from verifier_service.drafter_record import MIN_ROUNDS, DrafterRecord
from verifier_service.inbox import PairDown, PairUp
from verifier_service.judged_portions import ROUNDS_BETWEEN_LOOKS, JudgedPortions
from verifier_service.resident import RESIDENT

NUM_TOKENS = 80
TRUTH = TABLE.answer(PROMPT, len(PROMPT) + NUM_TOKENS, frozenset({0}))
SESSIONS_TO_DROP = MIN_JUDGED // MAX_JUDGED_OF_A_SESSION
MAX_SESSIONS = 200  # on a machine so busy that drafts come late, a session may have few
SESSIONS_ON_TRIAL = MIN_JUDGED_ON_TRIAL // MAX_JUDGED_OF_A_SESSION


class Verifier:
    """Sessions of one drafter, one after the other, at a time that stands still."""

    def __init__(self) -> None:
        self.floor = AcceptanceFloor()
        self.now_us = 1_000
        self.handles = itertools.count(1)

    def session(self, num_right: int, num_wrong: int, drafter: str = "d") -> list[Verdict]:
        handle = next(self.handles)
        assert self.floor.admits(drafter, handle, self.now_us)
        return self.floor.end(handle, {drafter: DrafterTally(num_right, num_wrong)}, self.now_us)

    def admits(self) -> bool:
        handle = next(self.handles)
        admitted = self.floor.admits("d", handle, self.now_us)
        self.floor.end(handle, {}, self.now_us)
        return admitted

    def drop(self, num_sessions: int = SESSIONS_TO_DROP) -> Verdict:
        for _ in range(num_sessions - 1):
            assert self.session(0, 500) == []
        (verdict,) = self.session(0, 500)
        return verdict


def test_several_sessions_without_a_right_guess_cost_a_drafter_its_place() -> None:
    verifier = Verifier()
    assert verifier.drop() == Verdict("d", MIN_JUDGED, 0, FIRST_PAUSE_US)
    assert not verifier.admits()
    assert verifier.floor.admits("another", 77, verifier.now_us)


def test_one_hard_text_costs_nobody_its_place() -> None:
    verifier = Verifier()
    assert verifier.session(0, 100_000) == []
    for _ in range(20):
        assert verifier.session(30, 70) == []
        assert verifier.admits()


def test_a_poor_drafter_stays_and_a_useless_one_goes() -> None:
    poor, useless = Verifier(), Verifier()
    assert [verdict for _ in range(40) for verdict in poor.session(3, 61)] == []
    verdicts = [verdict for _ in range(SESSIONS_TO_DROP) for verdict in useless.session(1, 63)]
    assert [(verdict.num_right, verdict.num_judged) for verdict in verdicts] == [(4, MIN_JUDGED)]


def test_a_drafter_that_turns_bad_late_goes_too() -> None:
    verifier = Verifier()
    for _ in range(100):
        assert verifier.session(50, 14) == []
    verdicts = [verdict for _ in range(40) if verifier.admits() for verdict in verifier.session(0, 64)]
    assert len(verdicts) == 1


def test_after_its_pause_it_is_tried_by_one_session_at_a_time() -> None:
    verifier = Verifier()
    verifier.drop()
    verifier.now_us += FIRST_PAUSE_US - 1
    assert not verifier.admits()
    verifier.now_us += 1
    first, second = 1001, 1002
    assert verifier.floor.admits("d", first, verifier.now_us)
    assert not verifier.floor.admits("d", second, verifier.now_us)
    assert verifier.floor.admits("d", first, verifier.now_us), "its stream may break and come back"
    assert verifier.floor.end(first, {"d": DrafterTally(0, 64)}, verifier.now_us) == []
    assert verifier.floor.admits("d", second, verifier.now_us), "one session does not decide"


def test_a_trial_ends_the_exile_or_doubles_it() -> None:
    verifier = Verifier()
    verifier.drop()
    for factor in (2, 4):
        verifier.now_us += MAX_PAUSE_US
        assert verifier.drop(SESSIONS_ON_TRIAL) == Verdict("d", MIN_JUDGED_ON_TRIAL, 0, factor * FIRST_PAUSE_US)
        assert not verifier.admits()
    verifier.now_us += MAX_PAUSE_US
    assert verifier.session(60, 4) == []
    assert verifier.session(60, 4) == [Verdict("d", MIN_JUDGED_ON_TRIAL, 120, 0)]
    assert all(verifier.floor.admits("d", handle, verifier.now_us) for handle in (2001, 2002))
    verdicts = next(filter(None, (verifier.session(0, 64) for _ in range(100))))
    assert [verdict.pause_us for verdict in verdicts] == [FIRST_PAUSE_US], "pauses begin again with the first"


def test_pauses_are_bounded() -> None:
    verifier = Verifier()
    pauses = [verifier.drop().pause_us]
    for _ in range(10):
        verifier.now_us += MAX_PAUSE_US
        pauses.append(verifier.drop(SESSIONS_ON_TRIAL).pause_us)
    assert pauses[-1] == pauses[-2] == MAX_PAUSE_US
    assert pauses == sorted(pauses)


def test_a_trial_that_says_nothing_goes_on_with_the_next_session() -> None:
    verifier = Verifier()
    verifier.drop()
    verifier.now_us += FIRST_PAUSE_US
    assert verifier.floor.admits("d", 1, verifier.now_us)
    assert verifier.floor.end(1, {}, verifier.now_us) == []
    assert verifier.floor.admits("d", 2, verifier.now_us)


def test_sessions_from_before_the_pause_are_no_news() -> None:
    verifier = Verifier()
    assert all(verifier.floor.admits("d", handle, 0) for handle in range(900, 910))
    verifier.drop()
    ends = [verifier.floor.end(handle, {"d": DrafterTally(60, 4)}, verifier.now_us) for handle in range(900, 910)]
    assert ends == [[]] * 10
    assert not verifier.admits()


def test_standings_are_bounded() -> None:
    verifier = Verifier()
    for number in range(3 * MAX_DRAFTERS):
        verifier.session(0, 64, f"d{number}")
    assert len(verifier.floor._standings) == MAX_DRAFTERS


def test_labels_are_bounded() -> None:
    metrics = LocalMetrics()
    counters = DrafterCounters(metrics)
    for number in range(MAX_NAMES + 5):
        counters.ended(f"d{number}", DrafterTally(1, 2, 3))
    found = {series.label_values[0]: series.value for series in metrics.snapshot() if series.metric is names.NUM_DRAFT_DEADLINE_MISSES}
    assert len(found) == MAX_NAMES + 1
    assert (found["d0"], found[OTHER]) == (3, 15)


# --- in a verifier --------------------------------------------------------------------------------------------------------


def next_door(acceptance: float, text: Sequence[int] = TRUTH) -> DrafterNextDoor:
    """A drafter that knows the text, and is right with this probability."""
    engine = TableEngine(TABLE)
    size = engine.identity.vocab_size
    source = ReplaySource(ReplayOptions(((*PROMPT, *text),), acceptance, size, seed=4))
    return DrafterNextDoor(LoadedDrafter(engine, source, DrafterBounds(source.name, size, frozenset(), 4096, 4096)))


class Serving:
    """Sessions one after the other, with a resident drafter; every answer is the truth."""

    def __init__(self, acceptance: float, pacing: str) -> None:
        self._metrics = LocalMetrics()
        self._loop = Loop(TableEngine(TABLE), lambda: next_door(acceptance), metrics=self._metrics)
        self._pacing = pacing
        self._answers: list[AnswerStream] = []

    def session(self) -> int:
        """How many guesses were verified for it."""
        answer = self._loop.open(NUM_TOKENS, self._pacing)
        self._answers.append(answer)  # the loop tells answers apart by identity, which one that is gone leaves to another
        num_drafted = ended(self._loop, answer).statistics.num_drafted
        assert self._loop.tokens(answer) == TRUTH
        return num_drafted

    def counted(self, metric: names.Metric) -> float:
        return sum(series.value for series in self._metrics.snapshot() if series.metric is metric and RESIDENT in series.label_values)

    def stop(self) -> None:
        self._loop.stop()


@pytest.mark.parametrize("pacing", ["serial", "pearl"])
def test_a_rubbish_drafter_is_dropped_with_a_reason(pacing: str, caplog: pytest.LogCaptureFixture) -> None:
    serving, num_before = Serving(0.0, pacing), 0
    while not serving.counted(names.NUM_DRAFTER_DROPS):
        serving.session()
        num_before += 1
        assert num_before < MAX_SESSIONS, "it was never dropped"
    assert num_before >= SESSIONS_TO_DROP, "no session alone decides"
    assert [serving.session() for _ in range(3)] == [0, 0, 0]
    serving.stop()
    assert serving.counted(names.NUM_DRAFTER_DROPS) == 1
    assert (serving.counted(names.NUM_RIGHT_TOKENS), serving.counted(names.NUM_JUDGED_TOKENS) >= MIN_JUDGED) == (0, True)
    assert f"drafter {RESIDENT} is left out of new sessions for 60 s: only 0 of its last" in caplog.text


def test_a_fair_drafter_stays() -> None:
    serving = Serving(0.4, "serial")
    for _ in range(MAX_SESSIONS):
        serving.session()
        if serving.counted(names.NUM_JUDGED_TOKENS) > 2 * MIN_JUDGED:
            break
    serving.stop()
    assert not serving.counted(names.NUM_DRAFTER_DROPS)
    assert serving.counted(names.NUM_RIGHT_TOKENS) > 0.2 * serving.counted(names.NUM_JUDGED_TOKENS)


LONG = 1_000
LONG_TRUTH = TABLE.answer(PROMPT, len(PROMPT) + LONG, frozenset({0}))
MOST_WRONG = MIN_JUDGED + 8 * ROUNDS_BETWEEN_LOOKS  # a look comes late by as many rounds, of a few guesses each


class LongSession:
    """One session of LONG tokens with a resident drafter; `losses` of its drafter by cause."""

    def __init__(self, acceptance: float, *, num_others: int = 0) -> None:
        metrics = LocalMetrics()
        loop = Loop(TableEngine(TABLE, num_blocks=1024), lambda: next_door(acceptance, LONG_TRUTH), metrics=metrics)
        with loop.scheduler.inbox._lock:  # all of them before one of them can have judged its drafter
            answers = [loop.open(LONG, "serial") for _ in range(1 + num_others)]
        for answer in answers:
            answer.delivered(LONG)  # nobody reads: nothing of it is to be waited for
        statistics = [ended(loop, answer).statistics for answer in answers]
        assert all(loop.tokens(answer) == LONG_TRUTH for answer in answers)
        self.after = ended(loop, loop.open(NUM_TOKENS, "serial")).statistics
        loop.stop()
        self.losses = [one.drafter_losses for one in statistics]
        self.num_drafted = [one.num_drafted for one in statistics]
        self.num_drops = sum(series.value for series in metrics.snapshot() if series.metric is names.NUM_DRAFTER_DROPS)
        self.num_judged = sum(series.value for series in metrics.snapshot() if series.metric is names.NUM_JUDGED_TOKENS)


def test_a_long_answer_gives_a_useless_drafter_up_long_before_its_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        session = LongSession(0.0)
    assert session.losses == [(("acceptance", 1),)]
    assert MIN_JUDGED <= session.num_judged <= MOST_WRONG
    assert f"gives drafter {RESIDENT} up: 0 of its" in caplog.text
    assert session.after.num_drafted > 0, "one text, however long, costs nobody its place"
    assert not session.num_drops


def test_a_twin_that_judges_at_the_end_only_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged_portions, "ROUNDS_BETWEEN_LOOKS", 10 * LONG)
    session = LongSession(0.0)
    assert session.losses == [()]
    assert session.num_judged > MOST_WRONG


def test_long_answers_that_run_together_cost_a_useless_drafter_its_place_before_they_end() -> None:
    session = LongSession(0.0, num_others=SESSIONS_TO_DROP)
    assert session.losses == [(("acceptance", 1),)] * (1 + SESSIONS_TO_DROP)
    assert session.num_drops == 1
    assert session.after.num_drafted == 0


def test_what_a_long_answer_gave_up_is_not_counted_again_at_its_end() -> None:
    session = LongSession(0.0, num_others=SESSIONS_TO_DROP // 2 - 1)
    assert session.losses == [(("acceptance", 1),)] * (SESSIONS_TO_DROP // 2)
    assert not session.num_drops


def test_a_poor_drafter_stays_with_a_long_answer() -> None:
    session = LongSession(0.2)
    assert session.losses == [()]
    assert session.num_judged > 2 * MIN_JUDGED


def test_portions_are_judged_by_themselves_and_looked_at_now_and_then() -> None:
    portions = JudgedPortions()
    assert [portions.is_due() for _ in range(2 * ROUNDS_BETWEEN_LOOKS)].count(True) == 2
    good, bad = DrafterTally(MIN_JUDGED, 0), DrafterTally(0, MIN_JUDGED - 1)
    tallies = {"good": good, "bad": bad}
    assert portions.useless(tallies) == [], "a portion that is not full says nothing"
    bad.num_wrong += 1
    assert portions.useless(tallies) == ["bad"]
    assert portions.useless(tallies) == [], "once"
    good.num_wrong += MIN_JUDGED - 1
    assert portions.useless(tallies) == []
    good.num_right += 1
    assert portions.useless(tallies) == ["good"], "it was right about another text; of this it knows nothing"
    fair = {"fair": DrafterTally(0, 0)}
    for _ in range(20):
        fair["fair"].num_right += MIN_JUDGED // 40
        fair["fair"].num_wrong += MIN_JUDGED - MIN_JUDGED // 40
        assert portions.useless(fair) == []


def test_a_session_that_gives_a_drafter_on_trial_up_makes_room_for_the_next_trial() -> None:
    verifier = Verifier()
    verifier.drop()
    verifier.now_us += FIRST_PAUSE_US
    assert verifier.floor.admits("d", 1, verifier.now_us)
    assert not verifier.floor.admits("d", 2, verifier.now_us)
    assert verifier.floor.given_up(1, "d", DrafterTally(0, MIN_JUDGED), verifier.now_us) == []
    assert verifier.floor.admits("d", 2, verifier.now_us), "the first goes on without it"
    assert verifier.floor.end(1, {}, verifier.now_us) == []
    assert not verifier.floor.admits("d", 3, verifier.now_us), "its end frees no other session's trial"


def test_a_good_and_a_bad_drafter_of_one_session_are_told_apart() -> None:
    drafters = [ScriptedDrafter("good", TABLE, 1.0, 200), ScriptedDrafter("bad", TABLE, 0.0, 200)]
    simulation = Simulation(TableEngine(TABLE), make_pacing("serial", 4), drafters)
    request = simulation.add(spec_of(1, PROMPT, NUM_TOKENS, TABLE))
    simulation.run()
    assert request.tokens == TRUTH
    tallies = request.session.drafter_tallies()
    assert tallies["good"].num_right > 20
    assert tallies["good"].num_wrong == 0
    assert (tallies["bad"].num_right, tallies["bad"].num_wrong > 5) == (0, True)


def test_another_model_at_the_address_of_a_useless_one_is_tried_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    loop = Loop(TableEngine(TABLE))
    sessions, inbox = loop.scheduler.sessions, loop.scheduler.inbox
    now_us = monotonic_us()
    for handle in range(SESSIONS_TO_DROP):  # as sessions that ended
        sessions._floor.end(1_000 + handle, {"d": DrafterTally(0, MAX_JUDGED_OF_A_SESSION)}, now_us)

    def num_opened(connection: int, weights: str) -> int:
        """Times that the next session is opened there."""
        loop.frames.clear()
        inbox.put(PairUp("d", connection, weights=weights))
        ended(loop, loop.open(pacing="serial"))
        loop.freed()
        inbox.put(PairDown("d", connection, "restarted"))
        return sum(isinstance(frame, Open) for frame in loop.frames)

    assert [num_opened(1, "old"), num_opened(2, "old")] == [0, 0], "a restart makes no model better"
    assert num_opened(3, "new") == 1
    loop.stop()
    assert "drafter d is another model than before" in caplog.text


def test_what_a_session_knows_of_a_model_that_gave_way_is_not_held_against_the_new_one() -> None:
    record = DrafterRecord()
    met = [record.met("d", weights, now_us) for weights, now_us in (("old", 10), ("old", 20), ("new", 30), ("new", 40))]
    assert met == [False, False, True, False]
    assert [record.is_of_now(name, opened_us) for name, opened_us in (("d", 29), ("d", 30), ("stranger", 0))] == [False, True, True]


def test_a_record_of_another_model_is_forgotten() -> None:
    record, statistics = DrafterRecord(), SessionStatistics()
    statistics.count_overtaken([True] * 40)
    statistics.num_rounds = MIN_ROUNDS
    record.met("d", "old", 1)
    record.count(["d"], statistics)
    assert list(record.rates()) == list(record.late_shares()) == ["d"]
    record.met("d", "old", 2)
    assert list(record.rates()) == ["d"]
    record.met("d", "new", 3)
    assert record.rates() == record.late_shares() == {}
