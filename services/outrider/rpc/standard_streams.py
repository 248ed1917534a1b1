"""The three streams that a process was given, made such that writing to them ends nothing.

Call it before anything else is opened. Must not know what is written.
"""

from __future__ import annotations

import codecs
import io
import os
import sys

_EVERYTHING = "utf-8"  # has every character: such a stream is left as it is
_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def mend_streams() -> None:
    """One that was closed (`>&-`, or by what starts processes without a terminal) is /dev/null: Python has None in its place, and the next
    socket would get its number, into which libraries write what they have to say. What the encoding of a terminal or a pipe has no
    character for, as parts of tables and answers in Latin-1, is written as its number instead of ending the command."""
    for name, mode in _STREAMS:
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
        elif mode == "w" and isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != _EVERYTHING:
            stream.reconfigure(errors="backslashreplace")
