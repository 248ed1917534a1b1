"""Which keys of a RESULT line bench/RESULTS.md describes: what a user reads is held to what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "bench" / "RESULTS.md"


def described_keys(command: str) -> set[str]:
    """Those in backticks in the first column of the table after "Keys of the RESULT line of `command`", which ends with an empty line."""
    _, _, after = PAGE.read_text(encoding="utf-8").partition(f"Keys of the RESULT line of `{command}`")
    assert after, f"no keys of {command} are described"
    _, _, table = after.partition("|---|---|\n")
    rows = [line for line in table.partition("\n\n")[0].splitlines() if line.startswith("|")]
    return {key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])}
