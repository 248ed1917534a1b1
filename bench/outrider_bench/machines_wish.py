"""Which machines a measurement gets: network namespaces where they are permitted and wished for, else loopback addresses.

Must not know what is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from rich.console import Console

from outrider_bench import loopback
from outrider_bench.machine import Machine
from outrider_bench.switched_machines import NotPermitted, SwitchedMachines


class MachinesWish(StrEnum):
    """auto: namespaces, or loopback addresses with a line that says why."""

    AUTO = "auto"
    NAMESPACES = "namespaces"
    LOOPBACK = "loopback"


class LoopbackMachines:
    """Addresses of this machine. There is no cable to pull. Nothing is made and nothing is left."""

    kind = "loopback addresses"

    def __init__(self, num: int) -> None:
        self.machines = tuple(map(Machine, loopback.addresses(num)))


Machines = SwitchedMachines | LoopbackMachines


@contextmanager
def machines_for(wish: MachinesWish, num: int, console: Console) -> Iterator[Machines]:
    """num of them for the block's time. Raises NotPermitted where namespaces are wished for and not to be had."""
    if wish is MachinesWish.LOOPBACK:
        yield LoopbackMachines(num)
        return
    try:
        switched = SwitchedMachines(num)
    except NotPermitted as problem:
        if wish is MachinesWish.NAMESPACES:
            raise
        console.print(f"machines are loopback addresses: {problem}", markup=False)
        yield LoopbackMachines(num)
        return
    with switched:
        yield switched
