"""`python -m verifier_service --model DIR [--listen ADDRESS] [--drafter ADDRESS]... [--pacing NAME]`: serve until SIGTERM.

Prints one ready line (JSON) on stdout and everything else on stderr. Must not decide anything: it parses and hands on.
"""

from __future__ import annotations

import sys

from outrider.errors import OutriderError
from outrider.rpc.process_exit import exit_at_once
from verifier_service.process import run_verifier
from verifier_service.settings import parse_settings


def main() -> int:
    """Exit codes: 0 after a drain, 1 when the engine died, 2 when it could not start."""
    try:
        settings = parse_settings(sys.argv[1:])
    except OutriderError as error:
        print(f"verifier_service: {error}", file=sys.stderr)
        return 2
    return run_verifier(settings)


if __name__ == "__main__":
    exit_at_once(main())
