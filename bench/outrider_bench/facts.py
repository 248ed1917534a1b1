"""What a measurement belongs to: hardware, processor flags, versions, commit, command. Must not measure."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

from outrider.cli.checks.machine import free_gib, processor_flags, processor_name, versions
from outrider.launch.threads import usable_cores

GIT_TIMEOUT_S = 10.0


def measurement_facts() -> dict[str, str]:
    """One line a fact, in the order they are reported."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": commit(),
        "command": " ".join(["outrider", *map(shlex.quote, sys.argv[1:])]),
        "machine": f"{processor_name()}, {len(usable_cores())} cores, {free_gib():.0f} GiB free",
        "processor flags": ", ".join(processor_flags()) or "none of those that matter",
        "versions": f"Python {sys.version.split()[0]}, " + ", ".join(f"{name} {version}" for name, version in versions().items()),
    }


def pair_name(args: argparse.Namespace) -> str:
    """Which models were measured, for people."""
    if args.made == "widened":
        return "widened, made on the spot: the reference pair, its target's MLPs widened with neurons that whisper; real text"
    if args.made == "spread":
        return "spread, made on the spot: the reference pair, its vocabulary spread over 131,072 ids; real text"
    if args.made == "enlarged":
        return "enlarged, made on the spot: the reference pair as parts of models of 0.55 and 0.25 thousand million parameters; real text"
    if args.made is not None:
        return f"{args.made}, made on the spot: random weights, its text is gibberish"
    return f"{Path(args.target).name} + {Path(args.draft).name}"


def commit() -> str:
    """The checkout's commit, marked when it has changes; `unknown` outside a checkout."""
    folder = Path(__file__).parent
    try:
        name = _git(folder, "rev-parse", "--short=12", "HEAD")
        return name + (" with uncommitted changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=GIT_TIMEOUT_S).stdout.strip()
