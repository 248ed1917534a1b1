"""An engine thread that dies by a fault: whoever has asked the verifier hears of it at once, admitted or not.

Run: pytest tests/integration/test_verifier_engine_death.py
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from fakes import TableEngine
from fakes_verifier_service import PROMPT, TABLE, decode, serving, start
from outrider.types.step import SequenceSpec
from outrider.types.tree import IntArray

FATAL_LEN = len(PROMPT) + 1
BOUND_S = 20.0  # against hanging; calls that nobody ends end after a minute


class FatalEngine(TableEngine):
    """A sequence of FATAL_LEN tokens is more than it survives."""

    def open(self, sequence: int, spec: SequenceSpec, prefix: IntArray | None = None) -> None:
        if prefix is not None and len(prefix) == FATAL_LEN:
            raise RuntimeError("a fault of the device")
        super().open(sequence, spec, prefix)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: unix socket names have 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="ov-") as name:
        yield Path(name)


async def test_who_asked_hears_at_once_that_the_engine_is_lost_and_who_asks_then_is_refused(folder: Path) -> None:
    async with serving(folder, engine=FatalEngine(TABLE)) as verifier:
        with verifier.server.scheduler.inbox._lock:  # the engine thread takes in all three in one turn, or the fatal one last of all
            fatal = start("fatal", prefix=[PROMPT[0]], num_prompt_tokens=1)
            asked = [asyncio.ensure_future(decode(verifier, message)) for message in (start("before"), fatal, start("behind"))]
            await verifier.until_asked(3)
        async with asyncio.timeout(BOUND_S):
            errors = await asyncio.gather(*asked, return_exceptions=True)
        codes = [error.code() for error in errors if isinstance(error, grpc.aio.AioRpcError)]
        assert codes == [grpc.StatusCode.UNAVAILABLE] * 3
        assert not verifier.server.servicer._live  # type: ignore[union-attr]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await asyncio.wait_for(decode(verifier, start("later")), BOUND_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
