"""The chat format of the reference models: special tokens, the jinja template and the same rendering in Python.

Knows the text form only; a test holds the two renderings equal. Training uses exactly this form.
"""

from __future__ import annotations

BOS, USER, ASSISTANT, END, PAD = "<|bos|>", "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"
SPECIAL_TOKENS = (BOS, USER, ASSISTANT, END, PAD)

# A system message reads as a user's part: the models never saw one.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def render_prompt(prompt: str) -> str:
    """The text of one user message up to where the assistant begins."""
    return f"{BOS}{USER}{prompt}{ASSISTANT}"
