"""Network namespaces of Linux, without names: each lives as long as a process is in it or a descriptor of it is open, and so do its links.

So nothing is left behind, however this process ends, and nothing has to be cleared away at a start. Must not know who runs in them.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_CLONE_NEWNET = 0x40000000
_OWN = "/proc/thread-self/ns/net"
_LIBC = ctypes.CDLL(None, use_errno=True)


class Namespace:
    """One that is held: `make` a new one, or take the one that is `here`. `close` it in the end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @staticmethod
    def make() -> Namespace:
        """A new one with nothing in it, not even a loopback interface that is up. Raises OSError where this is not permitted."""
        made: list[int | OSError] = []
        # A thread's namespace is its own: one that ends leaves nothing but the descriptor.
        maker = threading.Thread(target=lambda: made.append(_unshare()), name="namespace maker")
        maker.start()
        maker.join()
        (outcome,) = made
        if isinstance(outcome, OSError):
            raise outcome
        return Namespace(outcome)

    @staticmethod
    def here() -> Namespace:
        """The calling thread's."""
        return Namespace(os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC))

    @property
    def path(self) -> str:
        """For `enter` in another process, and for `ip ... netns PATH`; good while this process lives."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Sockets and processes that the calling thread makes meanwhile belong to it. Not across an await."""
        own = Namespace.here()
        try:
            _set(self._fd)
            try:
                yield
            finally:
                _set(own._fd)
        finally:
            own.close()

    def close(self) -> None:
        """Give it up: it ends with the last process in it."""
        os.close(self._fd)


def enter(path: str) -> None:
    """The calling thread is in that namespace for good. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set(fd)
    finally:
        os.close(fd)


def _unshare() -> int | OSError:
    if _LIBC.unshare(_CLONE_NEWNET) != 0:
        return OSError(ctypes.get_errno(), f"a network namespace cannot be made: {os.strerror(ctypes.get_errno())}")
    return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)


def _set(fd: int) -> None:
    if _LIBC.setns(fd, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"a network namespace cannot be entered: {os.strerror(ctypes.get_errno())}")
