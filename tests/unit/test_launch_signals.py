"""A signal while a service is still starting: it ends at once, without a traceback, and not as if it had served.

pytest tests/unit/test_launch_signals.py
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from mostly_slow import mostly_slow_rows
from outrider.launch.process import ServiceCommand, ServiceProcess

START_S = 60.0
END_S = 60.0
SAY = "import json, sys, threading\nsay = lambda: print(json.dumps({'starting': True}), flush=True)\n"
LOADS_FOR_EVER = "def load(settings):\n    say()\n    threading.Event().wait()\n"
CONNECTS_FOR_EVER = "async def connect(self, *_):\n    say()\n    await __import__('asyncio').Event().wait()\n"
SERVICES: dict[str, tuple[str, tuple[str, ...]]] = {
    "drafter": (
        LOADS_FOR_EVER + "from drafter_service import __main__ as it\nit.load_drafter = load\nsys.exit(it.main(sys.argv[1:]))",
        ("--model", "nowhere"),
    ),
    "verifier": (
        LOADS_FOR_EVER + "from verifier_service import __main__ as it, process\nprocess.load_engine = load\nsys.exit(it.main())",
        ("--model", "nowhere"),
    ),
    "machine": (
        LOADS_FOR_EVER + "from machine_service import __main__ as it\nit.load_drafter = load\nsys.exit(it.main(sys.argv[1:]))",
        ("--model", "nowhere", "--", "--model", "nowhere", "--", "--listen", "unix:nowhere"),
    ),
    "gateway": (
        CONNECTS_FOR_EVER
        + "from outrider.gateway import __main__ as it, verifiers\nverifiers.VerifierPool.connect = connect\nsys.exit(it.main())",
        ("--verifier", "unix:nowhere"),
    ),
    "pair": (
        LOADS_FOR_EVER + "from pair_service import __main__ as it\nit.load_drafter = load\nsys.exit(it.main(sys.argv[1:]))",
        ("--model", "nowhere", "--", "--model", "nowhere"),
    ),
}


# Python ends at SIGTERM by itself; SIGINT is what each of them must see to.
CASES = [(name, number) for number in (signal.SIGINT, signal.SIGTERM) for name in SERVICES]


@pytest.mark.parametrize(("name", "number"), mostly_slow_rows(CASES, 4))
def test_a_signal_while_a_service_starts_ends_it_at_once(name: str, number: signal.Signals, tmp_path: Path) -> None:
    code, arguments = SERVICES[name]
    listen = f"unix:{tmp_path}/it.sock"
    process = ServiceProcess(ServiceCommand(name, ("-c", SAY + code, "--listen", listen, *arguments)), tmp_path / "it.log")
    try:
        assert process.wait_ready(time.monotonic() + START_S) == {"starting": True}
        process.signal(number)
        assert process.stop(END_S) == -number, process.log_tail()  # what stop sends as well comes too late to be the reason
        assert "Traceback" not in process.log_tail()
    finally:
        process.stop(0.0)
