"""How a service's process ends: at once, when everything it served has been stopped.

Python's own end takes the interpreter apart object by object, and with torch and transformers imported that is more than a second of
computing, which nobody needs and a supervisor waits for. Knows the process only. Must not know what was served.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import NoReturn


def exit_at_once(code: int) -> NoReturn:
    """End this process with an exit code, after writing out what the log and both streams hold.

    For the last line of a process: nothing that was registered to run at its end runs, and threads that are left are not waited for.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):  # whoever read it has gone, and there is nobody to tell
            stream.flush()
    os._exit(code)
