"""The served model's tokenizer: text to ids, ids to text, bytes of a token, the chat template.

Knows model folders. The quick way reads tokenizer.json with the `tokenizers` package, so that the gateway never imports torch; folders
without that file go through transformers (slow_tokenizer.py). Must not know requests or streams.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from outrider.errors import ModelRefused, OutriderError
from outrider.gateway.chat_template import ChatTemplate, load_chat_template, special_token_texts
from outrider.gateway.detokenizer import ByteTextDecoder, TextDecoder, WindowTextDecoder
from outrider.gateway.token_bytes import Spelling, TokenTable, spelling_of, token_table
from outrider.gateway.token_room import max_token_bytes

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SPECIAL_TOKENS_FILE = "special_tokens_map.json"
# `encode` holds the interpreter for all of its run, so a long text goes another way. Of a short one that takes a fraction of a millisecond,
# and who let go of the interpreter on the event loop might wait longer to have it back.
MAX_HELD_LEN = 2048
# That way is made for many texts at once, and starts a thread a core for them unless this says no.
_PARALLELISM_KEY = "TOKENIZERS_PARALLELISM"

_TOKEN_KEYS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")


class ModelTokenizer(Protocol):
    """What the gateway asks of a tokenizer; safe to call from several threads."""

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's template, None when it has none."""
        ...

    @property
    def max_token_bytes(self) -> int | None:
        """No token of any text stands for more bytes of it; None where that cannot be said."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with the beginning-of-sequence token if the model uses one."""
        ...

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of a rendered conversation: the template has written every special token itself."""
        ...

    def decoder(self, prompt_ids: Sequence[int]) -> TextDecoder:
        """A decoder for what follows these ids."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What one id stands for, special tokens as they are spelled."""
        ...


def load_tokenizer(model_dir: Path) -> ModelTokenizer:
    """The tokenizer of a model folder; raises ModelRefused when there is none to be had."""
    if not model_dir.is_dir():
        raise ModelRefused(f"{model_dir} is no folder; point --model-dir at the target model's folder (its tokenizer is enough)")
    try:
        config = _config(model_dir)
        if (model_dir / TOKENIZER_FILE).is_file():
            return FastTokenizer(model_dir, config)
    except OutriderError:
        raise
    except Exception as error:  # the tokenizers package raises nothing more specific
        raise ModelRefused(f"the tokenizer in {model_dir} cannot be read: {error!r}") from error
    from outrider.gateway.slow_tokenizer import load_slow_tokenizer  # imports transformers, and with it torch

    return load_slow_tokenizer(model_dir)


class FastTokenizer:
    """A tokenizer.json."""

    def __init__(self, model_dir: Path, config: dict[str, Any]) -> None:
        os.environ.setdefault(_PARALLELISM_KEY, "false")
        text = (model_dir / TOKENIZER_FILE).read_text(encoding="utf-8")
        self._tokenizer = tokenizers.Tokenizer.from_str(text)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        described = json.loads(text)
        redescribed = _redescribed_tokens(self._tokenizer, config)
        self._tokenizer.add_tokens([tokenizers.AddedToken(**token) for token in redescribed])
        described["added_tokens"] = [*(described.get("added_tokens") or ()), *redescribed]
        self._tokenizer.add_special_tokens(_named_tokens(self._tokenizer, config))
        self._special_ids = _special_ids(self._tokenizer)
        self._table = _table(self._tokenizer, self._special_ids, described.get("decoder"))
        self.max_token_bytes = max_token_bytes(described, self._table)
        self.chat_template = load_chat_template(model_dir, config)
        self._bos_id = self._tokenizer.token_to_id(special_token_texts(config).get("bos_token", ""))
        self._wants_bos: bool | None = config.get("add_bos_token")
        self._gets_bos = self._ids("", add_special_tokens=True)[:1] == [self._bos_id]

    def encode(self, text: str) -> list[int]:
        """See ModelTokenizer. `add_bos_token` of the configuration overrules what the tokenizer file adds, not what a text begins with."""
        ids = self._ids(text, add_special_tokens=True)
        if self._bos_id is None or self._wants_bos is None or self._wants_bos == self._gets_bos:
            return ids
        if not self._wants_bos:
            return ids[1:]
        return ids if ids[:1] == [self._bos_id] else [self._bos_id, *ids]

    def encode_rendered(self, text: str) -> list[int]:
        """See ModelTokenizer."""
        return self._ids(text, add_special_tokens=False)

    def decoder(self, prompt_ids: Sequence[int]) -> TextDecoder:
        """See ModelTokenizer."""
        if self._table is None:
            return WindowTextDecoder(self._decode, prompt_ids)
        at_start = all(token_id in self._special_ids for token_id in prompt_ids)
        return ByteTextDecoder(self._table, at_start)

    def token_bytes(self, token_id: int) -> bytes:
        """See ModelTokenizer; b"" for ids without a token."""
        if self._table is not None:
            return self._table.spelled[token_id] if token_id < len(self._table.spelled) else b""
        text: str = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return text.encode()

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The same by both ways; only the second leaves other threads the interpreter, and it makes no offsets, which nobody reads."""
        if len(text) <= MAX_HELD_LEN:
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        else:
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text


def _config(model_dir: Path) -> dict[str, Any]:
    """What a folder says beside its tokenizer.json. Special tokens are named in a file of their own where the configuration describes no
    added tokens: older checkpoints, of which transformers reads it too."""
    config = _object(model_dir / CONFIG_FILE)
    return config if "added_tokens_decoder" in config else config | _object(model_dir / SPECIAL_TOKENS_FILE)


def _object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ModelRefused(f"{file} holds no JSON object")
    return content


def _redescribed_tokens(tokenizer: tokenizers.Tokenizer, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Tokens that the configuration describes otherwise than tokenizer.json, as transformers takes them: with the spaces beside them or
    without, and special where either says so. Not those under ids that they do not have there, which are nobody's
    (engine/vocabulary.py)."""
    added = tokenizer.get_added_tokens_decoder()
    found = []
    for token_id, described in (config.get("added_tokens_decoder") or {}).items():
        token = {key: described[key] for key in _TOKEN_KEYS if key in described}
        here = added.get(int(token_id))
        token["special"] = bool(token.get("special")) or (here is not None and here.special)
        differs = here is None or any(getattr(here, key) != value for key, value in token.items())
        if differs and tokenizer.token_to_id(token["content"]) == int(token_id):
            found.append(token)
    return found


def _named_tokens(tokenizer: tokenizers.Tokenizer, config: dict[str, Any]) -> list[tokenizers.AddedToken]:
    """Tokens of the vocabulary that only the configuration calls special: as to transformers, they are no text, and a prompt's are one
    token each. Ids that tokenizer.json does not have are nobody's (engine/vocabulary.py), so other names name nothing."""
    added = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    names = [name for name in special_token_texts(config).values() if name not in added or not added[name].special]
    names += [name for name in _further_texts(config) if name not in added]
    known = [name for name in dict.fromkeys(names) if name and tokenizer.token_to_id(name) is not None]
    return [tokenizers.AddedToken(name, special=True, normalized=False) for name in known]


def _further_texts(config: dict[str, Any]) -> list[str]:
    """Special tokens without a role: a list, or names with them; today's key or the one before."""
    listed = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    tokens = listed.values() if isinstance(listed, dict) else listed
    texts = [token.get("content") if isinstance(token, dict) else token for token in tokens]
    return [text for text in texts if isinstance(text, str)]


def _special_ids(tokenizer: tokenizers.Tokenizer) -> frozenset[int]:
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def _table(tokenizer: tokenizers.Tokenizer, special_ids: frozenset[int], decoder: dict[str, Any] | None) -> TokenTable | None:
    if spelling_of(decoder) is Spelling.OPAQUE:
        return None
    return token_table(_spelled_vocabulary(tokenizer), special_ids, decoder)


def _spelled_vocabulary(tokenizer: tokenizers.Tokenizer) -> dict[str, int]:
    """Ids by what the decoder is given of them: an added token that is looked for in normalized text is spelled as that is, with the space
    in front of it, say, that a normalizer prepends."""
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    for token_id, token in tokenizer.get_added_tokens_decoder().items():
        spelled = tokenizer.id_to_token(token_id) if token.normalized and not token.special else token.content
        if spelled is not None and spelled not in vocabulary:
            vocabulary.pop(token.content, None)
            vocabulary[spelled] = token_id
    return vocabulary
