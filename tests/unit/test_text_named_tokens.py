"""Special tokens that only a folder's configuration names: single tokens of a prompt and no text of an answer, as in transformers.

pytest tests/unit/test_text_named_tokens.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from outrider.gateway.tokenizer import load_tokenizer

MODEL_DIR = Path(__file__).parents[2] / "models" / "ref-small"
TEXT = "<|bos|><|user|>hi<|end|>"
END = {"content": "<|end|>", "lstrip": False, "normalized": False}


def write_folder(folder: Path, config: dict[str, Any], named: dict[str, Any], added: list[dict[str, Any]]) -> None:
    described = json.loads((MODEL_DIR / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**described, "added_tokens": added}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))
    if named:
        (folder / "special_tokens_map.json").write_text(json.dumps(named))


@pytest.mark.parametrize("key", ["extra_special_tokens", "additional_special_tokens"])
@pytest.mark.parametrize("in_map", [False, True])
def test_tokens_that_a_configuration_names_are_special(tmp_path: Path, key: str, in_map: bool) -> None:
    names = {"bos_token": "<|bos|>", "eos_token": END if in_map else "<|end|>", key: ["<|user|>", "<|unknown|>"]}
    config = {"chat_template": "{{ bos_token }}<|user|>{{ messages[0].content }}{{ eos_token }}"}
    write_folder(tmp_path, config if in_map else config | names, names if in_map else {}, added=[])
    tokenizer, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))
    ids = tokenizer.encode(TEXT)
    assert ids == theirs.encode(TEXT)
    assert (ids[0], ids[1], ids[-1]) == (0, 1, 3)
    assert tokenizer.decoder([]).push_run(ids) == theirs.decode(ids, skip_special_tokens=True) == "hi"
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.render([("user", "hi")]) == TEXT


def test_a_token_with_a_role_is_special_though_the_tokenizer_file_does_not_say_so(tmp_path: Path) -> None:
    added = json.loads((MODEL_DIR / "tokenizer.json").read_text())["added_tokens"]
    named = {"bos_token": "<|bos|>", "eos_token": "<|end|>", "extra_special_tokens": ["<|user|>"]}
    write_folder(tmp_path, named, {}, [{**token, "special": False} for token in added])
    tokenizer, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decoder([]).push_run(ids) == theirs.decode(ids, skip_special_tokens=True) == "<|user|>hi"


def test_a_map_beside_a_configuration_that_describes_its_added_tokens_is_not_read(tmp_path: Path) -> None:
    write_folder(tmp_path, {"added_tokens_decoder": {}}, {"eos_token": "<|end|>"}, added=[])
    ids = load_tokenizer(tmp_path).encode("<|end|>")
    assert ids == AutoTokenizer.from_pretrained(str(tmp_path)).encode("<|end|>")
    assert len(ids) > 1


@pytest.mark.parametrize("change", [{"special": False}, {"lstrip": True, "rstrip": True}, {"special": False, "normalized": True}])
@pytest.mark.parametrize("in_config", [False, True])
def test_a_token_is_what_the_configuration_says_of_it(tmp_path: Path, change: dict[str, Any], in_config: bool) -> None:
    """Where it describes another one than tokenizer.json does, transformers goes by it, and so must texts in and out."""
    added = json.loads((MODEL_DIR / "tokenizer.json").read_text())["added_tokens"]
    changed = [{**token, **change} for token in added]
    first, second = (changed, added) if in_config else (added, changed)
    described = {str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in first}
    described["5000"] = {**described["0"], "content": "<|beyond|>"}
    write_folder(tmp_path, {"added_tokens_decoder": described}, {}, second)
    tokenizer, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(str(tmp_path))
    text = "<|bos|> <|user|>  hi <|end|> x"
    ids = tokenizer.encode(text)
    assert ids == theirs.encode(text)
    assert tokenizer.decoder([]).push_run(ids) == theirs.decode(ids, skip_special_tokens=True)
    if change.get("lstrip") and in_config:
        assert tokenizer.max_token_bytes is None, "one token may take any number of spaces along"
