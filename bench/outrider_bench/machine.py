"""A machine of a measurement: an address of its own, and how to start something there. Must not know what runs on it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from outrider_bench.loopback import free_address
from outrider_bench.namespaces import Namespace


@dataclass(frozen=True, slots=True)
class Machine:
    """host: its address. namespace: its own network; None: a loopback address of this machine."""

    host: str
    namespace: Namespace | None = None

    def inside(self) -> AbstractContextManager[None]:
        """Sockets and processes that this thread makes meanwhile are on the machine."""
        return nullcontext() if self.namespace is None else self.namespace.entered()

    def free_address(self) -> str:
        """host:port with a port that is free there now."""
        with self.inside():
            return free_address(self.host)

    @property
    def namespace_path(self) -> str | None:
        """What another process of ours enters it by; None where there is nothing to enter."""
        return None if self.namespace is None else self.namespace.path
