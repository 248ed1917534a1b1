"""What makes an identity run fail, and that it says so.

Run: pytest tests/unit/test_bench_identity.py
"""

from __future__ import annotations

from typing import cast

from outrider_bench.contestants import DraftWishes
from outrider_bench.identity import NumericsReport, why_failed
from outrider_bench.identity_cases import Case
from outrider_bench.identity_check import PLAIN_WISHES, Batch, Difference
from outrider_bench.oracle import Disagreement

WISHES = DraftWishes("serial", max_len=4)
DIFFERENCE = Difference(cast(Case, None), 3, 1, 2)


def report(numerics: str = "invariant", dtype: str = "float32", num_drafted: int = 5, num_accepted: int = 3) -> NumericsReport:
    cell = Batch(WISHES, ((1, 2),), num_drafted, num_accepted, 1.0)
    return NumericsReport(dtype, numerics, Batch(PLAIN_WISHES, ((1, 2),), 0, 0, 1.0), [(cell, [])])


def disagreement(*, near_tie: bool) -> Disagreement:
    return Disagreement(3, 1, 2, 0.5, near_tie)


def test_a_run_that_proves_identity_says_nothing() -> None:
    tie, fast = report(), report("fast")
    tie.disagreements = [disagreement(near_tie=True)]
    fast.cells[0][1].append(DIFFERENCE)
    fast.disagreements = [disagreement(near_tie=False)]
    assert why_failed([report(), tie, fast]) == []


def test_each_failure_has_its_sentence() -> None:
    unlike, beyond = report(dtype="bfloat16"), report()
    unlike.cells[0][1].append(DIFFERENCE)
    beyond.disagreements = [disagreement(near_tie=False)]
    few = "no guess was accepted, or none rejected, which proves nothing; ask for more --prompts"
    assert why_failed([unlike, beyond, report("fast", num_accepted=0), report(num_drafted=3)]) == [
        "bfloat16 invariant: 1 answers are not those of plain decoding",
        "float32 invariant: the oracle disagrees with 1 tokens that no near tie explains",
        f"float32 fast, {WISHES.text}: {few}",
        f"float32 invariant, {WISHES.text}: {few}",
    ]
