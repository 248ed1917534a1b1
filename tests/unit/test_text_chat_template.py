"""Chat templates: rendered as Hugging Face would, in a sandbox, refusals as InvalidRequest.

pytest tests/unit/test_text_chat_template.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.errors import InvalidRequest, ModelRefused
from outrider.gateway.chat_template import ChatTemplate, load_chat_template, special_token_texts
from outrider.gateway.slow_tokenizer import load_slow_tokenizer
from outrider.gateway.tokenizer import load_tokenizer

MODEL_DIR = Path(__file__).parents[2] / "models" / "ref-small"
TURNS = [("system", "Be brief."), ("user", "2 + 2?"), ("assistant", "4"), ("user", "why <b>?")]


def test_the_reference_template_renders_as_transformers_renders_it() -> None:
    fast, slow = load_tokenizer(MODEL_DIR), load_slow_tokenizer(MODEL_DIR)
    assert fast.chat_template is not None
    assert slow.chat_template is not None
    rendered = fast.chat_template.render(TURNS)
    messages = [{"role": role, "content": content} for role, content in TURNS]
    assert rendered == slow._reading.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert slow.chat_template.render(TURNS) == rendered
    assert fast.encode_rendered(rendered) == slow.encode_rendered(rendered)
    assert fast.encode("plain text") == slow.encode("plain text")
    decoder = slow.decoder(fast.encode("prompt"))
    ids = fast.encode("Héllo 😀 world")
    assert "".join([*map(decoder.push, ids), decoder.flush()]) == "Héllo 😀 world"
    assert b"".join(map(slow.token_bytes, fast.encode(" plain"))) == b" plain"


def test_names_and_extensions_that_templates_of_the_hub_use() -> None:
    source = (
        "{%- if tools is none and documents is none %}{{ bos_token }}{% endif %}\n"
        "{%- for message in messages %}\n"
        "{%- if loop.index0 > 1 %}{% break %}{% endif %}\n"
        "{%- if message.role == 'assistant' %}{% generation %}{{ message.content | trim }}{% endgeneration %}\n"
        "{%- else %}[{{ message['content'] | tojson }}]{%- endif %}\n"
        "{%- endfor %}{{ strftime_now('%%') }}{% if add_generation_prompt %}>{% endif %}"
    )
    template = ChatTemplate(source, {"bos_token": "<s>"})
    assert template.render([("user", "é<"), ("assistant", " hi "), ("user", "left out")]) == '<s>["é<"]hi%>'


def test_templates_may_write_json_as_transformers_lets_them() -> None:
    source = "{{ messages[0] | tojson(ensure_ascii=True, sort_keys=True, separators=(',', ':')) }}{{ messages[0] | tojson(indent=1) }}"
    expected = '{"content":"\\u00e9","role":"user"}{\n "role": "user",\n "content": "é"\n}'
    assert ChatTemplate(source, {}).render([("user", "é")]) == expected


def test_a_template_that_refuses_is_the_callers_mistake() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidRequest, match=r"^chat: .*roles must alternate"):
        template.render([("user", "x")])


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{% for i in range(10**9) %}x{% endfor %}"])
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^chat: "):
        ChatTemplate(source, {}).render([("user", "x")])


@pytest.mark.parametrize("source", ["{{ 1 / (messages[0].content | length) }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"])
def test_a_template_that_fails_over_a_message_refuses_the_message(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^chat: the model's chat template refuses"):
        ChatTemplate(source, {}).render([("user", "")])


def test_a_template_that_cannot_be_parsed_is_refused_at_load() -> None:
    with pytest.raises(InvalidRequest, match="chat_template"):
        ChatTemplate("{% if %}", {})


def test_where_templates_are_kept(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ messages[0].content }}"}]
    for config, rendered in (({"chat_template": "c"}, "c"), ({"chat_template": named}, "dx")):
        template = load_chat_template(tmp_path, config)
        assert template is not None
        assert template.render([("user", "x")]) == rendered
    assert load_chat_template(tmp_path, {}) is None
    (tmp_path / "chat_template.jinja").write_text("file wins")
    template = load_chat_template(tmp_path, {"chat_template": "c"})
    assert template is not None
    assert template.render([("user", "x")]) == "file wins"


def test_special_tokens_come_as_texts_or_as_objects() -> None:
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "pad_token": None, "add_bos_token": True}
    assert special_token_texts(config) == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("in_file", [False, True])
def test_add_bos_token_of_the_configuration_overrules_the_tokenizer_file(in_file: bool, tmp_path: Path) -> None:
    config = json.loads((MODEL_DIR / "tokenizer_config.json").read_text())
    described = json.loads((MODEL_DIR / "tokenizer.json").read_text())
    plain = load_tokenizer(MODEL_DIR).encode("hi")
    if in_file:
        described["post_processor"]["single"].insert(0, {"SpecialToken": {"id": "<|bos|>", "type_id": 0}})
        described["post_processor"]["special_tokens"] = {"<|bos|>": {"id": "<|bos|>", "ids": [0], "tokens": ["<|bos|>"]}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    for add_bos, expected in ((True, [0, *plain]), (False, plain), (None, [0, *plain] if in_file else plain)):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "add_bos_token": add_bos}))
        assert load_tokenizer(tmp_path).encode("hi") == expected
        if add_bos is False:
            assert load_tokenizer(tmp_path).encode("<|bos|>hi") == [0, *plain], "what the text itself begins with stays"


def test_a_folder_without_a_tokenizer_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="is no folder"):
        load_tokenizer(tmp_path / "missing")
    with pytest.raises(ModelRefused, match=r"no tokenizer .*; put the model's tokenizer\.json there, or point --model-dir"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b'{"chat_template": [{}]}'),
        ("chat_template.jinja", b"\xff"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_refused_with_a_sentence(file: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((MODEL_DIR / "tokenizer.json").read_bytes())
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ModelRefused, match=str(tmp_path)):
        load_tokenizer(tmp_path)


def test_a_tokenizer_that_is_only_python_code_streams_whole_characters(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode("x😀é!")[:-1]
    decoder = tokenizer.decoder(tokenizer.encode("hi")[:-1])
    assert [text for text in map(decoder.push, ids) if text] == ["x", "😀", "é", "!"]
    assert decoder.flush() == ""
    assert tokenizer.chat_template is None


def test_a_tokenizer_of_python_code_has_the_default_of_its_named_templates(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ messages[0].content }}{{ eos_token }}"}]
    for templates, rendered in ((named, "dx</s>"), ([named[0]], None)):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer", "chat_template": templates}))
        template = load_tokenizer(tmp_path).chat_template
        assert (None if template is None else template.render([("user", "x")])) == rendered
