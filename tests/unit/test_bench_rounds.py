"""The bench of rounds and messages: every part is there, calls repeat themselves exactly, and watching changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.cli.__main__ import build_parser
from outrider.engine import replay_engine as replay_module
from outrider.engine.step_batch import build_batch
from outrider.errors import InvalidRequest
from outrider.types.identity import ModelIdentity
from outrider_bench import part_clock, rounds
from outrider_bench.message_cost import MessageLoop
from outrider_bench.part_clock import REST, PartClock
from outrider_bench.round_loop import DRAFTER, RECONCILE, STEP, RoundLoop, Task
from outrider_bench.rounds import (
    DRAFT_LEN,
    LEAST_TOKENS,
    TOTAL,
    WARM_ROUNDS,
    PartCost,
    RoundCost,
    as_table,
    markdown,
    measure,
    measure_messages,
    replay_engine,
    result,
    target_engine,
)

NUM_TOKENS = 150
NUM_STEPS = 24  # of a model
ENGINE = (STEP, "batch", "keep")
MODEL = Path(__file__).resolve().parents[2] / "models" / "ref-small"


class Time:
    """Passes while somebody works."""

    def __init__(self) -> None:
        self.now_ns = 0

    def perf_counter_ns(self) -> int:
        return self.now_ns


class Work:
    """An inner part within an outer one."""

    def __init__(self, time: Time) -> None:
        self._time = time

    def outer(self) -> None:
        self._time.now_ns += 2_000_000
        self.inner()

    def inner(self) -> None:
        self._time.now_ns += 5_000_000


def test_time_belongs_to_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    time = Time()
    monkeypatch.setattr(part_clock, "time", time)
    clock, work = PartClock(), Work(time)
    clock.watch(work, "outer", "outer")
    clock.watch(work, "inner", "inner")
    clock.end_round()
    for _ in range(3):
        work.outer()
        clock.end_round()
    clock.rounds[:] = clock.rounds[1:]
    assert clock.least() == {"outer": 2_000.0, "inner": 5_000.0, REST: 0.0}
    clock.release()
    work.outer()
    clock.end_round()
    assert set(clock.rounds[-1]) == {REST}, "nothing is watched any more"


def test_calls_are_counted_by_part_and_always_alike() -> None:
    clock = PartClock(counts_calls=True)
    inner = clock.timed(lambda: len([abs(1), abs(2)]), "inner")
    clock.end_round()
    for _ in range(4):
        inner()
        clock.end_round()
    clock.stop()
    assert [found["inner"] for found in clock.rounds[1:]] == [4.0] * 4, "the function, abs twice, len"


def test_a_serial_round_has_its_parts_and_the_text_of_plain_decoding() -> None:
    engine = replay_engine(NUM_TOKENS)
    plain = Task("plain", None, NUM_TOKENS)
    answer = RoundLoop(engine, plain, PartClock()).run()
    clock = PartClock()
    assert RoundLoop(engine, Task("serial", DRAFT_LEN, NUM_TOKENS, answer), clock).run() == answer
    whole = [found for found in clock.rounds if STEP in found]
    assert len(whole) < NUM_TOKENS / 4
    assert {"plan", "batch", "session", "keep", "send", "receive", "take tails", RECONCILE, DRAFTER} <= set(clock.median())
    assert vars(replay_module)["build_batch"] is build_batch, "what was watched is as it was"


def test_a_target_answers_one_loop_after_another() -> None:
    """Each has a verifier of its own; the first has the target compute its plain steps ahead, and the second has that already."""
    engine = target_engine(str(MODEL), "float32")
    plain = Task("plain", None, NUM_STEPS)
    answer = RoundLoop(engine, plain, PartClock()).run()
    assert RoundLoop(engine, plain, PartClock()).run() == answer
    assert RoundLoop(engine, Task("serial", DRAFT_LEN, NUM_STEPS, answer), PartClock()).run() == answer


def test_the_shortest_answer_has_a_round_that_counts_and_a_shorter_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed for want of one when everything had been measured."""
    engine = replay_engine(LEAST_TOKENS)
    answer = RoundLoop(engine, Task("plain", None, LEAST_TOKENS), PartClock()).run()
    clock = PartClock()
    RoundLoop(engine, Task("serial", DRAFT_LEN, LEAST_TOKENS, answer), clock).run()
    assert [found for found in clock.rounds if STEP in found][WARM_ROUNDS:-1]
    monkeypatch.setattr(rounds, "target_engine", lambda model, dtype: pytest.fail("nothing is measured"))
    with pytest.raises(InvalidRequest, match=f"--max-tokens: must be at least {LEAST_TOKENS} here, got {LEAST_TOKENS - 1}"):
        rounds.run(build_parser().parse_args(["bench", "rounds", "--max-tokens", str(LEAST_TOKENS - 1)]))


def test_calls_of_the_engine_do_not_depend_on_the_machine() -> None:
    first, second = (dict(costs(NUM_TOKENS)) for _ in range(2))
    for pacing, parts in first.items():
        # The engine knows no clock; a session has deadlines, which pass on a machine that has other work.
        assert {part: parts[part].num_calls for part in ENGINE if part in parts} == {
            part: second[pacing][part].num_calls for part in ENGINE if part in parts
        }
        ours = [cost.num_calls for part, cost in parts.items() if part != TOTAL and not part.startswith("(")]
        assert parts[TOTAL].num_calls == sum(ours)
        assert parts[TOTAL].least_us > 0.0
    assert set(ENGINE) <= set(first["serial"])
    assert first["serial"]["session"].num_calls > first["plain"]["session"].num_calls > 0


def test_reconciling_a_round_of_a_chain_costs_as_many_calls_whatever_its_length() -> None:
    """No call for each of its guesses: a tail of 12 costs what a tail of 3 does."""
    engine, num_calls = replay_engine(NUM_TOKENS), {}
    answer = RoundLoop(engine, Task("plain", None, NUM_TOKENS), PartClock()).run()
    for draft_len in (3, DRAFT_LEN):
        clock = PartClock(counts_calls=True)
        RoundLoop(engine, Task("serial", draft_len, NUM_TOKENS, answer), clock).run()
        num_calls[draft_len] = clock.median()[RECONCILE]
    assert 0 < num_calls[3] == num_calls[DRAFT_LEN] < 80


def costs(num_tokens: int) -> list[tuple[str, dict[str, PartCost]]]:
    found = measure("replay", replay_engine(num_tokens), num_tokens, 1)
    return [(cost.pacing, cost.parts) for cost in found if cost.pacing != "adaptive"]  # what it plans depends on measured times


def test_a_message_costs_more_with_more_tokens_only_where_tokens_are() -> None:
    identity: ModelIdentity = replay_engine(4_000).identity
    messages = dict(measure_messages(MODEL, identity, 1))
    few, many = (parts for parts in messages.values())
    assert few["gateway: text"].num_calls <= many["gateway: text"].num_calls
    assert few[TOTAL].num_calls > few["gateway: text"].num_calls
    clock = PartClock()
    MessageLoop(MODEL, identity, 5, 2, clock).run()
    assert len(clock.rounds) == 5


def test_tables_have_a_line_a_part_and_the_result_every_total() -> None:
    cost = RoundCost("replay", "plain", {"plan": PartCost(1.26, 3.0), TOTAL: PartCost(9.0, 30.0)})
    messages = {"1 tokens": {"gateway: text": PartCost(2.0, 4.0), TOTAL: PartCost(5.0, 8.0)}}
    assert as_table("title", [("replay, plain", cost.parts)]).row_count == 2
    requests = {"opening": {TOTAL: PartCost(7.0, 9.0)}}
    assert "| plan | 1 / 3 |" in markdown([cost], messages, requests)
    assert "| ours in all | 5 / 8 |" in markdown([cost], messages, requests)
    assert "| ours in all | 7 / 9 |" in markdown([cost], messages, requests)
    assert result([cost], messages, requests) == {
        "rounds": {"replay plain": [9.0, 30.0]},
        "messages": {"1 tokens": [5.0, 8.0]},
        "requests": {"opening": [7.0, 9.0]},
    }
