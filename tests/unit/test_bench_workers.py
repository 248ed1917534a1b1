"""A peer's process: what it answers arrives, what it refuses is a sentence, its death too; its processor time is read from outside."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from outrider.launch.threads import ThreadPlan
from outrider_bench.cost import Metered, cores_of, cpu_s
from outrider_bench.measurement import Answer, Prompt, summarise
from outrider_bench.worker import Worker

BUSY = "import time\nwhile time.process_time() < 0.2: pass\nprint(time.process_time(), flush=True)\ninput()"


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker("the peer", "fakes_worker", ["ready"], 1, {}) as started:
        yield started


def test_an_answer_comes_back_with_its_times(worker: Worker) -> None:
    assert worker.ready == {"version": "1"}
    assert worker.ask({"prompt": [5, 6]}) == Answer((5, 6), 1.5, 3.0)


def test_rounds_come_back_where_the_peer_counts_them(worker: Worker) -> None:
    answer = worker.ask({"prompt": [5, 6, 7, 8, 9, 10], "rounds": {"num_rounds": 2, "num_accepted": 4}})
    assert answer.draft is not None
    assert (answer.draft.num_rounds, answer.draft.num_accepted) == (2, 4)
    assert summarise([answer]).mean_emitted_per_round == 3.0


def test_a_refusal_is_a_sentence_and_the_worker_lives_on(worker: Worker) -> None:
    with pytest.raises(RuntimeError, match="the peer refused: ValueError: empty prompt"):
        worker.ask({"prompt": []})
    assert worker.ask({"prompt": [1]}).tokens == (1,)


def test_a_death_is_told_with_its_exit_code(worker: Worker) -> None:
    with pytest.raises(RuntimeError, match="the peer ended with exit code 4"):
        worker.ask({"prompt": [0]})


@pytest.mark.parametrize(("start", "sentence"), [("refuse", "the peer refused: no such model"), ("die", "ended with exit code 3")])
def test_a_worker_that_does_not_start_leaves_no_process(start: str, sentence: str) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        Worker("the peer", "fakes_worker", [start], 1, {})


def test_another_processs_time_is_what_it_reads_itself() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as busy:
        assert busy.stdout is not None
        own_s = float(busy.stdout.readline())
        seen_s = cpu_s([busy.pid])
        assert own_s <= seen_s < own_s + 0.1
        assert cpu_s([busy.pid, busy.pid]) >= 2 * seen_s
    with pytest.raises(OSError):
        cpu_s([busy.pid])


@dataclass
class Fixed:
    """Answers ten tokens in 20 ms."""

    name: str = "fixed"
    settings: str = "k=5; 2 threads"

    def answer(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Answer:
        return Answer((1,) * 10, 1.0, 20.0)


def test_an_answers_bill_is_what_its_processes_used_meanwhile() -> None:
    read: list[tuple[int, ...]] = []
    readings = iter([1.0, 1.03])

    def reader(pids: Sequence[int]) -> float:
        read.append(tuple(pids))
        return next(readings)

    metered = Metered(Fixed(), (7, 8), 2, reader)
    answer = metered.answer(Prompt("copying", (1,)), 10, 0.0, 0)
    assert answer.cpu_ms == pytest.approx(30.0)
    assert summarise([answer]).cpu_ms_per_token == pytest.approx(3.0)
    assert read == [(7, 8), (7, 8)]
    assert (metered.name, metered.settings) == ("fixed", "k=5; 2 threads; 2 cores")


@pytest.mark.parametrize(
    ("plan", "num_cores", "drafting", "expected"),
    [
        (ThreadPlan(1, 1), 2, True, 2),
        (ThreadPlan(1, 1), 2, False, 1),
        (ThreadPlan(2, 1), 2, True, 2),
        (ThreadPlan(6, 2), 8, True, 8),
        (ThreadPlan(6, 2), 8, False, 6),
        (ThreadPlan(6, 2, lent=2), 8, False, 8),
        (ThreadPlan(1, 1, lent=1), 2, True, 2),
    ],
)
def test_a_drafters_cores_are_counted_when_it_drafts(plan: ThreadPlan, num_cores: int, drafting: bool, expected: int) -> None:
    assert cores_of(plan, num_cores, drafting=drafting) == expected
