"""The contracts in proto/ keep the rules, the committed stubs are what they generate, and the rules refuse a broken twin."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from house.proto_rules import descriptor_set, problems

ROOT = Path(__file__).parents[2]

BROKEN_TWIN = """
syntax = "proto3";
package outrider.latest;
message lonely {
  // Fine.
  uint32 num_tokens = 1;
  uint32 NumNodes = 2;
  // Fine; the entry message of a map needs no comment.
  map<uint32, float> bias = 3;
}
// An enum.
enum DraftMode {
  DRAFT_MODE_OFF = 0;
  // Fine.
  CHAIN = 1;
}
// A service.
service Drafter {
  rpc Draft(stream lonely) returns (stream DraftResponse);
}
// An answer.
message DraftResponse {}
"""

EXPECTED_OF_THE_TWIN = {
    "package 'outrider.latest' does not end in a version",
    "lies in '', not in the folder of package outrider.latest",
    "message lonely is not named like [A-Z][A-Za-z0-9]*",
    "message lonely has no comment",
    "field lonely.NumNodes is not named like [a-z][a-z0-9]*(_[a-z0-9]+)*",
    "field lonely.NumNodes has no comment",
    "enum value DraftMode.DRAFT_MODE_OFF: 0, and only 0, is DRAFT_MODE_UNSPECIFIED",
    "enum value DraftMode.DRAFT_MODE_OFF has no comment",
    "enum value DraftMode.CHAIN does not start with DRAFT_MODE_",
    "service Drafter does not end in Service",
    "rpc Drafter.Draft has no comment",
    "rpc Drafter.Draft: its request is .outrider.latest.lonely, not DraftRequest or DrafterDraftRequest",
}


def test_every_proto_keeps_the_rules(tmp_path: Path) -> None:
    found = problems(descriptor_set(ROOT / "proto", tmp_path / "set.pb"))
    assert not found, "\n".join(found)


def test_a_broken_twin_is_refused_for_each_of_its_faults(tmp_path: Path) -> None:
    (tmp_path / "twin.proto").write_text(BROKEN_TWIN, encoding="utf-8")
    found = problems(descriptor_set(tmp_path, tmp_path / "set.pb"))
    assert set(found) == {f"twin.proto: {fault}" for fault in EXPECTED_OF_THE_TWIN}


def test_committed_stubs_are_current(tmp_path: Path) -> None:
    environment = {"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"}
    subprocess.run([ROOT / "scripts/generate_stubs.sh", tmp_path], check=True, capture_output=True, env=environment)
    fresh = {path.name: path.read_bytes() for path in (tmp_path / "outrider/v1").iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / "services/outrider/v1").glob("*_pb2*") if path.is_file()}
    stale = sorted(name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name))
    assert fresh, "protoc wrote nothing"
    assert not stale, f"run `make proto`: {stale}"


def test_the_generator_is_the_pinned_one() -> None:
    dev = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]["dev"]
    pinned = next(requirement for requirement in dev if requirement.startswith("grpcio-tools"))
    assert pinned == f"grpcio-tools=={version('grpcio-tools')}"
