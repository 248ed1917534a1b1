"""What the code imports is declared in pyproject.toml, what is declared is imported, and what is installed is pinned."""

from __future__ import annotations

import ast
import re
import sys
import tomllib

from house.import_rules import LEVELS, imported_names, our_modules, unit_of
from house.repository import ROOT

IMPORT_NAMES = {"grpcio": "grpc", "grpcio-health-checking": "grpc_health", "grpcio-reflection": "grpc_reflection", "protobuf": "google"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TORCH = "2.13.0"


def names_of(requirements: list[str]) -> set[str]:
    """Normalised distribution names, extras and versions cut off."""
    found = (re.match(r"[A-Za-z0-9_.-]+", requirement) for requirement in requirements)
    return {re.sub(r"[-_.]+", "-", match.group()).lower() for match in found if match}


def pinned() -> dict[str, str]:
    """Normalised name -> version of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def vendors() -> set[str]:
    """Top-level names of other people's packages that ours import."""
    found: set[str] = set()
    for module, path in our_modules(ROOT):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found |= {name.split(".")[0] for _, name in imported_names(tree, module, is_package=False) if unit_of(name) not in LEVELS}
    return found - sys.stdlib_module_names - {"outrider"}


def test_imports_and_declared_dependencies_are_the_same() -> None:
    declared = {IMPORT_NAMES.get(name, name).replace("-", "_") for name in names_of(PROJECT["dependencies"])}
    optional = {name.replace("-", "_") for requirements in PROJECT["optional-dependencies"].values() for name in names_of(requirements)}
    assert vendors() - declared <= optional
    assert declared - vendors() == set()


def test_traces_are_promised_where_something_makes_them_and_not_before() -> None:
    """The extra for them is declared; whoever adds the first span takes the mark off the page."""
    architecture = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    assert ("*Traces* (not there yet)" in architecture) == ("opentelemetry" not in vendors())


def test_everything_that_make_installs_is_pinned() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = names_of(PROJECT["dependencies"]) | names_of(extras["dev"]) | names_of(extras["otlp"]) | names_of(extras["redis"])
    wanted |= names_of(extras["peers"]) | names_of(extras["ray"])
    assert wanted <= pinned().keys()


def test_torch_is_the_same_version_in_every_place_and_without_a_local_build() -> None:
    assert pinned()["torch"] == TORCH
    assert f"torch=={TORCH}" in (ROOT / "scripts/setup.sh").read_text(encoding="utf-8")
    assert not [version for version in pinned().values() if "+" in version]
