"""The benchmark of carried calls asks both ways, finds every message in order, and ends its service."""

from __future__ import annotations

import re
import subprocess
import sys

RUN_TIMEOUT_S = 120.0


def test_both_ways_are_measured_for_each_number_of_calls() -> None:
    command = [sys.executable, "-m", "outrider_bench.carried_calls", "--calls", "1", "5", "--messages", "20", "--repeats", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=True)
    rows = [re.findall(r"[\d.]+", line) for line in done.stdout.splitlines() if re.match(r"│ *\d", line)]
    assert [row[0] for row in rows] == ["1", "5"]
    assert all(len(row) == 4 and min(map(float, row[1:])) > 0.0 for row in rows)
