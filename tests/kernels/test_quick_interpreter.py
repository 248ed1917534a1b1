"""The short search of Triton's interpreter finds what the long one finds.

Run: pytest tests/kernels/test_quick_interpreter.py
"""

from __future__ import annotations

from fakes_kernel_places import interpreted_process


def test_the_short_search_replaces_what_the_long_one_replaces() -> None:
    assert interpreted_process().call("quick_interpreter", "differing_names") == []
