"""The reference pair with a vocabulary of the size that most models have: its ids spread over 64 times as many.

A head of 2,048 ids is a small part of either model; one of 131,072 is most of a small draft. Training for one takes more than there is
here, so each id of the reference vocabulary, which are in the order in which they were merged, goes to a place among the many as common ids
do: the first stay close together, the later ones lie ever further apart. All other ids are tokens that never come: their rows of the head
say NEVER to whatever the model thinks, as nearly as one row can. So the text is the reference pair's, in rare ties apart, and heads, picks
and noise are those of a large vocabulary. Must not know who measures it.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider_models.paths import model_dir
from outrider_models.tasks import TASK_KINDS, make_tasks

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import LlamaForCausalLM

TARGET = "ref-large"
DRAFT = "ref-small"
NUM_IDS = 131_072
NEVER = -30.0  # the logit of ids that stand for nothing
NUM_TEXTS = 200  # of each task, from which rows are made that say NEVER
TEXT_SEED = 22
RIDGE = 1e-4  # of the mean square: directions that hardly any text takes are left alone
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def write_pair(folder: Path) -> None:
    """Both models with their tokenizers, below `folder`: `target` and `draft`."""
    for name, model in (("target", TARGET), ("draft", DRAFT)):
        shutil.copytree(model_dir(model), folder / name)
        places = _spread_tokenizer(folder / name / "tokenizer.json")
        _spread_model(model_dir(model), folder / name, places)


def places_of(num_ids: int) -> list[int]:
    """Where each of so many ids lies among NUM_IDS: ascending, the last at the end."""
    power = math.log(NUM_IDS - 1) / math.log(num_ids - 1)
    places: list[int] = []
    for token in range(num_ids):
        places.append(max(places[-1] + 1 if places else 0, round(token**power)))
    return places


def _spread_tokenizer(file: Path) -> list[int]:
    """Rewrites it; returns where its ids lie."""
    written: dict[str, Any] = json.loads(file.read_text("utf-8"))
    vocabulary: dict[str, int] = written["model"]["vocab"]
    added = written["added_tokens"]
    places = places_of(1 + max(*vocabulary.values(), *(token["id"] for token in added)))
    spread = {text: places[token] for text, token in vocabulary.items()}
    for token in added:
        token["id"] = places[token["id"]]
    taken = {*spread.values(), *(token["id"] for token in added)}
    spread |= {f"\u2402{token}": token for token in range(NUM_IDS) if token not in taken}
    written["model"]["vocab"] = spread
    file.write_text(json.dumps(written, ensure_ascii=False), "utf-8")
    return places


def _spread_model(source: Path, folder: Path, places: list[int]) -> None:
    import torch
    from transformers import AutoTokenizer, LlamaForCausalLM

    narrow = LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)
    settings = {**narrow.config.to_dict(), "vocab_size": NUM_IDS, "tie_word_embeddings": False, "dtype": "bfloat16"}
    moved = {name: _moved(settings[name], places) for name in TOKEN_IDS}
    wide: LlamaForCausalLM = LlamaForCausalLM(type(narrow.config)(**{**settings, **moved}))
    embedding, head = narrow.get_input_embeddings().weight.data, narrow.get_output_embeddings().weight.data
    of_nothing = _row_that_says_never(narrow, AutoTokenizer.from_pretrained(source))
    weights = {name: weight for name, weight in narrow.state_dict().items() if weight.shape[0] != len(head)}
    weights["model.embed_tokens.weight"] = torch.zeros(NUM_IDS, embedding.shape[1]).index_copy_(0, torch.tensor(places), embedding)
    weights["lm_head.weight"] = of_nothing.repeat(NUM_IDS, 1).index_copy_(0, torch.tensor(places), head)
    wide.load_state_dict(weights)
    for name, token in moved.items():
        setattr(wide.generation_config, name, token)
    wide.bfloat16().save_pretrained(folder)


def _moved(token: int | list[int] | None, places: list[int]) -> int | list[int] | None:
    if isinstance(token, list):
        return [places[one] for one in token]
    return None if token is None else places[token]


def _row_that_says_never(model: LlamaForCausalLM, tokenizer: Any) -> Tensor:
    """A row of the head, [hidden], whose logit is NEVER wherever texts lead the model, by least squares."""
    import torch

    texts = [text for kind in TASK_KINDS for text in _texts(tokenizer, kind)]
    with torch.inference_mode():
        found = [model.model(torch.tensor([text])).last_hidden_state[0] for text in texts]
    states = torch.cat(found).double()
    squares = states.T @ states
    ridge = RIDGE * float(squares.diagonal().mean())
    row: Tensor = torch.linalg.solve(squares + ridge * torch.eye(len(squares)), NEVER * states.sum(dim=0))
    return row.float()


def _texts(tokenizer: Any, kind: str) -> list[list[int]]:
    """Of the kind that the models were trained on, as they see them."""
    tasks = make_tasks(kind, NUM_TEXTS, TEXT_SEED, held_out=False)
    chats = [[{"role": "user", "content": task.prompt}, {"role": "assistant", "content": task.reference}] for task in tasks]
    return [tokenizer.apply_chat_template(chat, return_dict=False) for chat in chats]
