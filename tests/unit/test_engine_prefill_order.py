"""Of sequences that begin alike, one is read and the others wait for its blocks; nobody waits for nothing."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.engine.prefill_order import Prefill, waiting
from outrider.types.tree import IntArray

BLOCK_LEN = 4
TEXT: IntArray = np.arange(30, dtype=np.int32)


def late(*prefills: Prefill) -> set[int]:
    return waiting(dict(enumerate(prefills)), BLOCK_LEN)


def test_samples_of_one_prompt_wait_for_the_first() -> None:
    assert late(*[Prefill(TEXT, 0, begun=False)] * 3) == {1, 2}


def test_who_has_begun_waits_for_nobody_and_comes_first() -> None:
    assert late(Prefill(TEXT, 0, begun=False), Prefill(TEXT, 8, begun=True)) == {0}
    assert late(Prefill(TEXT, 3, begun=True), Prefill(TEXT, 8, begun=True)) == set()


def test_half_a_prompt_in_common_is_worth_waiting_for() -> None:
    other = TEXT.copy()
    other[9:] = 0
    assert late(Prefill(TEXT, 0, begun=False), Prefill(other, 0, begun=False)) == {1}
    assert late(Prefill(TEXT, 4, begun=False), Prefill(other, 8, begun=False)) == set(), "it has all that they have in common"


@pytest.mark.parametrize(
    "second",
    [
        Prefill(TEXT + 1, 0, begun=False),
        Prefill(TEXT, 0, begun=False, tenant="another"),
        Prefill(TEXT[:4], 0, begun=False),  # its newest token must be fed: no whole block is left
        Prefill(TEXT, 28, begun=False),
    ],
    ids=["another text", "another tenant", "less than a block", "all of it found"],
)
def test_nobody_waits_for_nothing(second: Prefill) -> None:
    assert late(Prefill(TEXT, 0, begun=False), second) == set()


def test_somebody_always_goes_on() -> None:
    generator = np.random.default_rng(3)
    for _ in range(200):
        texts = [np.concatenate([TEXT[:12], generator.integers(0, 2, 8)]).astype(np.int32) for _ in range(5)]
        prefills = [Prefill(text, int(generator.integers(0, 4)) * 4, bool(generator.random() < 0.3)) for text in texts]
        assert len(late(*prefills)) < 5
