"""How cores are shared between a verifier and a drafter."""

from __future__ import annotations

import os

import pytest

from outrider.launch.threads import ThreadPlan, pinned, plan_threads, thread_environment, usable_cores


def test_taking_turns_on_two_cores_gives_the_verifier_both() -> None:
    assert plan_threads(2, "serial") == plan_threads(2, "lookup") == ThreadPlan(verifier=2, drafter=1)


def test_overlapping_on_two_cores_gives_each_one() -> None:
    assert plan_threads(2, "pearl") == ThreadPlan(verifier=1, drafter=1)


def test_adaptive_is_set_up_for_turns_only_where_cores_are_few() -> None:
    assert plan_threads(2, "adaptive") == plan_threads(2, "serial")
    assert plan_threads(8, "adaptive") == plan_threads(8, "pearl")


@pytest.mark.parametrize("num_cores", [2, 3, 4, 8, 16, 64])
def test_overlapping_never_oversubscribes(num_cores: int) -> None:
    plan = plan_threads(num_cores, "pearl")
    assert plan.verifier + plan.drafter == num_cores


@pytest.mark.parametrize("pacing", ["plain", "serial", "pearl", "adaptive"])
@pytest.mark.parametrize(("num_cores", "expected"), [(2, ThreadPlan(1, 1, lent=1)), (8, ThreadPlan(6, 2, lent=2)), (1, ThreadPlan(1, 1))])
def test_with_a_loan_every_policy_has_the_same_plan(pacing: str, num_cores: int, expected: ThreadPlan) -> None:
    assert plan_threads(num_cores, pacing, lends=True) == expected


@pytest.mark.parametrize("num_cores", [2, 3, 4, 8, 16, 64])
def test_a_loan_uses_every_core_and_never_more(num_cores: int) -> None:
    plan = plan_threads(num_cores, "adaptive", lends=True)
    assert plan.verifier + plan.lent == plan.verifier + plan.drafter == num_cores
    assert plan.describe().endswith(f"{plan.lent} lent while it is idle")


def test_a_pinned_verifier_may_run_on_the_cores_that_it_is_lent() -> None:
    plan = pinned(ThreadPlan(2, 2, lent=1), (2, 3, 6, 7))
    assert (plan.verifier_cores, plan.drafter_cores, plan.lent) == ((2, 3, 6), (6, 7), 1)


def test_one_core_serves_both() -> None:
    assert plan_threads(1, "pearl") == ThreadPlan(verifier=1, drafter=1)


def test_no_core_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        plan_threads(0, "serial")


def test_pinning_puts_the_processes_on_cores_of_their_own() -> None:
    plan = pinned(plan_threads(4, "pearl"), (2, 3, 6, 7))
    assert plan.verifier_cores == (2, 3, 6)
    assert plan.drafter_cores == (7,)
    assert plan.describe() == "verifier 3 threads on core 2,3,6, drafter 1 thread on core 7"


def test_the_environment_holds_every_numeric_library_to_the_count() -> None:
    assert {value for name, value in thread_environment(3).items() if name.endswith("NUM_THREADS")} == {"3"}


def test_waiting_threads_go_to_sleep_before_they_starve_the_one_they_wait_for() -> None:
    assert int(thread_environment(2)["GOMP_SPINCOUNT"]) <= 10_000


def test_usable_cores_are_ascending_and_not_empty() -> None:
    cores = usable_cores()
    assert cores
    assert list(cores) == sorted(cores)


@pytest.mark.parametrize(("quota", "usable"), [(None, (2, 3, 5, 7)), (8.0, (2, 3, 5, 7)), (2.5, (2, 3)), (0.5, (2,))])
def test_no_more_cores_are_used_than_a_quota_is_enough_for(
    quota: float | None, usable: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 2, 5, 3})
    monkeypatch.setattr("outrider.launch.threads.cpu_quota", lambda: quota)
    assert usable_cores() == usable
