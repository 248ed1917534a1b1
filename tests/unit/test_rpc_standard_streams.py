"""A command or a service whose streams were closed, or write an encoding that has not every character, does what it would do otherwise.

pytest tests/unit/test_rpc_standard_streams.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# After it a socket has a number of its own, and what is said of "no" on both streams is said or lost.
MENDED = """
import os, socket, sys
from outrider.rpc.standard_streams import mend_streams
mend_streams()
with socket.socket() as first:
    number = first.fileno()
print("\\u2603", "no", sys.stdin.read(), flush=True)
print("\\u2603", "no", file=sys.stderr, flush=True)
sys.exit(number)
"""


@pytest.mark.parametrize("closed", ["", "<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_leads_nowhere_and_gives_its_number_to_nobody(closed: str) -> None:
    command = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, MENDED]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode >= 3, done.stderr
    assert done.stdout == ("" if ">&-" in closed.split() else "\u2603 no \n")
    assert done.stderr == ("" if "2>&-" in closed else "\u2603 no\n")


def test_what_an_encoding_has_not_is_written_as_a_number() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", MENDED], stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environment)
    assert (done.stdout, done.stderr) == (b"\\u2603 no \n", b"\\u2603 no\n")


def test_a_command_whose_answer_nobody_is_to_read_says_what_is_wrong_as_ever(tmp_path: Path) -> None:
    asked = ("-m", "outrider.cli", "scale", "--at", f"unix:{tmp_path}/nobody.sock", "--verifiers", "1")
    command = ["sh", "-c", '"$0" "$@" >&-', sys.executable, *asked]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("outrider: ")
    assert "Traceback" not in done.stderr
