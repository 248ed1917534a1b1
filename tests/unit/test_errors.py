"""Errors that are raised in one process and heard in another, as those of Ray's actors are.

pytest tests/unit/test_errors.py
"""

from __future__ import annotations

import pickle

import pytest

from outrider.coordinator.cluster import sentence_of
from outrider.errors import DoesNotFit, InvalidRequest, Overloaded, Unavailable, UnsupportedParameter
from outrider.launch.process import StartFailed


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("--metrics-port", "127.0.0.1:9101 is taken"),
        UnsupportedParameter("adapter", "no adapters are served here"),
        DoesNotFit("prefix", "is too long"),
        Overloaded("full", retry_after_s=1.5),
        Unavailable("gone"),
        StartFailed("it ended"),
    ],
)
def test_an_error_is_the_same_in_another_process(error: Exception) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


def test_what_an_actor_raised_is_told_in_its_own_words() -> None:
    told = RuntimeError("a traceback of the actor's\nStartFailed: it ended")
    assert sentence_of(told) == str(told)
    told.cause = StartFailed("it ended")  # type: ignore[attr-defined]
    assert sentence_of(told) == "it ended"
    told.cause = KeyError("a fault")  # type: ignore[attr-defined]
    assert sentence_of(told) == str(told), "its traceback is all there is"
