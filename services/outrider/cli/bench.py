"""`outrider bench`: speed against transformers and against plain decoding, identity of tokens, or cost of steps.

The drivers live in bench/outrider_bench, beside the code they measure but not in it; this module only declares their options and
hands over. Must not measure anything itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from outrider.cli.deployment_options import DEFAULT_DRAFT, DEFAULT_TARGET
from outrider.errors import InvalidRequest

BENCH_ROOT = Path(__file__).resolve().parents[3] / "bench"
TASKS = ("arithmetic", "copying", "prose")
_EXAMPLES = """examples:
  outrider bench                              everything: about ten minutes on two cores
  outrider bench --quick                      two tasks, few prompts, no tuning: about two minutes
  outrider bench --tasks copying --repeats 5 --out copying.md
  outrider bench steps                        what a step of the target costs by rows, context and cache
  outrider bench identity                     are the tokens those of plain decoding, and of an independent oracle?
The last line is RESULT {json}."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `outrider bench`."""
    parser = subparsers.add_parser(
        "bench",
        help="speed against transformers, identity of tokens, or cost of steps",
        description="Measure the whole stack on this machine: same prompts, repetitions in rotated order, medians.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=("speed", "identity", "steps"), default="speed", help="what to measure (%(default)s)")
    parser.add_argument("--target", default=DEFAULT_TARGET, metavar="MODEL", help="the large model (%(default)s)")
    parser.add_argument("--draft", default=DEFAULT_DRAFT, metavar="MODEL", help="the small model (%(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="speed: of every contestant (%(default)s)")
    parser.add_argument(
        "--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"], metavar="DTYPE",
        help="identity: which dtypes (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), metavar="TASK", help="speed: which tasks (%(default)s)")
    parser.add_argument("--repeats", type=int, metavar="N", help="speed: repetitions of each cell, for medians")
    parser.add_argument("--prompts", type=int, metavar="N", help="speed: prompts of each task; identity: requests")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of an answer")
    parser.add_argument("--quick", action="store_true", help="fewer prompts and repetitions, no tuning")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also write the tables as markdown, and a plot beside it where matplotlib is"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Hand over to the driver; its exit code is 0 when every answer that must be identical was."""
    if importlib.util.find_spec("outrider_bench") is None:
        if not BENCH_ROOT.is_dir():
            raise InvalidRequest("bench", "the drivers are not installed; run it from a checkout of the repository")
        sys.path.insert(0, str(BENCH_ROOT))
    driver = importlib.import_module(f"outrider_bench.{args.what}")
    code: int = driver.run(args)
    return code
