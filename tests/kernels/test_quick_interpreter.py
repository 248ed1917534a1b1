"""The short searches of Triton's interpreter find what the long ones find.

Run: pytest tests/kernels/test_quick_interpreter.py
"""

from __future__ import annotations

from fakes_kernel_places import interpreted_process


def test_the_short_search_replaces_what_the_long_one_replaces() -> None:
    assert interpreted_process().call("quick_interpreter", "differing_names") == []


def test_a_type_that_is_looked_up_once_is_the_same() -> None:
    assert interpreted_process().call("quick_interpreter", "differing_types") == []
