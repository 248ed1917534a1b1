"""Stop strings over streamed text: nothing at or after a stop ever leaves, and no more waits than could still become one.

An Aho-Corasick automaton over characters: its state is the longest suffix of the text that begins some stop string, so its depth is
exactly what must be held back. The first stop string to be *complete* wins, the longest of those that end at the same character: this
does not depend on how the text was cut into tokens or rounds.
Must not know tokens or requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.types.value import quickly_made


@quickly_made
@dataclass(frozen=True, slots=True)
class Released:
    """text: what may leave now. stop: the stop string that was completed, None while there is none."""

    text: str
    stop: str | None = None


@dataclass(slots=True)
class _Node:
    """A prefix of some stop string. stop: the longest stop string that is a suffix of this prefix."""

    depth: int
    children: dict[str, int] = field(default_factory=dict)
    fallback: int = 0
    stop: str | None = None


class StopMatcher:
    """Text in, releasable text out. After a stop was found, push nothing more."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._nodes = _automaton(stops)
        self._state = 0
        self._held = ""

    @property
    def has_stops(self) -> bool:
        """Whether there is any stop string."""
        return len(self._nodes) > 1

    @property
    def num_held(self) -> int:
        """Characters that wait because they may begin a stop string."""
        return len(self._held)

    def push(self, text: str) -> Released:
        """Add text; releases all but the longest suffix that may still become a stop string."""
        nodes, firsts = self._nodes, self._nodes[0].children
        if not firsts or (not self._state and firsts.keys().isdisjoint(text)):
            return Released(text)  # there is no stop string, or none can begin here
        buffer = self._held + text
        for end, letter in enumerate(text, len(self._held) + 1):
            node = nodes[self._next(letter)]
            if node.stop is not None:
                self._held = ""
                return Released(buffer[: end - len(node.stop)], node.stop)
        num_free = len(buffer) - nodes[self._state].depth
        self._held = buffer[num_free:]
        return Released(buffer[:num_free])

    def flush(self) -> str:
        """The answer ended otherwise: what waited may leave."""
        held, self._held = self._held, ""
        return held

    def _next(self, letter: str) -> int:
        """Move on by a letter; the new state."""
        nodes, state = self._nodes, self._state
        while state and letter not in nodes[state].children:
            state = nodes[state].fallback
        self._state = nodes[state].children.get(letter, 0)
        return self._state


def _automaton(stops: Sequence[str]) -> list[_Node]:
    nodes = [_Node(0)]
    for stop in stops:
        assert stop, "an empty stop string would stop everything"
        state = 0
        for letter in stop:
            if letter not in nodes[state].children:
                nodes[state].children[letter] = len(nodes)
                nodes.append(_Node(nodes[state].depth + 1))
            state = nodes[state].children[letter]
        nodes[state].stop = stop
    _link(nodes)
    return nodes


def _link(nodes: list[_Node]) -> None:
    """Breadth first, so that the shorter prefixes a node falls back to are complete before it."""
    waiting = deque(nodes[0].children.values())
    while waiting:
        parent = waiting.popleft()
        for letter, child in nodes[parent].children.items():
            fallback = nodes[parent].fallback
            while fallback and letter not in nodes[fallback].children:
                fallback = nodes[fallback].fallback
            nodes[child].fallback = nodes[fallback].children.get(letter, 0)
            waiting.append(child)
        if nodes[parent].stop is None:
            nodes[parent].stop = nodes[nodes[parent].fallback].stop
