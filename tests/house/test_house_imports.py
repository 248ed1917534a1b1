"""Imports point down and vendors stay in their places; the rules are proven able to fail on small wrong trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from house.import_rules import LEVELS, SAME_LEVEL, VENDORS, unit_of, violations

ROOT = Path(__file__).parents[2]


def test_every_import_of_the_repository_points_down() -> None:
    found = violations(ROOT)
    assert not found, "\n".join(str(violation) for violation in found)


def test_the_rules_name_only_known_units_and_same_levels() -> None:
    assert {unit_of(owner) for owner in VENDORS} <= set(LEVELS)
    assert all(LEVELS[unit] == LEVELS[peer] for unit, peers in SAME_LEVEL.items() for peer in peers)


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        (
            "services/outrider/types/tree.py",
            "from outrider.session import events",
            "outrider.types imports outrider.session, which is above it",
        ),
        ("services/outrider/session/verifier.py", "import torch", "outrider.session.verifier must not know torch"),
        ("services/outrider/rpc/server.py", "from outrider.engine.contract import Engine", "imports outrider.engine on its own level"),
        ("services/outrider/engine/load.py", "def f():\n    import grpc", "outrider.engine.load must not know grpc"),
        ("services/outrider/engine/acceptance/coupled.py", "import torch", "outrider.engine.acceptance.coupled must not know torch"),
        ("services/outrider/drafting/table.py", "import redis.asyncio", "outrider.drafting.table must not know redis"),
        ("services/outrider/gateway/place.py", "import ray", "outrider.gateway.place must not know ray"),
        ("services/outrider/errors.py", "from . import types", "outrider.errors imports outrider.types on its own level"),
        ("services/outrider/noise/keys.py", "from ..rpc import status", "outrider.noise imports outrider.rpc, which is above it"),
        ("services/outrider/common.py", "x = 1", "outrider.common has no level"),
        ("services/outrider/__init__.py", "from outrider import engine", "outrider imports outrider.engine, which is above it"),
        ("services/outrider/config/env.py", "import importlib\nimportlib.import_module('rich')", "outrider.config.env must not know rich"),
        ("drafter_service/servicer.py", "import verifier_service.scheduler", "imports verifier_service on its own level"),
        ("kernels/outrider_kernels/compact.py", "from outrider.types import tree", "imports outrider.types on its own level"),
        ("models/outrider_models/build.py", "import outrider_bench", "outrider_models imports outrider_bench, which is above it"),
    ],
)
def test_a_wrong_import_is_reported_with_its_place(tmp_path: Path, path: str, source: str, expected: str) -> None:
    write_module(tmp_path, path, source)
    found = [str(violation) for violation in violations(tmp_path)]
    assert len(found) == 1, found
    assert found[0].startswith(f"{path}:{1 if source.startswith('x') else len(source.splitlines())}: ")
    assert expected in found[0]


def test_a_right_tree_passes(tmp_path: Path) -> None:
    sources = {
        "services/outrider/rpc/server.py": "import grpc\nfrom outrider.v1 import sampling_pb2\nfrom outrider.session import events",
        "verifier_service/servicer.py": "import asyncio\nfrom outrider.engine import contract\nfrom . import scheduler",
        "services/outrider/gateway/slow_tokenizer.py": "import transformers",
    }
    for path, source in sources.items():
        write_module(tmp_path, path, source)
    assert violations(tmp_path) == []


def write_module(root: Path, path: str, source: str) -> None:
    """Write a module and make every folder above it, up to its source root, a package."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    generic = {root, *(root / name for name in ("services", "kernels", "models", "bench"))}
    for folder in target.parents:
        if folder in generic:
            break
        (folder / "__init__.py").touch()
    target.write_text(source, encoding="utf-8")
