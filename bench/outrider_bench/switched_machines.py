"""Machines as network namespaces on one switch, each with a cable that can be pulled: what is sent is lost then, and nobody is told.

The switch is a bridge in a namespace of its own; a further cable leads to where this process is. Knows iproute2. Addresses are of the block
that is set aside for measurements (198.18.0.0/15), from a part of it that this machine has no route to. Takes the right to make namespaces
and interfaces; `NotPermitted` says what is missing. All of it ends with this process, killed or not: see namespaces.py. Must not know who
runs where.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

from outrider.errors import OutriderError
from outrider_bench.machine import Machine
from outrider_bench.namespaces import Namespace

MAX_MACHINES = 250
COMMAND_TIMEOUT_S = 10.0
NUM_SUBNETS = 512
_ROUTES = Path("/proc/net/route")
_BRIDGE, _CABLE = "switch", "cable"
_HERE = 254  # the number of this process in the subnet


class NotPermitted(OutriderError):
    """There can be no such machines here; the sentence says why, and what would help."""


class SwitchedMachines:
    """Use as a context manager: leaving it takes everything away. machines: in the order of their numbers. interface: our cable's end."""

    kind = "network namespaces"

    def __init__(self, num: int) -> None:
        """Make and connect them. Raises NotPermitted; nothing is left then."""
        assert 0 < num <= MAX_MACHINES, f"a subnet has room for {MAX_MACHINES} machines"
        self.interface = f"or{os.getpid()}"
        self._stack = ExitStack()
        try:
            subnet = free_subnet(_ROUTES.read_text(), os.getpid())
            self._lay_switch(f"{subnet}.{_HERE}")
            self.machines = tuple(self._machine(number, f"{subnet}.{number + 1}") for number in range(num))
        except OSError as error:
            self._stack.close()
            raise NotPermitted(f"no network namespaces here: {error}") from error
        except BaseException:
            self._stack.close()
            raise

    def unplug(self, number: int) -> None:
        """Pull a machine's cable, at the switch. Raises NotPermitted."""
        self._at_switch("ip", "link", "set", _port(number), "down")

    def plug(self, number: int) -> None:
        """Put it in again. Raises NotPermitted."""
        self._at_switch("ip", "link", "set", _port(number), "up")

    def __enter__(self) -> SwitchedMachines:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _held(self, namespace: Namespace) -> Namespace:
        self._stack.callback(namespace.close)
        return namespace

    def _lay_switch(self, here: str) -> None:
        self._switch = self._held(Namespace.make())
        self._at_switch("ip", "link", "add", _BRIDGE, "type", "bridge")
        self._at_switch("ip", "link", "set", _BRIDGE, "up")
        self._lay_cable(_HERE, self.interface, self._held(Namespace.here()).path)
        # The cable ends by itself with the switch, but some time after its last descriptor is closed: whoever leaves is to find it gone.
        self._stack.callback(_run, "ip", "link", "delete", self.interface)
        _connect(self.interface, here)

    def _machine(self, number: int, host: str) -> Machine:
        namespace = self._held(Namespace.make())
        self._lay_cable(number, _CABLE, namespace.path)
        with namespace.entered():
            _run("ip", "link", "set", "lo", "up")
            _connect(_CABLE, host)
        return Machine(host, namespace)

    def _lay_cable(self, number: int, far_end: str, far_namespace: str) -> None:
        self._at_switch("ip", "link", "add", _port(number), "type", "veth", "peer", "name", far_end, "netns", far_namespace)
        self._at_switch("ip", "link", "set", _port(number), "master", _BRIDGE, "up")

    def _at_switch(self, *command: str) -> None:
        with self._switch.entered():
            _run(*command)


def free_subnet(routes: str, start: int) -> str:
    """The first three numbers of a subnet of 198.18.0.0/15 that no route of /proc/net/route leads into, the start-th or one of the next.

    Raises NotPermitted when all are taken.
    """
    taken = {_subnet(line.split()[1]) for line in routes.splitlines()[1:]}
    for number in range(start, start + NUM_SUBNETS):
        subnet = f"198.{18 + number // 256 % 2}.{number % 256}"
        if subnet not in taken:
            return subnet
    raise NotPermitted("no part of 198.18.0.0/15 is free for machines of a measurement")


def _subnet(destination: str) -> str:
    """Of a route's destination: an address as a number of the machine's own order of bytes, in hexadecimal."""
    return ".".join(str(byte) for byte in int(destination, 16).to_bytes(4, "little")[:3])


def _port(number: int) -> str:
    return f"port{number}"


def _connect(interface: str, host: str) -> None:
    _run("ip", "address", "add", f"{host}/24", "dev", interface)
    _run("ip", "link", "set", interface, "up")


def _run(*command: str) -> None:
    """Raises NotPermitted with what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise NotPermitted("network namespaces need the command `ip`: install the package iproute2") from None
    except subprocess.TimeoutExpired:
        raise NotPermitted(f"`{' '.join(command)}` took longer than {COMMAND_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise NotPermitted(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
