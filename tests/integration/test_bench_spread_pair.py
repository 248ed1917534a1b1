"""The reference pair with a large vocabulary: where ids lie, and that both models say what they said before, in other ids."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from outrider_bench.made_pair import make
from outrider_bench.spread_pair import NUM_IDS, places_of
from outrider_models.paths import model_dir

NUM_TOKENS = 24
CHATS = ("What is 17 plus 25?", "Tell me about a ship at sea.", "Repeat: the quick brown fox.")


def test_ids_lie_ever_further_apart() -> None:
    places = places_of(2048)
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert (places[0], places[-1]) == (0, NUM_IDS - 1)
    assert min(gaps) == 1
    assert sum(gaps[:1000]) < sum(gaps[1000:]) / 2


@pytest.mark.slow
def test_both_models_say_what_they_said_before(tmp_path: Path) -> None:
    places = places_of(2048)
    for folder, reference in zip(make("spread", tmp_path), ("ref-large", "ref-small"), strict=True):
        narrow, wide = (LlamaForCausalLM.from_pretrained(each, dtype=torch.float32) for each in (model_dir(reference), folder))
        ours, theirs = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(model_dir(reference))
        assert ours.eos_token_id == places[theirs.eos_token_id]
        for text in CHATS:
            chat = [{"role": "user", "content": text}]
            before, now = (each.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for each in (theirs, ours))
            assert now == [places[token] for token in before]
            said, says = (
                model.generate(torch.tensor([tokens]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None)[0].tolist()
                for model, tokens in ((narrow, before), (wide, now))
            )
            assert says == [places[token] for token in said]
            assert ours.decode(says) == theirs.decode(said)
