"""Side branches of one session's chain of guesses (hedges): which corrections to be ready for, the likeliest first.

At every node of the chain the draft model's second draw under the same noise is the natural correction, should the first be wrong; it
costs nothing to know. A branch begins with such a second choice and goes on with the model's own picks, so that a mismatch finds its next
guesses waiting. Which row is worth a draft step is decided by the chance that the truth comes by: the product of the shares along the way,
EAGLE-2's order (2406.16858), over chain and branches alike. Knows node indices and shares. Must not know models, engines or frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.types.value import quickly_made

MIN_HEDGE_GAIN = 0.02  # chance that the truth comes by, below which a branch is not worth a row
MAX_HEDGE_ROWS = 8  # of one session in one draft step: a commit must not wait long
MAX_EXPONENT = 700.0  # as far as exp goes


@quickly_made
@dataclass(frozen=True, slots=True)
class Branch:
    """A row to feed on a side branch. node: None for a second choice that is not in the tree yet. gain: chance that the truth comes by."""

    parent: int
    token: int
    node: int | None
    gain: float


@quickly_made
@dataclass(frozen=True, slots=True)
class Second:
    """A row's second draw, and its share: of the first's and its own."""

    token: int
    share: float


def second_behind(token: int, behind: float) -> Second | None:
    """A row's second draw, whose perturbed score lies so far behind the first's; None where that says there is none.

    Its share is taken from the gap: the nearer the second, the likelier the target prefers it.
    """
    if token < 0 or not math.isfinite(behind):
        return None
    return Second(token, 1.0 / (1.0 + math.exp(min(MAX_EXPONENT, behind))))


class Hedges:
    """What of a tree lies on side branches. nodes: live side nodes. Shares of nodes that were guessed unasked count as 1."""

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self._reach: dict[int, float] = {}
        self._firsts: dict[int, int] = {}
        self._seconds: dict[int, Second] = {}
        self._tips: dict[int, tuple[int, int]] = {}  # ends of branches: parent and token

    def plant(self) -> None:
        """The tree is empty again."""
        self.nodes.clear()
        for known in (self._reach, self._firsts, self._seconds, self._tips):
            known.clear()

    def reach(self, node: int) -> float:
        """Chance that the truth, which stands at the root, comes by this node."""
        return self._reach.get(node, 1.0)

    def note(self, parent: int, child: int, share: float, second: Second | None) -> None:
        """A row was guessed: its first child, and its second choice if there is any use in it."""
        self._firsts[parent] = child
        self._reach[child] = self.reach(parent) * share
        if second is not None:
            self._seconds[parent] = second
        if parent in self.nodes:
            self.nodes.add(child)

    def open(self, branch: Branch, node: int) -> None:
        """A second choice is a node now."""
        del self._seconds[branch.parent]
        self._reach[node] = branch.gain
        self.nodes.add(node)

    def end_at(self, node: int, parent: int, token: int) -> None:
        """A branch may be fed here."""
        self._tips[node] = (parent, token)

    def fed(self, node: int) -> None:
        """A branch ends here no longer."""
        self._tips.pop(node, None)

    def tip(self, root: int) -> int:
        """The end of the chain below the root."""
        node = root
        while (below := self._firsts.get(node)) is not None:
            node = below
        return node

    def best(self, limit: int, position_of: Callable[[int], int], most: int, room: int) -> list[Branch]:
        """The rows most worth feeding, best first, whose children would lie before position `limit`.

        At most `most`, and so that they add at most `room` nodes: a second choice comes with its first child.
        """
        if room <= 0:
            return []
        found = [
            Branch(parent, second.token, None, gain)
            for parent, second in self._seconds.items()
            if (gain := self.reach(parent) * second.share) >= MIN_HEDGE_GAIN and position_of(parent) + 2 < limit
        ]
        found += [
            Branch(parent, token, node, gain)
            for node, (parent, token) in self._tips.items()
            if (gain := self.reach(node)) >= MIN_HEDGE_GAIN and position_of(node) + 1 < limit
        ]
        found.sort(key=lambda branch: -branch.gain)
        taken: list[Branch] = []
        for branch in found[:most]:
            room -= 1 if branch.node is not None else 2
            if room < 0:
                break
            taken.append(branch)
        return taken

    def descend(self, root: int, live: set[int]) -> int | None:
        """The truth reached this node, below which these live. Returns the new chain's end if it was the end of a branch till now."""
        scale = 1.0 / max(self.reach(root), 1e-30)
        self._reach = {node: min(1.0, reach * scale) for node, reach in self._reach.items() if node in live}
        self._firsts = {parent: child for parent, child in self._firsts.items() if child in live}
        self._seconds = {parent: second for parent, second in self._seconds.items() if parent in live or parent == root}
        chain = self._chain(root)
        self.nodes = {node for node in self.nodes if node in live and node not in chain}
        tip = self.tip(root)
        found = tip if tip in self._tips and tip != root else None
        self._tips = {node: row for node, row in self._tips.items() if node in self.nodes}
        return found

    def _chain(self, root: int) -> set[int]:
        chain: set[int] = set()
        node = root
        while (below := self._firsts.get(node)) is not None:
            chain.add(below)
            node = below
        return chain


def has_precedence(chain_worth: float, branches: Sequence[Branch]) -> bool:
    """Whether the chain's next guess is worth no less than the best row of a branch. chain_worth: the chance that the truth comes by, times
    as many such guesses as the row costs."""
    return not branches or chain_worth >= branches[0].gain
