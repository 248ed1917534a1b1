"""The default run as two pytest processes at a time: most tests that compute in pytest's own process, and all others, of which half waits.

Run as `python tests/side_by_side.py [PYTEST_OPTION...]` in the repository's root; options go to both. What the first says is seen as it
comes, what the others say once both are over, and the last line counts both as pytest's own closing line would. A folder that is new is
with the others: no test is left out but those of tests/house, which `make check` has run. Must not know any test.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

WITHIN = ("tests/unit",)  # with tests/contract it would be a minute longer than the others
# What pytest remembers of the last run is one file a run.
OTHERS = ("tests", *(f"--ignore={folder}" for folder in (*WITHIN, "tests/house")), "-o", "cache_dir=.pytest_cache/others")
WIDTH = 80


def counts(report: Path) -> Counter[str]:
    """What became of the tests of a run, by pytest's words. report: its JUnit file; a run that died without one is an error."""
    if not report.exists():
        return Counter(error=1)
    found: Counter[str] = Counter()
    for suite in ElementTree.parse(report).iter("testsuite"):
        told = {word: int(suite.get(name, "0")) for word, name in (("failed", "failures"), ("skipped", "skipped"), ("error", "errors"))}
        told["passed"] = int(suite.get("tests", "0")) - sum(told.values())
        found += Counter(told)
    return found


def closing_line(found: Counter[str], took_s: float) -> str:
    """As pytest ends a run. took_s: seconds from the first start to the last end."""
    told = ", ".join(f"{found[word]} {word}" for word in ("failed", "passed", "skipped", "error") if found[word]) or "no tests ran"
    return f" {told} in {took_s:.2f}s ".center(WIDTH, "=")


def main(options: Iterable[str]) -> int:
    """Run both; returns 0 if each did well."""
    begun_s = time.monotonic()
    colour = ("--color=yes",) if sys.stdout.isatty() else ()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pytest = [sys.executable, "-m", "pytest", *options]
        with (folder / "others.log").open("w+b") as log:
            others = subprocess.Popen([*pytest, *OTHERS, f"--junitxml={folder}/others.xml", *colour], stdout=log, stderr=log)
            within = subprocess.Popen([*pytest, *WITHIN, f"--junitxml={folder}/within.xml"])
            _pass_on_signals(others, within)
            codes = [within.wait(), others.wait()]
            log.seek(0)
            sys.stdout.buffer.write(log.read())
        found = counts(folder / "within.xml") + counts(folder / "others.xml")
    print(f"\n{closing_line(found, time.monotonic() - begun_s)}", flush=True)  # a run that dies leaves half a line
    # A run that dies may have said 0.
    return 1 if any(codes) or found["error"] else 0


def _pass_on_signals(*runs: subprocess.Popen[bytes]) -> None:
    """They end by themselves, and are waited for: a terminal's Ctrl-C reaches them too."""

    def terminate(number: int, frame: FrameType | None) -> None:
        for run in runs:
            run.terminate()

    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, terminate)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
