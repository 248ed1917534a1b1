"""Becomes another program that dies with the process that started it: `bound_exec.py PARENT_PID CORES PROGRAM [ARGUMENT...]`.

Run as a script by a fresh interpreter, so that nothing happens between fork and exec in a parent with threads. Linux keeps the
parent-death signal across exec; it is sent when the thread that forked ends, so a service must be started from a thread that
lives as long as it should. CORES is a comma-separated list to be pinned to, or `-`. Must not import anything of ours.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def become(parent: int, cores: str, argv: list[str]) -> None:
    """Tie this process to `parent`, pin it, and exec argv. Does not return unless the parent is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        return
    if cores != "-":
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
