"""One method, one file, one registry line, one test file (docs/architecture.md section 5).

A method is a module that a `registry.py` imports from its own folder, the folder's contract left out; its test file carries its name:
`pearl.py` is tested by a `test_..._pearl....py`. Knows files only.
"""

from __future__ import annotations

import ast
from pathlib import Path

SEAMS = {"contract"}


def registered_methods(root: Path) -> list[Path]:
    """Files of every registered method below the folders of the shared package and the services, relative to root."""
    registries = sorted(path for base in ("services", "router_service") for path in (root / base).rglob("registry.py"))
    return [method.relative_to(root) for registry in registries for method in _methods(registry)]


def untested_methods(root: Path) -> list[str]:
    """Registered methods without a test file of their name."""
    tests = [path.stem for path in (root / "tests").rglob("test_*.py")]
    return [str(method) for method in registered_methods(root) if not any(_names(test, method.stem) for test in tests)]


def unregistered_methods(root: Path) -> list[str]:
    """Files beside a registry that define a class with the seam's shape in name (`...Source`, `...Pacing`, `...Stop`, `...Rule`) and are
    not imported by it."""
    registered = set(registered_methods(root))
    folders = sorted({method.parent for method in registered})
    candidates = [path.relative_to(root) for folder in folders for path in sorted((root / folder).glob("*.py")) if path.stem not in SEAMS]
    return [str(path) for path in candidates if path not in registered and _defines_method(root / path)]


def _methods(registry: Path) -> list[Path]:
    tree = ast.parse(registry.read_text(encoding="utf-8"))
    modules = {node.module.rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    beside = (registry.with_name(f"{name}.py") for name in sorted(modules - SEAMS))
    return [path for path in beside if path.is_file() and _defines_method(path)]


def _defines_method(path: Path) -> bool:
    suffixes = ("Source", "Pacing", "Stop", "Rule", "Acceptance", "Policy")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.ClassDef) and node.name.endswith(suffixes) for node in tree.body)


def _names(test: str, method: str) -> bool:
    return f"_{method}_" in f"_{test.removeprefix('test_')}_"
