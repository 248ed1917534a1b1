"""A team held to fewer threads for a while: the same bits, no chunk lost or done twice, no operation that waits for a sleeper.

Races show by repetition only, so the number of threads changes before every operation, many times over. Run: pytest
tests/kernels/test_thin_team.py
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from outrider_kernels.thin_matrix import ThinMatrix
from outrider_kernels.thin_product import ThinProduct
from outrider_kernels.thin_team import ThinTeam

FloatArray = npt.NDArray[np.float32]
NUM_THREADS = 4
INPUTS, OUTPUTS = 24, 16 * 64  # as many chunks as a team of four makes, each soon done: what can race does
WAIT_S = 60.0  # a bound on what would hang, no measure of speed


def operands(num_rows: int = 3) -> tuple[ThinMatrix, FloatArray]:
    """A matrix of whole numbers and rows of them, so that every sum is exact."""
    generator = np.random.default_rng(7)
    matrix = ThinMatrix.pack(generator.integers(-8, 9, (OUTPUTS, INPUTS)).astype(np.float32))
    return matrix, generator.integers(-8, 9, (num_rows, INPUTS)).astype(np.float32)


def test_a_limit_is_held_to_what_the_team_has() -> None:
    team = ThinTeam(3)
    assert (team.num_threads, team.num_active) == (3, 3)
    for wanted, active in ((2, 2), (0, 1), (-5, 1), (9, 3), (3, 3)):
        team.hold(wanted)
        assert team.num_active == active
    alone = ThinTeam(1)
    alone.hold(4)
    assert alone.num_active == 1


@pytest.mark.parametrize("num_threads", [2, 3, 4])
def test_everybody_gets_as_much_where_the_parts_can_be_shared_out_evenly(num_threads: int) -> None:
    """With 12 parts in 8 chunks, of one or two, a thread of two would do seven of them."""
    team = ThinTeam(num_threads)
    chunks = {parts: team.library.team_chunks(team.handle, parts) for parts in range(1, 200)}
    for parts, num_chunks in chunks.items():
        assert min(parts, num_threads) <= num_chunks <= min(parts, 8 * num_threads)
    for parts in (10 * num_threads, 12 * num_threads, 14 * num_threads, 6 * num_threads):  # as products of common lengths have
        assert parts % chunks[parts] == 0
        assert chunks[parts] % num_threads == 0
    alone = ThinTeam(1)
    assert alone.library.team_chunks(alone.handle, 100) == 1


def test_every_chunk_is_done_once_though_the_number_of_threads_changes_before_every_operation() -> None:
    matrix, rows = operands()
    team, out = ThinTeam(NUM_THREADS), np.zeros((len(rows), OUTPUTS), np.float32)
    adding = ThinProduct(team, matrix, rows, out, adds=True)
    once = np.zeros_like(out)
    ThinProduct(ThinTeam(1), matrix, rows, once).run(len(rows))
    generator = np.random.default_rng(1)
    num_runs = 3_000
    done = threading.Event()

    def work() -> None:
        for _ in range(num_runs):
            team.hold(int(generator.integers(1, NUM_THREADS + 1)))
            adding.run(len(rows))
        done.set()

    threading.Thread(target=work, daemon=True).start()
    assert done.wait(WAIT_S), "an operation waits for a chunk that nobody takes"
    # whole numbers below 2^24: a chunk left out or done twice would be off by a whole product
    np.testing.assert_array_equal(out, num_runs * once)


@pytest.mark.parametrize("num_rows", [1, 2, 7])
def test_bits_do_not_depend_on_how_many_threads_take_part(num_rows: int) -> None:
    generator = np.random.default_rng(3)
    matrix = ThinMatrix.pack(generator.standard_normal((OUTPUTS, INPUTS)).astype(np.float32))
    rows = generator.standard_normal((num_rows, INPUTS)).astype(np.float32)
    team, out = ThinTeam(NUM_THREADS), np.zeros((num_rows, OUTPUTS), np.float32)
    product = ThinProduct(team, matrix, rows, out)
    found = set()
    for num_threads in (4, 1, 3, 2, 4, 2, 1):
        team.hold(num_threads)
        out[:] = np.nan
        product.run(num_rows)
        found.add(out.tobytes())
    assert len(found) == 1


def test_teams_end_whatever_number_they_were_held_to() -> None:
    matrix, rows = operands(1)
    ended = threading.Event()

    def work() -> None:
        for at in range(60):
            team = ThinTeam(NUM_THREADS)
            team.hold(1 + at % NUM_THREADS)
            if at % 3:
                ThinProduct(team, matrix, rows, np.zeros((1, OUTPUTS), np.float32)).run(1)
            del team
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    assert ended.wait(WAIT_S), "a helper that slept did not hear that the team is over"


def test_threads_that_are_not_to_take_part_use_no_time() -> None:
    before = set(os.listdir("/proc/self/task"))
    team = ThinTeam(3)
    helpers = sorted(set(os.listdir("/proc/self/task")) - before)
    assert len(helpers) == 2
    matrix, rows = operands()
    product = ThinProduct(team, matrix, rows, np.zeros((len(rows), OUTPUTS), np.float32))
    product.run(len(rows))
    team.hold(1)
    used = wait_for_rest(helpers)
    for _ in range(2_000):
        product.run(len(rows))
    assert switches(helpers) == used, "an operation woke a thread that it was to do without"


def switches(tasks: list[str]) -> list[int]:
    """How often each thread gave its core away, freely or not."""
    found = []
    for task in tasks:
        status = (Path("/proc/self/task") / task / "status").read_text("utf-8").splitlines()
        found.append(sum(int(line.split()[1]) for line in status if "ctxt_switches" in line))
    return found


def wait_for_rest(tasks: list[str]) -> list[int]:
    """Their switches, once all of them sleep."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        states = [(Path("/proc/self/task") / task / "stat").read_text("utf-8").rsplit(")", 1)[1].split()[0] for task in tasks]
        if set(states) == {"S"}:
            return switches(tasks)
    raise AssertionError("a thread that is not to take part does not go to sleep")
