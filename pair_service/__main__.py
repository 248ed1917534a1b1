"""`python -m pair_service VERIFIER_OPTIONS -- DRAFTER_OPTIONS`: one process that verifies and drafts, in turns, on one thread.

Where verifier and drafter share their cores they cannot both compute, and what lies between two processes is time in which neither does.
The verifier serves as ever, to gateways that know no difference, and may have other drafters beside this one; the drafter serves nobody
else. Must not decide anything: it splits the command line and hands both halves on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from drafter_service.loading import load_drafter
from drafter_service.settings import DrafterSettings
from drafter_service.settings import parse_settings as drafter_settings
from outrider.errors import InvalidRequest
from outrider.rpc.process_exit import exit_at_once
from pair_service.next_door import DrafterNextDoor, in_turns
from verifier_service.process import run_verifier
from verifier_service.settings import VerifierSettings
from verifier_service.settings import parse_settings as verifier_settings

SEPARATOR = "--"
_HELP = """usage: python -m pair_service VERIFIER_OPTIONS -- DRAFTER_OPTIONS

A verifier with a drafter in the same process, for a machine whose cores both would share. The options are those of
`python -m verifier_service --help` and `python -m drafter_service --help`; the drafter listens nowhere, so it takes no --listen.
Requests that choose their drafters name this one `resident`. A draft that reads 8 MB or more for a guess uses the verifier's other threads
too when it is its turn, whatever its own --threads.

example: python -m pair_service --model TARGET --listen unix:/tmp/verifier.sock --threads 2 -- --model DRAFT --threads 1"""


def parse(argv: Sequence[str]) -> tuple[VerifierSettings, DrafterSettings]:
    """Both halves of a command line. Raises InvalidRequest, also for one without a second half or with an address of the drafter's."""
    if SEPARATOR not in argv:
        raise InvalidRequest(SEPARATOR, "the drafter's options are missing: VERIFIER_OPTIONS -- DRAFTER_OPTIONS")
    place = list(argv).index(SEPARATOR)
    drafter, verifier = drafter_settings(argv[place + 1 :], serves=False), verifier_settings(list(argv[:place]))
    cards = {_card(settings.engine.device) for settings in (verifier, drafter)} - {""}
    if len(cards) > 1:
        raise InvalidRequest("--device", f"{' and '.join(sorted(cards))}: one thread works on one card; as a service each may have its own")
    return verifier, in_turns(drafter, verifier.engine.num_threads)


def _card(device: str) -> str:
    """With its number; "" for the processor."""
    return "" if device == "cpu" else device if ":" in device else f"{device}:0"


def main(argv: Sequence[str]) -> int:
    """Exit codes as the verifier's: 0 after a drain, 1 when the engine died, 2 when it could not start."""
    if list(argv) in (["--help"], ["-h"]):
        print(_HELP)
        return 0
    try:
        verifier, drafter = parse(argv)
    except InvalidRequest as error:
        print(f"pair_service: {error}", file=sys.stderr)
        return 2
    return run_verifier(verifier, lambda: DrafterNextDoor(load_drafter(drafter), drafter.limits))


if __name__ == "__main__":
    exit_at_once(main(sys.argv[1:]))
