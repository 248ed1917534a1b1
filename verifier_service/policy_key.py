"""Which policy object plans a session: the one of its name, for drafts of its shape.

A policy learns from all its sessions what a drafted token takes and what a round with so many guesses does. A level of a tree, and a guess
that comes with its distribution, take many times as long as a token of a chain: learned together, either would be taken for the other, and
chains that pay would be left. Knows what a request asked for. Must not know policies.
"""

from __future__ import annotations

from typing import NamedTuple

from outrider.session.opening import VerifierSpec


class PolicyKey(NamedTuple):
    """name: as registered. trees: drafts have siblings. rows: they come with the distributions that they were drawn from."""

    name: str
    trees: bool = False
    rows: bool = False

    @staticmethod
    def of(name: str, spec: VerifierSpec) -> PolicyKey:
        """Of a session that goes by the policy of this name."""
        return PolicyKey(name, spec.limits.tree_width > 1, spec.with_rows)
