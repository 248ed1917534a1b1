"""Ending a coroutine from outside with an error of ours instead of a bare cancellation.

The pattern of asyncio.timeout: the interrupter cancels the task, and the block turns exactly that cancellation into the error; a
cancellation by anybody else (grpc, when a client leaves) passes through untouched. Must not know requests.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from outrider.errors import OutriderError


class Interruption:
    """`async with Interruption() as interruption: ...`; anyone may call `interrupt(error)` while the block runs."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._num_cancels_before = 0
        self._error: OutriderError | None = None

    async def __aenter__(self) -> Interruption:
        self._task = asyncio.current_task()
        assert self._task is not None, "an interruption belongs to a task"
        self._num_cancels_before = self._task.cancelling()
        return self

    def interrupt(self, error: OutriderError) -> None:
        """End the block with this error; later calls and calls after the block change nothing."""
        if self._task is not None and self._error is None:
            self._error = error
            self._task.cancel()

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        task, self._task = self._task, None
        assert task is not None
        if self._error is not None and task.uncancel() <= self._num_cancels_before and kind is asyncio.CancelledError:
            raise self._error from value
