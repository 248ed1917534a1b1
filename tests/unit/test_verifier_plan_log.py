"""Explanations of plans as lines of a file: in order, bounded in memory and on disk, never waited for, and none at all unless asked for."""

from __future__ import annotations

import json
import logging
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes_pacing import FLAT_COST, session_view, step_view
from fakes_verifier_service import decode, serving, start, truth
from outrider.errors import InvalidRequest
from outrider.session.pacing.explanation import PlanExplanation
from outrider.session.pacing.plain import PlainPacing
from verifier_service import plan_log
from verifier_service.plan_log import OPTION, PlanLog
from verifier_service.policy_key import PolicyKey
from verifier_service.step_planner import StepPlanner

WAIT_S = 30.0  # a bound on what would hang


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: unix socket names have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="oi-") as name:
        yield Path(name)


def explained(session: int = 1) -> PlanExplanation:
    policy, view = PlainPacing(), step_view(session_view(session))
    return policy.explain(view, policy.plan(view))


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_plan_is_one_line_with_all_that_it_says(folder: Path) -> None:
    log = PlanLog(folder / "plans")
    log.start()
    for session in (1, 2):
        log.add(explained(session))
    log.stop(WAIT_S)
    lines = written(folder / "plans")
    assert [(one["number"], one["policy"], one["sessions"][0]["session"]) for one in lines] == [(0, "plain", 1), (1, "plain", 2)]
    (session,) = lines[0]["sessions"]
    assert session["choice"]["chosen"] == {"way": "plain", "draft_len": 0, "anew_len": 0, "tokens_per_us": 1e-4}
    assert (session["choice"]["why"], session["estimates"]["round_trip_us"]) == ("only", None)


def test_lines_are_added_behind_those_of_an_earlier_run(folder: Path) -> None:
    for _ in range(2):
        log = PlanLog(folder / "plans")
        log.start()
        log.add(explained())
        log.stop(WAIT_S)
    assert [one["number"] for one in written(folder / "plans")] == [0, 0]


def test_a_full_ring_keeps_the_newest_and_the_gap_is_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plan_log, "MAX_WAITING", 3)
    log = PlanLog(folder / "plans")
    for session in range(5):
        log.add(explained(session))
    log.start()
    with caplog.at_level(logging.WARNING):
        log.stop(WAIT_S)
    assert [one["number"] for one in written(folder / "plans")] == [2, 3, 4]
    assert log.num_dropped == 2
    assert "2 of 5 plans" in caplog.text


def test_a_full_file_takes_the_place_of_an_older_one(folder: Path) -> None:
    line_len = len(plan_log.line(0, explained())) + 1
    log = PlanLog(folder / "plans", max_file_bytes=2 * line_len)
    for _ in range(5):
        log.add(explained())
    log.start()
    log.stop(WAIT_S)
    assert [one["number"] for one in written(folder / "plans.1")] == [2, 3]
    assert [one["number"] for one in written(folder / "plans")] == [4]
    assert sorted(path.name for path in folder.iterdir()) == ["plans", "plans.1"]


def test_what_is_added_is_written_while_the_log_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_log, "FLUSH_EVERY_S", 0.001)
    log = PlanLog(folder / "plans")
    flushed = _flushed(log)
    log.start()
    log.add(explained())
    assert flushed(WAIT_S)
    assert len(written(folder / "plans")) == 1
    log.stop(WAIT_S)


def _flushed(log: PlanLog) -> Any:
    """Waits until something was flushed."""
    done, flush = threading.Event(), log._flush

    def told() -> None:
        waits = bool(log._waiting)
        flush()
        if waits:
            done.set()

    log._flush = told  # type: ignore[method-assign]
    return done.wait


def test_a_disk_that_fails_ends_the_log_and_nothing_else(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = PlanLog(folder / "plans")

    def full(text: str) -> int:
        raise OSError(28, "No space left on device")

    log._file.close()
    log._file = type("Full", (), {"write": staticmethod(full), "close": staticmethod(lambda: None)})()
    log.start()
    log.add(explained())
    with caplog.at_level(logging.ERROR):
        log.stop(WAIT_S)
    assert "not explained any more" in caplog.text
    log.add(explained())


def test_a_place_that_is_no_file_is_refused_by_the_name_of_the_option(folder: Path) -> None:
    for path in (folder, folder / "missing" / "plans", Path("/dev/null")):
        with pytest.raises(InvalidRequest) as caught:
            PlanLog(path)
        assert caught.value.field == OPTION


def test_a_planner_explains_every_policys_plan_and_none_where_nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed."""
    asked: list[str] = []
    explain = PlainPacing.explain
    monkeypatch.setattr(PlainPacing, "explain", lambda *args: asked.append("plain") or explain(*args))  # type: ignore[func-returns-value]
    told: list[PlanExplanation] = []
    views = [(PolicyKey("plain"), session_view(1)), (PolicyKey("serial"), session_view(2))]
    for planner in (StepPlanner(4), StepPlanner(4, told.append)):
        assert asked == []
        for key, _ in views:
            planner.policy(key)
        planner.plan(views, FLAT_COST, 64, 1_000_000)
        planner.plan(views[:1], FLAT_COST, 64, 1_000_000)
    assert asked == ["plain", "plain"]
    assert sorted(one.policy for one in told) == ["plain", "plain", "serial"]


async def test_a_verifier_writes_its_plans_where_it_is_told_to(folder: Path) -> None:
    async with serving(folder, explain_plans=folder / "plans") as verifier:
        answer = await decode(verifier, start())
    assert answer.tokens == truth()
    lines = written(folder / "plans")
    assert {one["policy"] for one in lines} == {"serial"}
    assert {one["reason"] for one in lines} == {"verify"}
    assert [one["sessions"][0]["committed_len"] for one in lines] == sorted(one["sessions"][0]["committed_len"] for one in lines)
    steps = sum(1 + one["repeats"] for one in lines)
    assert steps >= len(answer.tokens)


async def test_a_verifier_that_is_told_nothing_explains_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(PlainPacing, "explain", lambda *args: asked.append(args))
    async with serving(folder) as verifier:
        await decode(verifier, start(draft={"off": True}))
    assert asked == []
    assert [path.name for path in folder.iterdir() if path.suffix != ".sock"] == []
