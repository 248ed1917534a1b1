"""The one address of a service over its starts: where it bound a free port first, it is told to bind the same one again.

Knows the option `--listen` and ports. Must not know processes, nor who asks for the address: gateways and pairs do, and would knock at a
dead one for as long as they remember it.
"""

from __future__ import annotations

import logging
from pathlib import Path

_LOG = logging.getLogger(__name__)
LISTEN = "--listen"
ANY_PORT = ":0"
# Starts in a row that did not become ready at the kept address before another port is asked for: somebody else may have taken it.
MAX_FRUITLESS_STARTS = 3


class KeptAddress:
    """Of one service. note: a file that keeps it beyond this process too; None: nothing does. A note that cannot be read or written is
    logged: then another port is bound, which costs whoever knew the old one a search."""

    def __init__(self, note: Path | None = None) -> None:
        self._note = note
        self._num_fruitless = 0
        self._address = self._read()

    def arguments(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The command line for the next start: with the address that is kept where a free port of the same host is wanted."""
        return tuple(
            self._address if before == LISTEN and self._is_kept_of(argument) else argument
            for before, argument in zip(("", *wanted), wanted, strict=False)
        )

    def bound(self, address: str) -> None:
        """A start has become ready there."""
        self._num_fruitless = 0
        if address != self._address:
            self._address = address
            self._write()

    def failed(self) -> None:
        """A start did not become ready."""
        self._num_fruitless += 1
        if self._num_fruitless >= MAX_FRUITLESS_STARTS:
            self._num_fruitless, self._address = 0, ""

    def _is_kept_of(self, wanted: str) -> bool:
        """Whether this asks for any port, and one of that host is kept."""
        return bool(self._address) and wanted == self._address.rpartition(":")[0] + ANY_PORT

    def _read(self) -> str:
        if self._note is None:
            return ""
        try:
            return self._note.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            _LOG.warning("the address in %s cannot be read: %s", self._note, error)
            return ""

    def _write(self) -> None:
        if self._note is None:
            return
        try:
            self._note.write_text(self._address, encoding="utf-8")
        except OSError as error:
            _LOG.warning("the address %s cannot be kept in %s: %s", self._address, self._note, error)
