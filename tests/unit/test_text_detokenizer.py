"""Streamed text is the one-shot decoding, however tokens cut characters; no delta ever holds half a character.

pytest tests/unit/test_text_detokenizer.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers

from outrider.gateway.detokenizer import REPLACEMENT, ByteTextDecoder, TextDecoder, WindowTextDecoder
from outrider.gateway.token_bytes import Spelling, TokenTable, byte_level_bytes, sentencepiece_bytes, spelling_of, token_table
from outrider.gateway.tokenizer import load_tokenizer

MODEL_DIR = Path(__file__).parents[2] / "models" / "ref-small"
FEW = settings(max_examples=100, deadline=None)
TEXTS = st.text(alphabet=st.sampled_from("ab é\u0301😀👩\u200d👧汉\u0000 "), max_size=12)

BYTE_LEVEL = tokenizers.Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
BYTE_LEVEL_TABLE = token_table(BYTE_LEVEL.get_vocab(), frozenset(range(5)), {"type": "ByteLevel"})
BYTE_IDS = {BYTE_LEVEL_TABLE.pieces[token_id]: token_id for token_id in range(len(BYTE_LEVEL_TABLE.pieces))}


def _sentencepiece() -> tokenizers.Tokenizer:
    """A byte-fallback BPE as Llama 2 has it: three special tokens, 256 bytes, then words."""
    words = ["\u2581", "a", "b", "\u2581a", "\u2581ab", "ab", "\u2581\u2581", "é", "汉"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = tokenizers.Tokenizer(
        models.BPE({name: index for index, name in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


SENTENCEPIECE = _sentencepiece()
LLAMA_STEPS: list[dict[str, object]] = [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]
LLAMA_DECODER: dict[str, object] = {"type": "Sequence", "decoders": LLAMA_STEPS}
REPLACE_X: dict[str, object] = {"type": "Replace", "pattern": {"String": "x"}, "content": "y"}
STRIP_THE_END: dict[str, object] = {"type": "Strip", "content": " ", "start": 0, "stop": 1}
SENTENCEPIECE_TABLE = token_table(SENTENCEPIECE.get_vocab(), frozenset({0, 1, 2}), LLAMA_DECODER)
WORDS = st.sampled_from(["\u2581", "a", "b", "\u2581a", "\u2581ab", "ab", "\u2581\u2581", "é", "汉", "😀", "</s>"])


def stream(decoder: TextDecoder, ids: Sequence[int]) -> list[str]:
    """What left after every token, and at the end."""
    return [*(decoder.push(token_id) for token_id in ids), decoder.flush()]


@FEW
@given(st.lists(st.integers(0, 2047), max_size=20))
def test_any_byte_level_sequence_streams_to_its_one_shot_decoding(ids: list[int]) -> None:
    assert "".join(stream(ByteTextDecoder(BYTE_LEVEL_TABLE, at_start=True), ids)) == BYTE_LEVEL.decode(ids, skip_special_tokens=True)


@FEW
@given(st.lists(st.integers(0, 2060), max_size=20), st.integers(1, 20), st.booleans())
def test_a_run_of_tokens_is_its_tokens_one_by_one(ids: list[int], run_len: int, at_start: bool) -> None:
    runs = [ids[begin : begin + run_len] for begin in range(0, len(ids), run_len)]
    for make in (
        lambda: ByteTextDecoder(BYTE_LEVEL_TABLE, at_start),
        lambda: ByteTextDecoder(SENTENCEPIECE_TABLE, at_start),
        lambda: WindowTextDecoder(lambda window: bytes(token_id % 256 for token_id in window).decode(errors="replace"), []),
    ):
        one_by_one, at_once = make(), make()
        texts = ["".join([one_by_one.push(token_id) for token_id in run]) for run in runs]
        assert [at_once.push_run(run) for run in runs] == texts
        assert at_once.flush() == one_by_one.flush()


@FEW
@given(TEXTS)
def test_text_spelled_byte_by_byte_never_leaves_in_half_characters(text: str) -> None:
    deltas = stream(ByteTextDecoder(BYTE_LEVEL_TABLE, at_start=False), [BYTE_IDS[bytes([byte])] for byte in text.encode()])
    assert "".join(deltas) == text
    assert all(REPLACEMENT not in delta for delta in deltas)
    assert [delta for delta in deltas if delta] == list(text), "every character leaves with its last byte"


@FEW
@given(st.lists(WORDS, max_size=10))
def test_sentencepiece_text_streams_to_its_one_shot_decoding(words: list[str]) -> None:
    ids = [token_id for word in words for token_id in spell(word)]
    assert "".join(stream(ByteTextDecoder(SENTENCEPIECE_TABLE, at_start=True), ids)) == SENTENCEPIECE.decode(ids, skip_special_tokens=True)


@FEW
@given(st.lists(WORDS, min_size=1, max_size=5), st.lists(WORDS, max_size=8))
def test_a_continuation_keeps_the_space_that_joins_it_to_its_prompt(prompt: list[str], words: list[str]) -> None:
    prompt_ids = [*spell("a"), *(token_id for word in prompt for token_id in spell(word))]
    ids = [token_id for word in words for token_id in spell(word)]
    whole = SENTENCEPIECE.decode(prompt_ids + ids, skip_special_tokens=True)
    before = SENTENCEPIECE.decode(prompt_ids, skip_special_tokens=True)
    assert before + "".join(stream(ByteTextDecoder(SENTENCEPIECE_TABLE, at_start=False), ids)) == whole


def test_an_added_token_is_spelled_as_the_tokenizers_normalizer_leaves_it(tmp_path: Path) -> None:
    """A normalizer that begins each text with the space mark gives one to added tokens too, unless they are not to be normalized."""
    vocabulary = {"<unk>": 0, "\u2581": 1, "m": 2, "\u2581m": 3}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("\u2581", "m")], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_tokens(["<user>", tokenizers.AddedToken("<raw>", normalized=False)])
    tokenizer.add_special_tokens(["<end>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ids = [3, 4, 2, 5, 2, 6, 4]
    decoder = load_tokenizer(tmp_path).decoder([])
    assert isinstance(decoder, ByteTextDecoder)
    assert decoder.push_run(ids) == tokenizer.decode(ids) == "m <user>m<raw>m <user>"


def test_only_a_text_at_the_very_start_loses_its_leading_space() -> None:
    ids = [*spell("\u2581a"), *spell("\u2581ab")]
    assert "".join(stream(ByteTextDecoder(SENTENCEPIECE_TABLE, at_start=True), ids)) == "a ab"
    assert "".join(stream(ByteTextDecoder(SENTENCEPIECE_TABLE, at_start=False), ids)) == " a ab"
    assert "".join(stream(ByteTextDecoder(SENTENCEPIECE_TABLE, at_start=True), [2, *ids])) == "a ab", "a special token is no text"


def spell(word: str) -> list[int]:
    """Ids of a word of the sentencepiece vocabulary, as bytes when it has no token of its own."""
    token_id = SENTENCEPIECE.token_to_id(word)
    return [token_id] if token_id is not None else [3 + byte for byte in word.encode()]


@pytest.mark.parametrize(
    ("spelled", "text"),
    [
        (b"\xff", "\ufffd"),
        (b"a\x80b", "a\ufffdb"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf0\x9f\x98a", "\ufffda"),
        (b"\xf0\x9f\xf0\x9f\x98\x80", "\ufffd😀"),
        (b"\xc3\xc3\xa9", "\ufffdé"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"e\xcc\x81", "e\u0301"),
    ],
)
def test_invalid_bytes_become_replacements_and_hide_nothing_after_them(spelled: bytes, text: str) -> None:
    deltas = stream(ByteTextDecoder(BYTE_LEVEL_TABLE, at_start=False), [BYTE_IDS[bytes([byte])] for byte in spelled])
    assert "".join(deltas) == text == spelled.decode(errors="replace")


@FEW
@given(TEXTS, st.lists(st.integers(5, 2047), max_size=4))
def test_the_window_decoder_agrees_for_any_prompt_and_text(text: str, prompt_ids: list[int]) -> None:
    ids = [BYTE_IDS[bytes([byte])] for byte in text.encode()]
    decoder = WindowTextDecoder(lambda window: str(BYTE_LEVEL.decode(list(window))), [*prompt_ids, BYTE_IDS[b"a"]])
    deltas = stream(decoder, ids)
    assert "".join(deltas) == text
    assert all(REPLACEMENT not in delta for delta in deltas)


@pytest.mark.parametrize(
    "prompt", [[], ["a"], ["語", "語"], ["a", "👧", "\u2581"], ["語", "</s>", "</s>", "</s>", "</s>", "</s>", "</s>", "</s>"]]
)
@pytest.mark.parametrize("text", ["語語語", "👧👧語\u2581ab語👧a語", "\u2581ab\u2581👧", "語👩\u200d👩\u200d👧"])
def test_the_window_decoder_keeps_characters_of_a_run_of_byte_tokens(prompt: list[str], text: str) -> None:
    """The tokenizer's own decoder spells all of a run as invalid while its last character is incomplete."""
    prompt_ids, ids = ([token_id for word in words for token_id in spell(word)] for words in (prompt, list(text)))
    deltas = stream(WindowTextDecoder(SENTENCEPIECE.decode, prompt_ids), ids)
    assert SENTENCEPIECE.decode(prompt_ids) + "".join(deltas) == SENTENCEPIECE.decode(prompt_ids + ids)
    assert all(REPLACEMENT not in delta for delta in deltas)


def test_the_window_decoder_goes_on_after_a_bad_byte_in_a_run_of_byte_tokens() -> None:
    ids = [*spell("a"), *spell("語"), 3 + 0xFF, *spell("a"), *spell("\u2581ab"), *spell("\u2581"), *spell("語")]
    assert "".join(stream(WindowTextDecoder(SENTENCEPIECE.decode, []), ids)) == "a語\ufffda ab 語"
    assert "".join(stream(WindowTextDecoder(SENTENCEPIECE.decode, []), ids[:5])) == "a語\ufffd", "and at the end"


@pytest.mark.parametrize("spelled", [b"\xff\xf0\x9f\x98\x80!", b"\x80\x80\x80\x80\x80a", b"\xc3", b"ok\xf0\x9f"])
def test_the_window_decoder_lets_invalid_bytes_go(spelled: bytes) -> None:
    decoder = WindowTextDecoder(lambda window: bytes(window).decode(errors="replace"), [])
    assert "".join(stream(decoder, list(spelled))) == spelled.decode(errors="replace")


def test_the_window_decoder_keeps_its_window_bounded() -> None:
    longest = 0

    def decode(window: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(window))
        return bytes(window).decode(errors="replace")

    text = "".join(stream(WindowTextDecoder(decode, [97] * 1000), [0x80] * 200 + [97] * 200))
    assert text == REPLACEMENT * 200 + "a" * 200
    assert longest <= 32


@pytest.mark.parametrize("letter", ["é", "語", "😀"])
def test_the_window_decoder_keeps_characters_whole_where_every_token_ends_inside_one(letter: str) -> None:
    text = letter * 100
    spelled, size = text.encode(), len(letter.encode())
    tokens = [spelled[:1], *(spelled[begin : begin + size] for begin in range(1, len(spelled) - size, size)), spelled[1 - size :]]
    assert b"".join(tokens) == spelled

    def decode(window: Sequence[int]) -> str:
        return b"".join(tokens[token_id] for token_id in window).decode(errors="replace")

    deltas = stream(WindowTextDecoder(decode, []), list(range(len(tokens))))
    assert "".join(deltas) == text
    assert all(len(delta) <= 1 for delta in deltas), "each leaves as soon as it is whole"


def test_the_window_decoder_handles_a_decoder_that_joins_words_with_spaces() -> None:
    words = ["<s>", "the", "cat", "sat"]
    decoder = WindowTextDecoder(lambda window: " ".join(words[token_id] for token_id in window), [0])
    assert stream(decoder, [1, 2, 3]) == [" the", " cat", " sat", ""]


@pytest.mark.parametrize(
    ("decoder", "spelling"),
    [
        ({"type": "ByteLevel"}, Spelling.BYTE_LEVEL),
        ({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}, Spelling.BYTE_LEVEL),
        (LLAMA_DECODER, Spelling.SENTENCEPIECE),
        ({"type": "Metaspace", "replacement": "\u2581"}, Spelling.SENTENCEPIECE),
        ({"type": "WordPiece", "prefix": "##"}, Spelling.OPAQUE),
        ({"type": "Sequence", "decoders": [{"type": "Fuse"}]}, Spelling.OPAQUE),
        ({"type": "Sequence", "decoders": [REPLACE_X]}, Spelling.OPAQUE),
        ({"type": "Sequence", "decoders": [*LLAMA_STEPS, REPLACE_X]}, Spelling.OPAQUE),
        ({"type": "Sequence", "decoders": [*LLAMA_STEPS, STRIP_THE_END]}, Spelling.OPAQUE),
        ({"type": "Sequence", "decoders": [LLAMA_STEPS[0], LLAMA_STEPS[3], LLAMA_STEPS[2]]}, Spelling.OPAQUE),
        (None, Spelling.OPAQUE),
    ],
)
def test_a_decoder_is_recognised_or_left_to_the_tokenizer(decoder: dict[str, object] | None, spelling: Spelling) -> None:
    assert spelling_of(decoder) is spelling


def test_bytes_of_single_tokens() -> None:
    assert byte_level_bytes("\u0120a") == b" a"
    assert byte_level_bytes("\u2581") == "\u2581".encode(), "an added token outside the alphabet stands for itself"
    assert sentencepiece_bytes("<0x0A>") == b"\n"
    assert sentencepiece_bytes("<0x0A>", has_byte_tokens=False) == b"<0x0A>"
    assert sentencepiece_bytes("\u2581a") == b" a"


def test_ids_without_a_token_stand_for_nothing() -> None:
    table = TokenTable((b"a", b"", b"b"), (b"a", b"", b"b"), strips_leading_space=False)
    assert stream(ByteTextDecoder(table, at_start=False), [0, 1, 99, 2]) == ["a", "", "", "b", ""]


def test_the_reference_tokenizer_round_trips_text_and_bytes() -> None:
    tokenizer = load_tokenizer(MODEL_DIR)
    text = "Tom had 12 marbles — naïve 😀.\n"
    ids = tokenizer.encode(text)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
    assert "".join(stream(tokenizer.decoder([0, 1]), ids)) == text
    assert tokenizer.token_bytes(3) == b"<|end|>", "a special token is spelled out"
    assert stream(tokenizer.decoder([0]), [3]) == ["", ""], "but is no text"
    assert tokenizer.token_bytes(10**6) == b""
