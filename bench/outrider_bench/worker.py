"""A process that answers prompts, one JSON request a line in, one JSON reply a line out: how a peer is asked without living with us.

The process keeps a peer's library and its thread pools out of the driver and away from other contestants'. It says one line when it is
ready, and ends when its input does. Must not know what a request means.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from outrider.launch.threads import thread_environment
from outrider_bench.measurement import Answer, DraftNumbers


class Worker:
    """`python -m module *arguments`, held to num_threads. Use as a context manager. name: in sentences about failures."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], num_threads: int, environment: Mapping[str, str]) -> None:
        """Start the process and wait for its first line. Raises RuntimeError when it ends or refuses instead."""
        self.name = name
        paths = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, **thread_environment(num_threads), **environment},
        )
        try:
            self.ready = self._read()
        except RuntimeError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process that computes."""
        return self._process.pid

    def ask(self, request: Mapping[str, object]) -> Answer:
        """One answer. Raises RuntimeError with the worker's sentence."""
        return answer_of(self._told(request))

    def ask_together(self, request: Mapping[str, object]) -> list[Answer]:
        """The answers of a batch, from a worker that knows batches. Raises RuntimeError with the worker's sentence."""
        return [answer_of(reply) for reply in self._told(request)["answers"]]

    def close(self) -> None:
        """End the worker: it leaves when its input does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _told(self, request: Mapping[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with exit code {self._process.wait()}; its error is above")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"{self.name} refused: {reply['error']}")
        return reply


def answer_of(reply: Mapping[str, Any]) -> Answer:
    """A reply's tokens and times; whole draft numbers from a worker of ours, rounds where a peer counts them (it need not say what it
    drafted)."""
    draft = DraftNumbers(**reply["draft"]) if "draft" in reply else None
    if reply.get("num_rounds"):
        accepted = reply["num_accepted"]
        draft = DraftNumbers(reply["num_rounds"], 0, accepted, verify_ms=0.0, draft_ms=0.0, overlapped_draft_ms=0.0, draft_wait_ms=0.0)
    return Answer(tuple(reply["tokens"]), reply["first_token_ms"], reply["total_ms"], draft)
