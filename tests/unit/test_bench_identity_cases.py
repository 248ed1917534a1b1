"""The requests of an identity run are mixed however many cells they are dealt out to."""

from __future__ import annotations

import pytest

from outrider.cli.__main__ import build_parser
from outrider.errors import InvalidRequest
from outrider_bench import identity
from outrider_bench.identity_cases import TASKS, task_of


@pytest.mark.parametrize("num_cells", range(1, 13))
def test_every_cell_goes_through_every_task_in_turn(num_cells: int) -> None:
    for cell in range(num_cells):
        dealt = [task_of(index, num_cells) for index in range(cell, len(TASKS) * num_cells, num_cells)]
        assert sorted(dealt) == list(range(len(TASKS)))


@pytest.mark.parametrize("num_cells", [3, 6, 9])
def test_one_round_of_cells_is_mixed_too(num_cells: int) -> None:
    assert {task_of(index, num_cells) for index in range(num_cells)} == set(range(len(TASKS)))


def test_a_run_without_the_numerics_that_promise_identity_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="invariant"):
        identity.run(build_parser().parse_args(["bench", "identity", "--numerics", "fast"]))
