"""A model's own chat template, rendered in jinja2's sandbox.

Knows where checkpoints keep templates (chat_template.jinja, tokenizer_config.json) and the names that Hugging Face templates expect.
Must not know tokenizers or requests beyond (role, content) pairs. Templates come with the model, messages from anybody: the sandbox
bounds both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outrider.errors import InvalidRequest

TEMPLATE_FILE = "chat_template.jinja"
DEFAULT_TEMPLATE = "default"
_SPECIAL_TOKEN_SUFFIX = "_token"


class ChatTemplate:
    """Renders conversations up to where the assistant begins."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """special_tokens: "bos_token" -> its text, and so on. Raises InvalidRequest when the template itself cannot be parsed."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise InvalidRequest("chat_template", f"cannot be parsed: {error}") from error

    def render(self, messages: Sequence[tuple[str, str]]) -> str:
        """Text of (role, content) turns and the opening of the assistant's; raises InvalidRequest when the template refuses them."""
        turns = [{"role": role, "content": content} for role, content in messages]
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, tools=None, documents=None, **self._special_tokens)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise InvalidRequest("chat", f"the model's chat template refuses these messages: {error}") from error


def load_chat_template(model_dir: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    """The template of a model folder, None when it has none. config: its tokenizer_config.json."""
    file = model_dir / TEMPLATE_FILE
    source = file.read_text(encoding="utf-8") if file.is_file() else _template_of(config.get("chat_template"))
    return None if source is None else ChatTemplate(source, special_token_texts(config))


def special_token_texts(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and the like of a tokenizer_config.json, as texts."""
    texts: dict[str, str] = {}
    for key, value in config.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if key.endswith(_SPECIAL_TOKEN_SUFFIX) and isinstance(text, str):
            texts[key] = text
    return texts


def _template_of(value: Any) -> str | None:
    """Either one template or a list of named ones."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {entry["name"]: entry["template"] for entry in value}
        return named.get(DEFAULT_TEMPLATE)
    return None


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None, sort_keys: bool = False
) -> str:
    """Without HTML escapes: the reader is a model. The arguments are those of transformers' filter, in its order."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(sentence: str) -> NoReturn:
    raise jinja2.TemplateError(sentence)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's text for training; for a prompt it is only its body."""

    tags = {"generation"}  # noqa: RUF012 -- jinja2's own declaration style

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
