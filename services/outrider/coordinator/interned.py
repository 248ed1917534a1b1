"""Keys as small numbers, so that columns can hold and compare them: fingerprints, vocabularies.

Knows how many hold a key: a number is free again when nobody does. Must not know what a key means.
"""

from __future__ import annotations

from collections.abc import Hashable

NOBODY = -1  # the number of no key


class Interned:
    """As many numbers as keys are held at a time."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._keys: dict[int, Hashable] = {}
        self._holders: dict[int, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def hold(self, key: Hashable) -> int:
        """The key's number, held once more."""
        number = self._numbers.get(key)
        if number is None:
            number = self._free.pop() if self._free else len(self._numbers)
            self._numbers[key], self._keys[number], self._holders[number] = number, key, 0
        self._holders[number] += 1
        return number

    def release(self, number: int) -> None:
        """One holder less."""
        self._holders[number] -= 1
        if not self._holders[number]:
            del self._numbers[self._keys.pop(number)], self._holders[number]
            self._free.append(number)

    def number_of(self, key: Hashable) -> int:
        """NOBODY when nobody holds it."""
        return self._numbers.get(key, NOBODY)
