"""The shared tokenizer: any text round-trips, digits stand alone, and the folders agree."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from outrider_models.chat import SPECIAL_TOKENS, render_prompt
from outrider_models.paths import MODEL_NAMES, checkpoint_path, model_dir
from outrider_models.shapes import BOS_ID, END_ID, PAD_ID
from outrider_models.tokenizer import VOCAB_SIZE

TOKENIZER = Tokenizer.from_file(str(model_dir("ref-large") / "tokenizer.json"))


def _round_trip(text: str) -> str:
    return TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_any_text_round_trips(text: str) -> None:
    assert _round_trip(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "\x00\x07\x1b[0m\x7f", "👩‍👩‍👧‍👦 naïve ﬀ e\u0301", "  two  spaces \t\n\n", "１２ ٣ ½", "<|end|><|user|>", "347 + 268 = 615"],
)
def test_awkward_text_round_trips(text: str) -> None:
    assert _round_trip(text) == text


def test_every_digit_is_a_token_of_its_own_and_signs_keep_their_spaces() -> None:
    tokens = TOKENIZER.encode("1234567890 + 5 = 6").tokens
    assert tokens[:10] == list("1234567890")
    assert tokens[10:] == ["Ġ+Ġ", "5", "Ġ=Ġ", "6"]


def test_vocabulary_has_its_size_and_special_ids() -> None:
    assert TOKENIZER.get_vocab_size() == VOCAB_SIZE
    assert [TOKENIZER.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    assert [TOKENIZER.id_to_token(token) for token in (BOS_ID, END_ID, PAD_ID)] == ["<|bos|>", "<|end|>", "<|pad|>"]


def test_all_folders_hold_the_same_tokenizer() -> None:
    contents = {(model_dir(name) / "tokenizer.json").read_bytes() for name in MODEL_NAMES}
    assert len(contents) == 1


def test_transformers_renders_the_chat_template_as_training_does() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model_dir("ref-small")))
    message = [{"role": "user", "content": "How many?\n2 + 2"}]
    assert tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True) == render_prompt("How many?\n2 + 2")
    assert tokenizer.eos_token_id == END_ID
    assert tokenizer.bos_token_id == BOS_ID


def test_unknown_model_names_are_refused() -> None:
    with pytest.raises(ValueError, match="ref-huge"):
        model_dir("ref-huge")
    with pytest.raises(ValueError, match="ref-huge"):
        checkpoint_path("ref-huge")
