"""`outrider doctor`: what is wrong with an installation, a pair of models or a running deployment, and the remedy."""

from __future__ import annotations

import argparse
import os

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli.checks.card import check_card
from outrider.cli.checks.finding import Finding, Level
from outrider.cli.checks.machine import check_machine
from outrider.cli.checks.models import check_models
from outrider.cli.checks.network import check_network
from outrider.cli.console import make_console
from outrider.cli.deployment_options import DEFAULT_DRAFT, DEFAULT_TARGET
from outrider.cli.up import DEFAULT_LISTEN

_MARKS = {Level.FINE: ("ok", "green"), Level.NOTE: ("note", "yellow"), Level.BROKEN: ("BROKEN", "bold red")}
_EXAMPLES = """examples:
  outrider doctor                                        this installation and the reference pair
  outrider doctor --target ./my-model --draft ./my-small-model --dtype bfloat16
  outrider doctor --gateway 10.0.0.5:7070 --no-models   a running deployment"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `outrider doctor`."""
    parser = subparsers.add_parser(
        "doctor",
        help="what is wrong, and the remedy",
        description="Look at the installation, the models and a running deployment. The exit code is 1 when something is broken.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--target", default=os.environ.get("TARGET") or DEFAULT_TARGET, metavar="MODEL", help="the large model (%(default)s)"
    )
    parser.add_argument("--draft", default=os.environ.get("DRAFT") or DEFAULT_DRAFT, metavar="MODEL", help="the small model (%(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"), help="to load them in (%(default)s)")
    for role in ("target", "draft"):
        kept = ("auto", "full", "int8") if role == "draft" else ("full", "int8")
        parser.add_argument(f"--{role}-weights", default=kept[0], choices=kept, help="of its matrices (%(default)s)")
    parser.add_argument("--no-models", action="store_true", help="do not load the models")
    address = os.environ.get("OUTRIDER_GATEWAY") or DEFAULT_LISTEN
    parser.add_argument("--gateway", default=address, metavar="ADDRESS", help="where a deployment is or will be (%(default)s)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print every finding; 1 when any is broken."""
    console = make_console()
    findings = [*check_machine(), check_card()]
    findings += check_network(args.gateway)
    if not args.no_models:
        with make_console(stderr=True).status("loading and probing the models ..."):
            findings += check_models(args.target, args.draft, args.dtype, (args.target_weights, args.draft_weights))
    show(findings, console)
    return 1 if any(finding.level is Level.BROKEN for finding in findings) else 0


def show(findings: list[Finding], console: Console) -> None:
    """A table of findings, and one line that sums them up."""
    table = Table("", "what", "found", "remedy", show_lines=False)
    for finding in findings:
        table.add_row(Text(*_MARKS[finding.level]), finding.what, finding.found, finding.remedy)
    console.print(table)
    num_broken = sum(finding.level is Level.BROKEN for finding in findings)
    console.print("everything that was looked at works" if not num_broken else f"{num_broken} broken: apply the remedies from the top down")
