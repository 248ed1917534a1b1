"""Who may import whom: imports point down, and each vendor has its few places (docs/architecture.md section 5).

A unit is a subpackage of `outrider` or another top-level package of ours. Knows names only: files are parsed, never imported, and
imports inside functions or under TYPE_CHECKING count like any other. A unit or a vendor that is not listed here is a violation, so that
a new one is a decision.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE_ROOTS = ("services", "kernels", "models", "bench", ".")

LEVELS = {
    "outrider.errors": 0,
    "outrider.types": 0,
    "outrider.config": 0,
    "outrider.noise": 0,
    "outrider_kernels": 0,
    "outrider.session": 1,
    "outrider.telemetry": 1,
    "outrider.v1": 2,
    "outrider.rpc": 2,
    "outrider.engine": 2,
    "outrider.store": 2,
    "outrider.drafting": 2,
    "outrider.launch": 2,
    "outrider.exposition": 2,
    "outrider.client": 3,
    "outrider.resuming": 3,
    "outrider.gateway": 3,
    "outrider.coordinator": 3,
    "drafter_service": 3,
    "verifier_service": 3,
    "router_service": 3,
    "outrider_models": 3,
    "pair_service": 4,
    "machine_service": 4,
    "outrider.cli": 4,
    "outrider_bench": 4,
}

SAME_LEVEL = {
    "outrider.types": {"outrider.errors"},
    "outrider.config": {"outrider.errors", "outrider.types"},
    "outrider.noise": {"outrider.errors", "outrider.types"},
    "outrider.rpc": {"outrider.v1"},
    "outrider.drafting": {"outrider.engine", "outrider.store"},
    "outrider.resuming": {"outrider.client"},
    "outrider.cli": {"outrider_bench"},
    "machine_service": {"pair_service"},
    "outrider_bench": {"outrider.cli", "pair_service"},
}

_GRPC = {"grpc", "grpc_health", "google"}
_TORCH = {"torch", "transformers", "tokenizers", "safetensors", "huggingface_hub"}

# The longest name that holds decides.
VENDORS: dict[str, set[str]] = {
    "outrider.types": {"numpy"},
    "outrider.noise": {"numpy"},
    "outrider_kernels": {"numpy", "torch", "triton"},
    "outrider.session": {"numpy"},
    "outrider.v1": {"grpc", "google"},
    "outrider.rpc": _GRPC | {"grpc_reflection", "numpy", "uvloop"},
    "outrider.engine": _TORCH | {"numpy", "threadpoolctl"},
    "outrider.exposition": {"prometheus_client"},
    "outrider.exposition.options": set(),
    "outrider.engine.acceptance": {"numpy"},
    "outrider.engine.config": set(),
    "outrider.engine.contract": {"numpy"},
    "outrider.store": set(),
    "outrider.store.redis_store": {"redis"},
    "outrider.drafting": {"numpy"},
    "outrider.client": {"grpc"},
    "outrider.gateway": _GRPC | {"jinja2", "numpy", "tokenizers", "uvloop"},
    "outrider.gateway.model_folder": {"huggingface_hub"},
    "outrider.gateway.slow_tokenizer": {"transformers"},
    "outrider.coordinator": _GRPC | {"numpy", "ray"},
    "drafter_service": _GRPC | {"numpy", "uvloop"},
    "verifier_service": _GRPC | {"numpy", "uvloop"},
    "router_service": _GRPC | {"numpy", "uvloop"},
    "pair_service": set(),
    "machine_service": set(),
    "outrider_models": _TORCH | {"numpy", "rich"},
    "outrider.cli.checks.card": {"torch"},
    "outrider.cli": _GRPC | {"packaging", "rich", "tokenizers"},
    "outrider_bench.openvino_export": _TORCH | {"numpy", "openvino", "openvino_tokenizers"},
    "outrider_bench.openvino_worker": {"numpy", "openvino", "openvino_genai"},
    "outrider_bench": _GRPC | _TORCH | {"matplotlib", "numpy", "rich", "scipy"},
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One import that must not be; `where` is path:line relative to the root."""

    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


def violations(root: Path) -> list[Violation]:
    """Every import below the source roots of `root` that breaks a rule, in path order."""
    return [found for module, path in our_modules(root) for found in _check_module(root, module, path)]


def our_modules(root: Path) -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module of ours, tests not included."""
    for source_root in SOURCE_ROOTS:
        base = root / source_root
        for package in sorted(path.parent for path in base.glob("*/__init__.py")):
            for path in sorted(package.rglob("*.py")):
                parts = path.relative_to(base).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def unit_of(module: str) -> str:
    """The unit a module belongs to; the bare package `outrider` is a unit without level and may import nothing."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "outrider" else parts[0]


def imported_names(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything a parsed module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = _absolute(node, module, is_package=is_package)
            # `from outrider import engine` names the unit in the alias, not in the source.
            yield from ((node.lineno, f"outrider.{alias.name}") for alias in node.names if source == "outrider")
            if source != "outrider":
                yield node.lineno, source
        elif isinstance(node, ast.Call) and _called_name(node) in {"import_module", "__import__"} and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield node.lineno, argument.value


def _absolute(node: ast.ImportFrom, module: str, *, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    base = parts[: len(parts) - node.level + (1 if is_package else 0)]
    return ".".join([*base, *([node.module] if node.module else [])])


def _called_name(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _check_module(root: Path, module: str, path: Path) -> Iterator[Violation]:
    where = path.relative_to(root)
    unit = unit_of(module)
    if module != "outrider" and unit not in LEVELS:
        yield Violation(f"{where}:1", f"{unit} has no level; give it one in tests/house/import_rules.py")
        return
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for line, name in imported_names(tree, module, is_package=path.name == "__init__.py"):
        problem = _problem(module, unit, name)
        if problem:
            yield Violation(f"{where}:{line}", problem)


def _problem(module: str, unit: str, name: str) -> str | None:
    top = name.split(".")[0]
    if top in sys.stdlib_module_names:
        return None
    target = unit_of(name)
    if target in LEVELS or top == "outrider":
        return _unit_problem(unit, target)
    owners = [owner for owner in VENDORS if module == owner or module.startswith(owner + ".")]
    allowed = VENDORS[max(owners, key=len)] if owners else set()
    return None if top in allowed else f"{module} must not know {top} (allowed: {', '.join(sorted(allowed)) or 'the standard library'})"


def _unit_problem(unit: str, target: str) -> str | None:
    if target == unit:
        return None
    if target not in LEVELS:
        return f"{target} has no level"
    if unit not in LEVELS or LEVELS[target] > LEVELS[unit]:
        return f"{unit} imports {target}, which is above it"
    if LEVELS[target] == LEVELS[unit] and target not in SAME_LEVEL.get(unit, set()):
        return f"{unit} imports {target} on its own level"
    return None
