"""A tokenizer of Python code may read a prompt for seconds; nobody's next token waits for that.

pytest tests/unit/test_text_slow_tokenizer.py
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from outrider.gateway.slow_tokenizer import load_slow_tokenizer

WAIT_S = 5.0


class Slow:
    """Reads until it is let; stands for transformers' AutoTokenizer too."""

    chat_template = None
    special_tokens_map: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.num_loaded = 0

    def from_pretrained(self, folder: str, trust_remote_code: bool) -> Slow:
        self.num_loaded += 1
        return self if self.num_loaded == 1 else Slow()

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        self.begun.set()
        assert self.may_end.wait(4 * WAIT_S)
        return [1]

    def decode(self, ids: Sequence[int], **_: bool) -> str:
        return "x" * len(ids)


async def test_no_token_waits_for_a_prompt_that_is_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr("outrider.gateway.slow_tokenizer.AutoTokenizer", slow)
    tokenizer = load_slow_tokenizer(Path())
    decoder = tokenizer.decoder([1])
    reading = asyncio.ensure_future(asyncio.to_thread(tokenizer.encode, "a long prompt"))
    try:
        assert await asyncio.to_thread(slow.begun.wait, WAIT_S)
        assert await asyncio.wait_for(asyncio.to_thread(decoder.push, 4), WAIT_S) == "x"
        assert await asyncio.wait_for(asyncio.to_thread(tokenizer.token_bytes, 4), WAIT_S) == b"x"
        assert not reading.done()
    finally:
        slow.may_end.set()
    assert await reading == [1]
