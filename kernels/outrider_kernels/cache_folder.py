"""Where this user's programs keep what they can make again: compiled kernels, and whatever else a later start is spared.

Must not know what lies there.
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/outrider`, or `~/.cache/outrider`; it need not be there yet, nor be writable."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "outrider"
