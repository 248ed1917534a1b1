"""Every registered method has a test file of its name, and no method lies beside a registry unregistered."""

from __future__ import annotations

from pathlib import Path

from house.method_rules import registered_methods, unregistered_methods, untested_methods
from house.repository import ROOT


def test_the_methods_there_are_are_found() -> None:
    names = {path.stem for path in registered_methods(ROOT)}
    assert {"plain", "serial", "pearl", "model_source", "replay_source", "confidence", "svip", "coupled", "rejection"} <= names


def test_every_registered_method_has_its_test_file() -> None:
    assert untested_methods(ROOT) == []


def test_every_method_is_registered() -> None:
    assert unregistered_methods(ROOT) == []


def test_an_untested_and_an_unregistered_method_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "services/outrider/session/pacing"
    folder.mkdir(parents=True)
    (folder / "registry.py").write_text("from outrider.session.pacing.brisk import BriskPacing\n", encoding="utf-8")
    (folder / "brisk.py").write_text("class BriskPacing: ...\n", encoding="utf-8")
    (folder / "idle.py").write_text("class IdlePacing: ...\n", encoding="utf-8")
    (tmp_path / "tests").mkdir()
    assert untested_methods(tmp_path) == ["services/outrider/session/pacing/brisk.py"]
    assert unregistered_methods(tmp_path) == ["services/outrider/session/pacing/idle.py"]
    (tmp_path / "tests/test_pacing_brisk.py").touch()
    assert untested_methods(tmp_path) == []
