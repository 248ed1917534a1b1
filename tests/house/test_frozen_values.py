"""What is quickly made (types/value.py) is frozen to the type checker, which alone keeps it so."""

from __future__ import annotations

from pathlib import Path

from mypy import api

ASSIGNS = """
from outrider.types.tree import Verdict

def spoil(verdict: Verdict) -> None:
    verdict.bonus = True
"""


def test_an_assignment_to_a_quickly_made_value_is_an_error(tmp_path: Path) -> None:
    source = tmp_path / "spoils.py"
    source.write_text(ASSIGNS, encoding="utf-8")
    told, problem, code = api.run(["--strict", "--follow-imports=silent", str(source)])
    assert code == 1, told + problem
    assert 'Property "bonus" defined in "Verdict" is read-only' in told
