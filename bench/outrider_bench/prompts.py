"""Held-out prompts of the reference tasks, or a user's own, tokenised by the deployment that will answer them.

Tuning and reporting use different seeds and, of a user's file, different texts, so no setting is chosen on the prompts it is judged by.
Must not know contestants.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.cli.connection import Connection
from outrider.cli.generate import chat_messages
from outrider.errors import InvalidRequest
from outrider_bench.measurement import Prompt
from outrider_bench.prompt_files import NO_FILES, OPTION, PromptFiles
from outrider_models.tasks import make_tasks

TUNING_SEED = 11  # the command line's --prompt-seed is that of the reported ones


def check_prompt_seed(seed: int) -> None:
    """Raise InvalidRequest for the prompts that settings are chosen on: nothing is reported on them."""
    if seed == TUNING_SEED:
        raise InvalidRequest("--prompt-seed", f"{TUNING_SEED} makes the prompts that settings are chosen on; take another")


@dataclass(frozen=True, slots=True)
class PromptSource:
    """Where prompts come from: files, or the reference tasks where there are none. room: tokens of an answer, for which a file's prompts
    must leave the context room."""

    files: PromptFiles = NO_FILES
    room: int = 0

    def task(self, name: str) -> str:
        """Where one task is enough: the first file, or this reference task."""
        return next(iter(self.files.tasks), name)


REFERENCE_TASKS = PromptSource()


def source_of(args: argparse.Namespace, max_tokens: int) -> PromptSource:
    """From the command line. max_tokens: of an answer."""
    return PromptSource(args.prompt_files, max_tokens)


def make_prompts(gateway: Connection, task: str, num: int, seed: int, source: PromptSource = REFERENCE_TASKS) -> list[Prompt]:
    """num prompts of a task, as a user's message where the model has a chat template, else as text. Raises InvalidRequest where a file has
    too few that fit."""
    info = gateway.model_info()
    most = min(info.max_prompt_tokens, info.max_completion_tokens + 1 - source.room)
    prompts: list[Prompt] = []
    for text in _texts(task, num, seed, source.files):
        if len(prompts) == num:
            break
        ids = gateway.tokenize(chat=chat_messages(text)) if info.has_chat_template else gateway.tokenize(text=text)
        if not source.files.texts or len(ids) <= most:
            prompts.append(Prompt(task, ids))
    if len(prompts) < num:
        kind = "for choosing settings" if seed == TUNING_SEED else "to report"
        problem = f"{task} has {len(prompts)} prompts {kind} of at most {most} tokens, and {num} are wanted"
        raise InvalidRequest(OPTION, f"{problem}: take a longer file, or ask for less with --prompts and --max-tokens")
    return prompts


def _texts(task: str, num: int, seed: int, files: PromptFiles) -> Iterator[str]:
    if files.texts:
        return files.drawn(task, seed, to_tune=seed == TUNING_SEED)
    return (made.prompt for made in make_tasks(task, num, seed, held_out=True))
