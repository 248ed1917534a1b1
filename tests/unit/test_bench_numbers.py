"""The arithmetic of a bench run: summaries, medians, rotation, tuning, identity of answers, the goal's ratios, the report."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from outrider.errors import InvalidRequest
from outrider.v1 import generation_pb2, verifier_pb2
from outrider_bench.contestants import DraftWishes, draft_numbers, verify_ms
from outrider_bench.goals import (
    best_policy,
    bound_fraction,
    draft_token_share,
    prose_ratios,
    ratios,
    reconcile_share,
    stack_ratio,
    worst_cell,
)
from outrider_bench.measurement import Answer, DraftNumbers, Prompt, Summary, median_summary, summarise
from outrider_bench.prompts import TUNING_SEED, check_prompt_seed
from outrider_bench.report import markdown
from outrider_bench.results import ADAPTIVE, ASSISTED, GENERATE, PLAIN, Cell, Flip, Recorder, Row, first_difference
from outrider_bench.schedule import turns
from outrider_bench.tuning import fastest, num_tuning_answers

DRAFT = DraftNumbers(num_rounds=2, num_drafted=8, num_accepted=6, verify_ms=10.0, draft_ms=4.0, overlapped_draft_ms=1.0, draft_wait_ms=0.0)


SUMMARY = Summary(100.0, 1.0, 0.5, 2.0, 0.1, 0.5, 4.0, 10)


def test_long_answers_weigh_more() -> None:
    summary = summarise([Answer((1,) * 10, 1.0, 100.0), Answer((1,) * 30, 3.0, 100.0), Answer((1,) * 20, 2.0, 100.0)])
    assert summary.tokens_per_s == pytest.approx(200.0)
    assert summary.first_token_ms == 2.0
    assert summary.mean_emitted_per_round == 1.0
    assert summary.acceptance_rate == 0.0


def test_speculation_is_summed_before_it_is_divided() -> None:
    other = DraftNumbers(
        num_rounds=8, num_drafted=2, num_accepted=0, verify_ms=30.0, draft_ms=0.0, overlapped_draft_ms=0.0, draft_wait_ms=0.0
    )
    summary = summarise([Answer((1,) * 8, 1.0, 50.0, DRAFT), Answer((1,) * 12, 1.0, 50.0, other)])
    assert summary.acceptance_rate == pytest.approx(0.6)
    assert summary.mean_emitted_per_round == pytest.approx(2.0)
    assert summary.verify_share == pytest.approx(0.4)
    assert summary.overlap_share == pytest.approx(0.25)
    assert summary.drafted_per_round == pytest.approx(1.0)


def test_reconciling_and_sessions_are_shares_of_the_time_from_the_first_token_to_the_last() -> None:
    """All of it over all that time: the reading of a prompt is no round, and would make any share small."""
    answers = [
        Answer((1,) * 8, 40.0, 50.0, replace(DRAFT, reconcile_ms=0.5, session_ms=1.0)),
        Answer((1,) * 12, 20.0, 50.0, replace(DRAFT, reconcile_ms=1.5, session_ms=4.0)),
    ]
    assert summarise(answers).reconcile_share == pytest.approx(2.0 / 40.0)
    assert summarise(answers).session_share == pytest.approx(5.0 / 40.0)
    assert summarise([Answer((1,), 5.0, 5.0, DRAFT)]).reconcile_share == 0.0
    shares = [replace(summary_of(1.0), reconcile_share=share, session_share=2 * share) for share in (0.01, 0.5, 0.02)]
    assert (median_summary(shares).reconcile_share, median_summary(shares).session_share) == (0.02, 0.04)


def summary_of(speed: float) -> Summary:
    return Summary(speed, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 10)


def test_one_disturbed_repetition_does_not_move_the_median() -> None:
    assert median_summary([summary_of(100.0), summary_of(7.0), summary_of(102.0)]).tokens_per_s == 100.0


def test_every_contestant_answers_every_cell_in_every_repetition() -> None:
    order = list(turns(["a", "b"], num_contestants=3, repeats=3))
    assert len(order) == 18
    assert len({(turn.repetition, turn.cell, turn.contestant) for turn in order}) == 18


@pytest.mark.parametrize("num", [2, 3, 5, 10])
def test_every_contestant_is_first_as_often_and_follows_each_other_as_often(num: int) -> None:
    repeats = num if num % 2 == 0 else 2 * num
    order = [turn.contestant for turn in turns(["a"], num, repeats)]
    rows = [order[at : at + num] for at in range(0, len(order), num)]
    assert len({row[0] for row in rows}) == num
    followed = [pair for row in rows for pair in pairwise(row)]
    assert sorted(followed) == sorted([(one, other) for one in range(num) for other in range(num) if one != other] * (repeats // num))


@dataclass
class Timed:
    """Answers in a fixed time, except the first time."""

    name: str
    total_ms: float
    settings: str = ""
    asked: list[tuple[Prompt, float]] = field(default_factory=list)

    def answer(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Answer:
        self.asked.append((prompt, temperature))
        cold = len(self.asked) <= 2
        return Answer((1,) * 10, 1.0, 10_000.0 if cold and self.name == "fast" else self.total_ms)


def test_tuning_takes_the_fastest_once_it_is_warm() -> None:
    candidates = [Timed("slow", 100.0), Timed("fast", 50.0)]
    calls: list[None] = []
    chosen = fastest(candidates, [Prompt("copying", (1,))], (0.0, 0.8), 10, lambda: calls.append(None))
    assert chosen.name == "fast"
    assert len(calls) == num_tuning_answers(2, 1, 2) == 16


@dataclass
class Lucky(Timed):
    """Three times as fast as it is in the first round behind the warming up: a machine that was quick for once."""

    def answer(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Answer:
        answer = super().answer(prompt, max_tokens, temperature, seed)
        return replace(answer, total_ms=answer.total_ms / 3.0) if len(self.asked) == 2 else answer


def test_one_quick_answer_does_not_choose_the_settings() -> None:
    """The fastest of the first round are asked again, and nobody else is."""
    candidates = [Timed("slowest", 400.0), Lucky("lucky", 200.0), Timed("fastest", 100.0), Timed("middle", 150.0)]
    calls: list[None] = []
    assert fastest(candidates, [Prompt("copying", (1,))], (0.0,), 10, lambda: calls.append(None)).name == "fastest"
    assert len(calls) == num_tuning_answers(4, 1, 1) == 4 + 4 + 9
    assert [len(each.asked) for each in candidates] == [2, 5, 5, 5]


def test_a_single_candidate_is_not_asked() -> None:
    only = Timed("only", 1.0)
    assert fastest([only], [Prompt("copying", (1,))], (0.0,), 10, lambda: None) is only
    assert not only.asked


@pytest.mark.parametrize(
    ("left", "right", "position"), [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [4], 0), ([1], [1, 2], 1)]
)
def test_first_difference(left: list[int], right: list[int], position: int | None) -> None:
    assert first_difference(left, right) == position


def test_flips_are_listed_with_both_tokens() -> None:
    recorder, cell = Recorder(), Cell("copying", 0.0)
    recorder.add(cell, PLAIN, 0, Answer((1, 2, 3), 1.0, 1.0))
    recorder.add(cell, "pearl", 0, Answer((1, 2, 3), 1.0, 1.0))
    recorder.add(cell, "pearl", 1, Answer((1, 9), 1.0, 1.0))
    assert recorder.flips(cell, "pearl") == [Flip("copying, T = 0", "pearl", 0, 1, 2, 9)]
    assert recorder.flips(cell, PLAIN) == []


def row(task: str, temperature: float, contestant: str, speed: float) -> Row:
    return Row(Cell(task, temperature), contestant, summary_of(speed), 0.0, None, (speed,))


ROWS = [
    row("arithmetic", 0.0, GENERATE, 100.0),
    row("arithmetic", 0.0, PLAIN, 120.0),
    row("arithmetic", 0.0, "serial", 240.0),
    row("arithmetic", 0.0, "pearl", 300.0),
    row("copying", 0.0, GENERATE, 100.0),
    row("copying", 0.0, PLAIN, 100.0),
    row("copying", 0.0, "serial", 190.0),
    row("copying", 0.0, "pearl", 110.0),
    row("prose", 0.0, GENERATE, 100.0),
    row("prose", 0.0, PLAIN, 100.0),
    row("prose", 0.0, "serial", 10.0),
    row("prose", 0.0, "pearl", 90.0),
]


def test_the_goals_ratios_are_those_of_the_worse_task_of_the_best_policy() -> None:
    assert best_policy(ROWS, ["serial", "pearl"]) == "serial"
    assert ratios(ROWS, "serial") == {"iso_t0_vs_generate": 1.9, "iso_t0_vs_own_plain": 1.9}


MORE_ROWS = [
    *ROWS,
    row("arithmetic", 0.0, ASSISTED, 96.0),
    row("copying", 0.0, ASSISTED, 152.0),
    row("arithmetic", 0.8, GENERATE, 100.0),
    row("arithmetic", 0.8, "serial", 150.0),
]


def test_assisted_generation_is_one_of_the_others_and_each_temperature_has_its_ratio() -> None:
    found = ratios(MORE_ROWS, "serial")
    assert found == {"iso_t0_vs_generate": 1.9, "iso_t0_vs_assisted": 1.25, "iso_t0_vs_own_plain": 1.9, "iso_t08_vs_generate": 1.5}


def test_the_worst_cell_is_looked_for_among_all_that_were_measured() -> None:
    assert worst_cell(ROWS, "pearl") == {"min_cell_vs_plain": 0.9, "min_cell_vs_plain_at": "pearl, prose, T = 0"}
    replayed = [row("replayed drafts, acceptance 0.6", 0.8, PLAIN, 100.0), row("replayed drafts, acceptance 0.6", 0.8, "pearl", 70.0)]
    told = worst_cell([*ROWS, *replayed], "pearl")
    assert told == {"min_cell_vs_plain": 0.7, "min_cell_vs_plain_at": "pearl, replayed drafts, acceptance 0.6, T = 0.8"}
    assert worst_cell(ROWS, ADAPTIVE) == {}


def test_the_bound_is_that_of_the_worse_task_at_temperature_0() -> None:
    shares = {("arithmetic", 0.0): 0.5, ("copying", 0.0): 0.4, ("prose", 0.0): 0.1, ("copying", 0.8): 0.2}
    rows = [Row(Cell(*cell), "serial", summary_of(1.0), 0.0, share, (1.0,)) for cell, share in shares.items()]
    assert bound_fraction(rows, "serial") == {"bound_fraction": 0.4, "bound_fraction_at": "serial, copying, T = 0"}
    assert bound_fraction(rows, "pearl") == {}


def test_the_price_of_being_a_service_is_serials_and_that_of_the_best_policy_that_was_run_without() -> None:
    speeds = {
        ("arithmetic", "outrider serial"): 250.0,
        ("arithmetic", "one process serial"): 500.0,
        ("arithmetic", "outrider adaptive"): 240.0,
        ("arithmetic", "one process adaptive"): 300.0,
        ("copying", "outrider serial"): 180.0,
        ("copying", "one process serial"): 200.0,
        ("copying", "outrider adaptive"): 190.0,
        ("copying", "one process adaptive"): 200.0,
        ("copying", "outrider pearl"): 900.0,
        ("arithmetic", "outrider pearl"): 900.0,
        ("prose", "outrider adaptive"): 1.0,
        ("prose", "one process adaptive"): 100.0,
    }
    plain = [each for each in ROWS if each.contestant == PLAIN]
    rows = [*plain, *(row(task, 0.0, name, speed) for (task, name), speed in speeds.items())]
    told = stack_ratio(rows, ["serial", "pearl", "adaptive"])
    best = {"stack_ratio_best": 0.8, "stack_ratio_best_at": "adaptive, arithmetic, T = 0"}
    assert told == {"stack_ratio": 0.5, "stack_ratio_at": "serial, arithmetic, T = 0"} | best
    assert stack_ratio(rows, ["pearl", "adaptive"]) == best, "without serial there is no such number"
    assert stack_ratio(ROWS, ["serial"]) == {}


def test_prose_is_told_apart_for_each_temperature() -> None:
    rows = [row("prose", 0.0, ADAPTIVE, 96.0), row("prose", 0.8, ADAPTIVE, 120.0), row("prose", 0.8, PLAIN, 100.0)]
    assert prose_ratios([*ROWS, *rows]) == {"prose_t0_vs_own_plain": 0.96, "prose_t08_vs_own_plain": 1.2}
    assert prose_ratios(ROWS) == {}


def reconciling(contestant: str, share: float, drafted: float = 4.0, task: str = "copying") -> Row:
    return Row(Cell(task, 0.0), contestant, replace(summary_of(1.0), reconcile_share=share, drafted_per_round=drafted), 0.0, 0.5, (1.0,))


def test_the_largest_share_of_reconciling_is_that_of_a_served_policy_that_drafts() -> None:
    rows = [
        reconciling("outrider serial", 0.01),
        reconciling(ADAPTIVE, 0.02, task="prose"),
        reconciling("one process serial", 0.5),
        reconciling("outrider lookup", 0.6, drafted=0.0),
    ]
    assert reconcile_share(rows) == {"reconcile_share": 0.02, "reconcile_share_at": "outrider adaptive, prose, T = 0"}
    assert reconcile_share(rows[2:]) == {}


def test_a_drafted_token_is_compared_with_the_steps_that_verified_such_tokens() -> None:
    recorder, cell = Recorder(), Cell("copying", 0.0)
    recorder.add(cell, "outrider serial", 0, Answer((1,), 1.0, 1.0, DRAFT))
    recorder.add(cell, "outrider serial", 1, Answer((1,), 1.0, 1.0, replace(DRAFT, num_rounds=3, verify_ms=40.0)))
    recorder.add(cell, PLAIN, 0, Answer((1,), 1.0, 1.0, replace(DRAFT, verify_ms=400.0)))
    assert recorder.verify_us_per_step("outrider serial") == 10_000.0
    assert recorder.verify_us_per_step("outrider pearl") == 0.0
    assert draft_token_share(500, 10_000.0) == {"draft_token_share": 0.05}
    assert draft_token_share(0, 10_000.0) == draft_token_share(500, 0.0) == {}


def test_one_contestants_drafting_sets_the_pace_of_replayed_drafts() -> None:
    recorder, cell = Recorder(), Cell("copying", 0.0)
    recorder.add(cell, "outrider serial", 0, Answer((1,), 1.0, 1.0, DRAFT))
    recorder.add(cell, "one process serial", 0, Answer((1,), 1.0, 1.0, replace(DRAFT, draft_ms=400.0)))
    assert recorder.draft_us_per_token("outrider serial") == 500
    assert Recorder().draft_us_per_token("outrider serial") == 0


def test_a_report_has_every_contestant_and_every_flip() -> None:
    flips = [Flip("copying, T = 0", "pearl", 0, 1, 2, 9)]
    text = markdown("Speed", {"commit": "abc"}, {"pearl": "max_len=8"}, ROWS, flips, ["A note."], {"simulated": ["| a |"]})
    assert "### simulated\n\n| a |" in text
    assert "| serial | 240 | 0% | 2.40 | 2.00 |" in text
    assert "- commit: abc" in text
    assert "token 1 is 9, plain 2" in text
    row_of_own = markdown(
        "Speed", {}, {}, [replace(reconciling(ADAPTIVE, 0.0123), summary=replace(SUMMARY, reconcile_share=0.0123))], [], []
    )
    assert "| reconciling |" in row_of_own
    assert row_of_own.count("| 1.2% |") == 1
    assert text.rstrip().endswith("A note.")


def test_a_forwards_cost_is_read_between_the_measured_points() -> None:
    info = verifier_pb2.VerifierServiceGetInfoResponse(cost_rows=[1, 9], cost_us=[1000.0, 2000.0])
    assert [verify_ms(info, rows) for rows in (0.5, 1, 5, 9, 50)] == [1.0, 1.0, 1.5, 2.0, 2.0]
    assert verify_ms(verifier_pb2.VerifierServiceGetInfoResponse(), 3) == 0.0


def test_wishes_become_draft_options() -> None:
    assert DraftWishes("off").to_proto() == generation_pb2.DraftOptions(off=True)
    assert DraftWishes("pearl", max_len=4).to_proto() == generation_pb2.DraftOptions(pacing="pearl", max_len=4)
    assert DraftWishes("serial", 16, 0.25, 3).text == "serial max_len=16 stop_below=0.25 tree_width=3"


def test_statistics_come_over_in_milliseconds() -> None:
    message = generation_pb2.DraftStatistics(
        num_rounds=2, num_drafted=8, num_accepted=6, verify_us=10_000, draft_us=4_000, overlapped_draft_us=1_000
    )
    message.reconcile_us, message.session_us, message.plan_us = 250, 500, 125
    assert draft_numbers(message) == replace(DRAFT, reconcile_ms=0.25, session_ms=0.5, plan_ms=0.125)


def test_nothing_is_reported_on_the_prompts_that_settings_are_chosen_on() -> None:
    with pytest.raises(InvalidRequest, match="--prompt-seed"):
        check_prompt_seed(TUNING_SEED)
    check_prompt_seed(TUNING_SEED + 1)


def test_a_ratio_is_of_the_same_repetitions() -> None:
    """The machine was half as quick in two of five; medians of either alone are of different minutes."""
    recorder, cell = Recorder(), Cell("prose", 0.0)
    took_ms = {PLAIN: (10.0, 20.0, 10.0, 20.0, 20.0), "serial": (9.0, 18.0, 9.0, 9.0, 18.0)}
    for turn in (1, 0, 2, 4, 3):
        for name, times_ms in took_ms.items():
            recorder.add(cell, name, turn, Answer((1, 2), 1.0, times_ms[turn]))
    plain, serial = (Row(cell, name, *recorder.summary(cell, name)[:2], None, recorder.summary(cell, name)[2]) for name in took_ms)
    assert plain.speeds == pytest.approx([200.0, 100.0, 200.0, 100.0, 100.0]), "in the order of the repetitions"
    assert serial.times(plain) == pytest.approx(20.0 / 18.0)
    assert serial.summary.tokens_per_s / plain.summary.tokens_per_s == pytest.approx(2.0 * 20.0 / 18.0)
    assert prose_ratios([plain, replace(serial, contestant=ADAPTIVE)]) == {"prose_t0_vs_own_plain": 1.111}
    assert worst_cell([plain, replace(serial, contestant=ADAPTIVE)])["min_cell_vs_plain"] == 1.111
    with pytest.raises(ValueError, match="shorter"):
        serial.times(replace(plain, speeds=(1.0,)))
