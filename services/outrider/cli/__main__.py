"""The console script `outrider`: chooses a subcommand, and turns every expected failure into a sentence and an exit code.

Exit codes: 0 fine, 1 the command found something wrong, 2 the command line is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import signal
import sys
from collections.abc import Sequence

from outrider.cli import bench, doctor, fleet, generate, run, scale, up
from outrider.errors import InvalidRequest, OutriderError
from outrider.rpc.standard_streams import mend_streams

INTERRUPTED = 130
_DESCRIPTION = (
    """Speculative decoding as a service: small models guess, the large model checks, the tokens are exactly the large model's."""
)
_EXAMPLES = """a first hour:
  outrider doctor           is everything here, and do the models fit each other?
  outrider run              serve the reference pair, stream one answer, compare with plain decoding
  outrider up               keep serving; then, in another terminal:
  outrider generate --chat "What is 12 times 34?"
  outrider bench --quick    against transformers' generate and assisted generation

`outrider COMMAND --help` shows each command's options with examples."""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="outrider", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"outrider {_version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (up, scale, fleet, run, generate, bench, doctor):
        command.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parser = build_parser()
    if not (sys.argv[1:] if argv is None else argv):
        parser.print_help()
        return 0
    args = parser.parse_args(argv)
    try:
        code: int = args.run(args)
    except OutriderError as error:
        print(f"outrider: {error}", file=sys.stderr)
        return 2 if isinstance(error, InvalidRequest) else 1
    except KeyboardInterrupt:
        print("outrider: interrupted; everything was stopped", file=sys.stderr)
        return INTERRUPTED
    return code


def end_on_signals() -> None:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does: services drained, folders removed. Under `nohup` SIGHUP is nothing."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def console_script() -> int:
    """What the installed `outrider` runs: `main` with this process's signals and streams in its hands."""
    mend_streams()
    end_on_signals()
    return main()


def _version() -> str:
    try:
        return importlib.metadata.version("outrider")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    raise SystemExit(console_script())
