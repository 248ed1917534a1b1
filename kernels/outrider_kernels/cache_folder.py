"""Where this user's programs keep what they can make again: compiled kernels, and whatever else a later start is spared.

Must not know what lies there.
"""

from __future__ import annotations

import os
from pathlib import Path

NOBODYS = Path(os.devnull)  # nothing can be kept below it


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/outrider`, or `~/.cache/outrider`; it need not be there yet, nor can every user write to it. Of a user without a
    home (a container's that no list of users has) there is none."""
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named) / "outrider"
    try:
        return Path.home() / ".cache" / "outrider"
    except RuntimeError:
        return NOBODYS / "outrider"
