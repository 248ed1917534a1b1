"""Held-out prompts of the reference tasks, tokenised by the deployment that will answer them.

Tuning and reporting use different seeds, so no setting is chosen on the prompts it is judged by. Must not know contestants.
"""

from __future__ import annotations

from outrider.cli.connection import Connection
from outrider.cli.generate import chat_messages
from outrider.errors import InvalidRequest
from outrider_bench.measurement import Prompt
from outrider_models.tasks import make_tasks

TUNING_SEED = 11  # the command line's --prompt-seed is that of the reported ones


def check_prompt_seed(seed: int) -> None:
    """Raise InvalidRequest for the prompts that settings are chosen on: nothing is reported on them."""
    if seed == TUNING_SEED:
        raise InvalidRequest("--prompt-seed", f"{TUNING_SEED} makes the prompts that settings are chosen on; take another")


def make_prompts(gateway: Connection, task: str, num: int, seed: int) -> list[Prompt]:
    """num prompts of a task, as a user's message where the model has a chat template, else as text."""
    has_template = gateway.model_info().has_chat_template
    prompts = []
    for made in make_tasks(task, num, seed, held_out=True):
        ids = gateway.tokenize(chat=chat_messages(made.prompt)) if has_template else gateway.tokenize(text=made.prompt)
        prompts.append(Prompt(task, ids))
    return prompts
