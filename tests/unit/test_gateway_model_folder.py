"""A gateway finds the target's tokenizer by folder or hub name, and refuses one that is not the target's.

pytest tests/unit/test_gateway_model_folder.py
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import OfflineModeIsEnabled

from fakes_verifier import MODEL_DIR, FakeVerifier, fake_identity, serving
from outrider.errors import ModelRefused
from outrider.gateway.gateway import GatewayConfig, start_gateway
from outrider.gateway.model_folder import check_vocabulary, model_folder


def test_a_folder_is_used_as_it_is() -> None:
    assert model_folder(replace(fake_identity(), model=str(MODEL_DIR))) == MODEL_DIR


def test_a_hub_name_becomes_the_snapshot_of_the_verifiers_revision_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def download(model: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert not any(Path("model.safetensors").match(pattern) for pattern in allow_patterns)
        for name in ("tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json", "chat_template.jinja"):
            assert any(Path(name).match(pattern) for pattern in allow_patterns), name
        asked.append((model, revision))
        return str(MODEL_DIR)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert model_folder(replace(fake_identity(), model="acme/tiny", revision="abc")) == MODEL_DIR
    assert asked == [("acme/tiny", "abc")]


def test_a_model_that_is_nowhere_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: Any) -> str:
        raise OfflineModeIsEnabled("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelRefused, match=r"'acme/tiny'.*no network.*--model-dir"):
        model_folder(replace(fake_identity(), model="acme/tiny"))


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    check_vocabulary(MODEL_DIR, fake_identity())
    check_vocabulary(tmp_path, fake_identity())  # no tokenizer.json: nothing to compare
    changed = json.loads((MODEL_DIR / "tokenizer.json").read_text())
    changed["added_tokens"][-1]["content"] = "<|another|>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    with pytest.raises(ModelRefused, match="--model-dir at the target's own"):
        check_vocabulary(tmp_path, fake_identity())


async def test_a_gateway_with_another_models_tokenizer_does_not_start() -> None:
    fake = FakeVerifier([3], identity=replace(fake_identity(), vocab_hash="bb" * 16))
    async with serving(fake) as address:
        with pytest.raises(ModelRefused, match=r"the target 'fake/target' of the verifier has bbbbbbbbbbbb"):
            await start_gateway(GatewayConfig(("127.0.0.1:0",), (address,), MODEL_DIR))
