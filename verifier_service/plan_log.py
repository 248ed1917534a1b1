"""Explanations of plans as lines of a file: kept in a bounded ring by the engine thread, written by a thread of its own.

Adding one never waits: what finds the ring full takes the oldest one's place, which shows as a gap in the lines' numbers. On disk are at
most two files of MAX_FILE_BYTES, the newer one at the path that was asked for. Must not know who plans, or what a plan says.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
from collections import deque
from pathlib import Path
from typing import TextIO

from outrider.errors import InvalidRequest
from outrider.session.pacing.explanation import PlanExplanation

_LOG = logging.getLogger(__name__)
OPTION = "--explain-plans"
MAX_WAITING = 8192  # plans in the ring: some seconds of a quick target's
FLUSH_EVERY_S = 0.25
MAX_FILE_BYTES = 64 << 20  # then the file becomes `<name>.1`, in the place of an older one, and a new one begins


class PlanLog:
    """Use: `start`, `add` from one thread, in the end `stop`. num_dropped: plans that no line tells of.

    Raises InvalidRequest where the path is no place for a file. What was written there before is kept, and lines are added behind it.
    """

    def __init__(self, path: Path, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        if path.exists() and not path.is_file():
            raise InvalidRequest(OPTION, f"must be a file that can be written, and {str(path)!r} is none")
        self.num_dropped = 0
        self._path = path
        self._max_file_bytes = max_file_bytes
        self._file = _opened(path)
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, PlanExplanation]] = deque()
        self._num_added = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plan log", daemon=True)

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    def add(self, explanation: PlanExplanation) -> None:
        """One more plan; never waits for the file."""
        with self._lock:
            if len(self._waiting) == MAX_WAITING:
                self._waiting.popleft()
                self.num_dropped += 1
            self._waiting.append((self._num_added, explanation))
            self._num_added += 1

    def stop(self, timeout_s: float) -> None:
        """Write what waits, if that takes no longer, and end the thread."""
        self._ended.set()
        if self._thread.ident is None:
            self._file.close()
            return
        self._thread.join(timeout_s)
        if self.num_dropped:
            _LOG.warning("%d of %d plans were not written to %s", self.num_dropped, self._num_added, self._path)

    # --- the thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended.wait(FLUSH_EVERY_S):
                self._flush()
            self._flush()
        except OSError:
            _LOG.exception("plans are not explained any more")
        finally:
            self._file.close()

    def _flush(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        if not waiting:
            return
        for number, explanation in waiting:
            self._file.write(line(number, explanation) + "\n")
            if self._file.tell() >= self._max_file_bytes:
                self._turn_over()
        self._file.flush()

    def _turn_over(self) -> None:
        self._file.close()
        os.replace(self._path, self._path.with_name(self._path.name + ".1"))
        self._file = _opened(self._path)


def line(number: int, explanation: PlanExplanation) -> str:
    """number: of the plan since the verifier started, from 0."""
    return json.dumps({"number": number} | dataclasses.asdict(explanation))


def _opened(path: Path) -> TextIO:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(OPTION, f"{str(path)!r} cannot be written: {error.strerror}") from error
