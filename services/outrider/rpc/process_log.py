"""What a service's process writes to stderr, and from which level on: OUTRIDER_LOG, for services without an option for it.

Knows the variable and the form of a line. Must not know what is logged.
"""

from __future__ import annotations

import logging
import os
import sys

from outrider.errors import InvalidRequest
from outrider.rpc.standard_streams import mend_streams

LOG_VARIABLE = "OUTRIDER_LOG"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR, "critical": logging.CRITICAL}


def level_from_environment() -> int:
    """In any case; `info` where the variable is empty or not set. Raises InvalidRequest naming the variable."""
    text = os.environ.get(LOG_VARIABLE) or "info"
    level = LEVELS.get(text.lower())
    if level is None:
        raise InvalidRequest(LOG_VARIABLE, f"must be one of {', '.join(LEVELS)}, got {text!r}")
    return level


def start_log(level: int) -> None:
    """Write to stderr from now on, and nowhere if there is none."""
    mend_streams()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
