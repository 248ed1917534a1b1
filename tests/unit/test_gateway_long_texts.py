"""Long texts: tokenised without holding up anybody else, to the same tokens, and not at all where they cannot fit.

pytest tests/unit/test_gateway_long_texts.py
"""

from __future__ import annotations

import json
import threading
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outrider.errors import DoesNotFit
from outrider.gateway.resolved import prompt_ids
from outrider.gateway.token_bytes import token_table
from outrider.gateway.token_room import COMPOSED_BYTES, max_token_bytes
from outrider.gateway.tokenizer import MAX_HELD_LEN, FastTokenizer, load_tokenizer
from outrider.v1 import generation_pb2 as pb

MODEL_DIR = Path(__file__).parents[2] / "models" / "ref-small"
DESCRIBED: dict[str, Any] = json.loads((MODEL_DIR / "tokenizer.json").read_text())
PLAIN = tokenizers.Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
FAST = cast(FastTokenizer, load_tokenizer(MODEL_DIR))
LONGEST = FAST.max_token_bytes or 0
TEXTS = ["", "a ", "1 + 2 = 3\n", "é😀 \u0301\x00", "<|user|>hi<|assistant|> ", "   \n\t "]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [MAX_HELD_LEN, MAX_HELD_LEN + 1, 5 * MAX_HELD_LEN])
def test_a_text_of_any_length_has_the_tokenizers_own_ids(text: str, size: int) -> None:
    whole = (text * size)[:size]
    assert FAST.encode(whole) == PLAIN.encode(whole, add_special_tokens=True).ids
    assert FAST.encode_rendered(whole) == PLAIN.encode(whole, add_special_tokens=False).ids


@pytest.mark.parametrize("encode", [FAST.encode, FAST.encode_rendered])
def test_others_go_on_while_a_long_text_is_tokenised(encode: Callable[[str], list[int]]) -> None:
    """One that held the interpreter would leave its neighbours one pause as long as all of its work."""
    text = "a " * 2**17
    worker = threading.Thread(target=encode, args=(text,))
    longest_s, begun_s = 0.0, time.perf_counter()
    worker.start()
    last_s = begun_s
    while worker.is_alive():
        now_s = time.perf_counter()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    ended_s = time.perf_counter()
    assert max(longest_s, ended_s - last_s) < (ended_s - begun_s) / 2


def test_no_threads_are_started_for_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    tokenizer = load_tokenizer(MODEL_DIR)
    num_before = len(list(Path("/proc/self/task").iterdir()))
    tokenizer.encode("a " * MAX_HELD_LEN)
    assert len(list(Path("/proc/self/task").iterdir())) == num_before


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_no_token_stands_for_more_than_is_said(text: str) -> None:
    assert len(text.encode()) <= LONGEST * len(FAST.encode_rendered(text))


class _Counted:
    """The tokenizer, counting what it is asked."""

    chat_template = FAST.chat_template
    max_token_bytes = FAST.max_token_bytes
    decoder = FAST.decoder
    token_bytes = FAST.token_bytes

    def __init__(self) -> None:
        self.num_texts = 0

    def encode(self, text: str) -> list[int]:
        self.num_texts += 1
        return FAST.encode(text)

    def encode_rendered(self, text: str) -> list[int]:
        self.num_texts += 1
        return FAST.encode_rendered(text)


def _chat(content: str) -> pb.GenerateRequest:
    return pb.GenerateRequest(chat=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=content)]))


@pytest.mark.parametrize("asked", [lambda text: pb.GenerateRequest(prompt=text), _chat])
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(asked: Callable[[str], pb.GenerateRequest]) -> None:
    tokenizer, message = _Counted(), asked("x" * (10 * LONGEST + 1))
    with pytest.raises(DoesNotFit, match=r"^(prompt|chat): has at least 1[1-9] tokens, at most 10 here$"):
        prompt_ids(message, tokenizer, 10)
    assert tokenizer.num_texts == 0


def test_a_text_that_might_fit_is_tokenised_and_so_is_any_whose_tokens_are_asked_for() -> None:
    tokenizer, longest = _Counted(), "x" * (10 * LONGEST)
    assert prompt_ids(pb.GenerateRequest(prompt=longest), tokenizer, 10) == FAST.encode(longest)
    assert prompt_ids(pb.TokenizeRequest(text=longest + "x"), tokenizer) == FAST.encode(longest + "x")
    assert tokenizer.num_texts == 2


def _without_a_byte(described: dict[str, Any]) -> dict[str, Any]:
    model = described["model"]
    return {"model": {**model, "vocab": {token: number for token, number in model["vocab"].items() if token != "a"}}}


LOSSY: list[dict[str, Any]] = [
    {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
    {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "StripAccents"}]}},
    {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": ""}},
    {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [DESCRIBED["pre_tokenizer"], {"type": "WhitespaceSplit"}]}},
    {"pre_tokenizer": {**DESCRIBED["pre_tokenizer"]["pretokenizers"][0], "behavior": "Removed"}},
    {"pre_tokenizer": None},
    {"added_tokens": [{**DESCRIBED["added_tokens"][0], "rstrip": True}]},
    {"model": {**DESCRIBED["model"], "type": "WordPiece"}},
    _without_a_byte(DESCRIBED),
]


@pytest.mark.parametrize("changed", LOSSY)
def test_nothing_is_said_of_a_tokenizer_that_may_drop_text(changed: dict[str, Any]) -> None:
    assert max_token_bytes(DESCRIBED, FAST._table) == LONGEST
    assert max_token_bytes({**DESCRIBED, **changed}, FAST._table) is None
    assert max_token_bytes(DESCRIBED, None) is None


def test_composed_characters_count_for_all_that_they_may_be_made_of() -> None:
    assert max_token_bytes({**DESCRIBED, "normalizer": {"type": "NFC"}}, FAST._table) == COMPOSED_BYTES * LONGEST


def test_no_composed_character_is_made_of_more() -> None:
    """Of every character: the longest spelling of each letter it is composed of, single letters that mean another among them."""
    hangul = range(0xAC00, 0xD7A4)
    changing = [chr(point) for point in range(0x110000) if point in hangul or unicodedata.decomposition(chr(point))[:1] not in ("", "<")]
    longest: dict[str, int] = {}
    for character in changing:
        letters = unicodedata.normalize("NFD", character)
        longest[letters] = max(longest.get(letters, 0), len(character.encode()))
    ratios = [
        sum(longest.get(letter, len(letter.encode())) for letter in unicodedata.normalize("NFD", character)) / len(character.encode())
        for character in {unicodedata.normalize("NFC", character) for character in changing}
    ]
    assert len(ratios) > len(hangul)
    assert COMPOSED_BYTES - 1 < max(ratios) <= COMPOSED_BYTES


MARK = "\u2581"
MARKED: dict[str, Any] = {  # as Llama 2's: spaces are marked, and what has no token is spelled in bytes
    "version": "1.0",
    "added_tokens": [],
    "normalizer": {
        "type": "Sequence",
        "normalizers": [{"type": "Prepend", "prepend": MARK}, {"type": "Replace", "pattern": {"String": " "}, "content": MARK}],
    },
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": {
        "type": "Sequence",
        "decoders": [{"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}],
    },
    "model": {
        "type": "BPE",
        "byte_fallback": True,
        "unk_token": "<unk>",
        "vocab": {"<unk>": 0, MARK: 1, 2 * MARK: 2, "m": 3} | {f"<0x{byte:02X}>": 4 + byte for byte in range(256)},
        "merges": [[MARK, MARK]],
    },
}


def test_byte_tokens_keep_every_character_of_a_vocabulary_with_marked_spaces() -> None:
    assert max_token_bytes(MARKED, FAST._table) == 3 * LONGEST
    assert max_token_bytes({**MARKED, "model": {**MARKED["model"], "byte_fallback": False}}, FAST._table) is None


@settings(max_examples=100, deadline=None)
@example(60 * MARK)
@given(st.text(alphabet=f"m {MARK}\u00e9", max_size=60))
def test_a_mark_in_a_text_is_longer_than_the_space_that_its_token_stands_for(text: str) -> None:
    marked = tokenizers.Tokenizer.from_str(json.dumps(MARKED))
    table = token_table(marked.get_vocab(), frozenset(), MARKED["decoder"])
    longest = max_token_bytes(MARKED, table)
    assert longest is not None
    assert len(text.encode()) <= longest * len(marked.encode(text).ids)
