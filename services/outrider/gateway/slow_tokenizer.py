"""Tokenizers that exist only as Python code in transformers: the fallback for model folders without tokenizer.json.

Knows transformers (which imports torch; this is why it is imported only when needed). Must not know requests or streams.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from outrider.errors import ModelRefused
from outrider.gateway.chat_template import DEFAULT_TEMPLATE, ChatTemplate
from outrider.gateway.detokenizer import TextDecoder, WindowTextDecoder


def load_slow_tokenizer(model_dir: Path) -> SlowTokenizer:
    """The tokenizer that transformers finds in the folder, without remote code; raises ModelRefused when it finds none."""
    try:
        reading, writing = (AutoTokenizer.from_pretrained(str(model_dir), trust_remote_code=False) for _ in range(2))
    except (OSError, ValueError, ImportError) as error:
        problem = str(error).strip().split("\n", maxsplit=1)[0]
        remedy = "put the model's tokenizer.json there, or point --model-dir at a folder that has it"
        raise ModelRefused(f"no tokenizer could be loaded from {model_dir} ({problem}); {remedy}") from error
    return SlowTokenizer(reading, writing)


class SlowTokenizer:
    """A transformers tokenizer behind ModelTokenizer; one call at a time, since Python tokenizers promise nothing about threads.

    Two of the same, loaded apart: reading has prompts, in threads, and takes seconds for a long one; writing has tokens, in the event loop,
    where nobody's next one may wait for that.
    """

    max_token_bytes: int | None = None

    def __init__(self, reading: Any, writing: Any) -> None:
        self._reading, self._reading_lock = reading, threading.Lock()
        self._writing, self._writing_lock = writing, threading.Lock()
        source = reading.chat_template
        if isinstance(source, dict):  # named ones
            source = source.get(DEFAULT_TEMPLATE)
        special_tokens = {key: str(value) for key, value in reading.special_tokens_map.items() if isinstance(value, str)}
        self.chat_template = ChatTemplate(source, special_tokens) if isinstance(source, str) else None

    def encode(self, text: str) -> list[int]:
        """See ModelTokenizer."""
        return self._encode(text, add_special_tokens=True)

    def encode_rendered(self, text: str) -> list[int]:
        """See ModelTokenizer."""
        return self._encode(text, add_special_tokens=False)

    def decoder(self, prompt_ids: Sequence[int]) -> TextDecoder:
        """See ModelTokenizer."""
        return WindowTextDecoder(self._decode, prompt_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """See ModelTokenizer; an incomplete character shows as U+FFFD, because only text can be asked for."""
        with self._writing_lock:
            text: str = self._writing.decode([token_id], skip_special_tokens=False)
        return text.encode()

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        with self._reading_lock:
            ids: list[int] = self._reading.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def _decode(self, ids: Sequence[int]) -> str:
        with self._writing_lock:
            text: str = self._writing.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
