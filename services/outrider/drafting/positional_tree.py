"""One session's guesses where a guess depends on its position alone: a chain, and the side branches beside it.

For sources that replay a known text, and for the simulator: what a model source keeps in a ModelTree, without a model. Knows node indices
and positions. Must not know where choices come from, engines or frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outrider.drafting.hedges import MAX_HEDGE_ROWS, Branch, Hedges, Second, has_precedence
from outrider.types.tree import ROOT


@dataclass(frozen=True, slots=True)
class Choice:
    """What is guessed at a position: the first choice, and the second with the chance that it is right where the first is wrong, if any."""

    first: int
    share: float = 1.0
    second: int | None = None
    second_share: float = 0.0


class PositionalTree:
    """tokens, parents, positions: of every node ever guessed. choice_at: of a position. tip: the chain's end, else the root."""

    def __init__(self, base: int, choice_at: Callable[[int], Choice]) -> None:
        self._choice_at = choice_at
        self._hedges = Hedges()
        self.plant(base)

    def plant(self, base: int) -> None:
        """An empty tree after `base` committed tokens."""
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.positions: list[int] = []
        self.root = self.tip = ROOT
        self._base = base
        self._hedges.plant()

    @property
    def next_position(self) -> int:
        """Of the chain's next guess."""
        return self.position_of(self.tip) + 1

    @property
    def num_live(self) -> int:
        """Guesses of the chain beyond the truth."""
        return self.position_of(self.tip) - self.position_of(self.root)

    @property
    def num_hedges(self) -> int:
        """Live nodes of side branches."""
        return len(self._hedges.nodes)

    def position_of(self, node: int) -> int:
        """Of a node; of ROOT, the newest token before the tree."""
        return self._base - 1 if node == ROOT else self.positions[node]

    def grow(self) -> None:
        """One more guess at the chain's end."""
        self.tip = self._guess_below(self.tip)

    def branches(self, limit: int, budget: int) -> list[Branch]:
        """The rows most worth a step, with children before position `limit`, so that at most `budget` side nodes live."""
        return self._hedges.best(limit, self.position_of, MAX_HEDGE_ROWS, budget - self.num_hedges)

    def has_precedence(self, branches: list[Branch]) -> bool:
        """Whether the chain's next guess is worth more than these."""
        return has_precedence(self._hedges.reach(self.tip), branches)

    def hedge(self, branches: list[Branch]) -> None:
        """Feed these rows: each gets its child."""
        for branch in branches:
            node = branch.node
            if node is None:
                node = self._add(branch.parent, branch.token)
                self._hedges.open(branch, node)
            self._hedges.fed(node)
            child = self._guess_below(node)
            self._hedges.end_at(child, node, self.tokens[child])

    def follow(self, path: tuple[int, ...]) -> None:
        """The truth walked along these nodes."""
        self.root = path[-1]
        live: set[int] = set()
        for node in range(self.root + 1, len(self.tokens)):
            if self.parents[node] == self.root or self.parents[node] in live:
                live.add(node)
        self._hedges.descend(self.root, live)
        self.tip = self._hedges.tip(self.root)

    def _guess_below(self, parent: int) -> int:
        choice = self._choice_at(self.position_of(parent) + 1)
        child = self._add(parent, choice.first)
        second = None if choice.second is None else Second(choice.second, choice.second_share)
        self._hedges.note(parent, child, choice.share, second)
        return child

    def _add(self, parent: int, token: int) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.positions.append(self.position_of(parent) + 1)
        return len(self.tokens) - 1
