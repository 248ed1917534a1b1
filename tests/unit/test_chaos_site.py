"""A stopped process whose name another takes, at the chaos driver's site: who is where then, and who is woken.

pytest tests/unit/test_chaos_site.py
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from outrider_bench.chaos.gateway_process import GatewayProcess
from outrider_bench.chaos.nursery import Ended, Nursery
from outrider_bench.chaos.site import NUM_MACHINES, Replica, Site
from outrider_bench.machine import Machine
from outrider_bench.machines_wish import LoopbackMachines


class Births:
    """Stands in for a nursery: its children wait for signals, and it keeps what each was told."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self.told: list[Sequence[str]] = []

    def spawn(self, options: Sequence[str], log: Path, namespace: str | None = None) -> int:
        self.told.append(options)
        self.children.append(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]))
        return self.children[-1].pid

    def is_over(self, pid: int) -> bool:
        return self._child(pid).poll() is not None

    def wait_ended(self, pid: int) -> Ended:
        return Ended(self._child(pid).wait(30.0), 0.0)

    def _child(self, pid: int) -> subprocess.Popen[bytes]:
        return next(child for child in self.children if child.pid == pid)


@pytest.fixture
def births() -> Iterator[Births]:
    births = Births()
    yield births
    for child in births.children:
        child.kill()
        child.wait()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site("target", "draft", tmp_path, LoopbackMachines(NUM_MACHINES))
    with site._wires:
        yield site


def option(options: Sequence[str], name: str) -> str:
    return options[options.index(name) + 1]


def test_another_takes_the_name_of_a_stopped_process_elsewhere_and_the_old_one_is_woken_alone(site: Site, births: Births) -> None:
    replica: Replica = site._replica("verifier0", 1, cast(Nursery, births), "--verifier-id", "verifier0")
    site.give_birth(replica)
    old_pid, old_endpoint, old_link = replica.pid, replica.endpoint, replica.link.listen
    zombie = site.supersede(replica)
    os.waitid(os.P_PID, old_pid, os.WSTOPPED)
    first, second = births.told
    assert (zombie.name, zombie.pid, replica.pid) == ("verifier0", old_pid, births.children[1].pid)
    assert option(first, "--replica-id") == option(second, "--replica-id") == "verifier0"
    assert (option(first, "--listen"), option(first, "--advertise")) == (old_endpoint, old_link)
    assert (option(second, "--listen"), option(second, "--advertise")) == (replica.endpoint, replica.link.listen)
    assert len({old_endpoint, old_link, replica.endpoint, replica.link.listen}) == 4, "the stopped process has its address still"
    assert option(second, "--verifier-id") == "verifier0"
    assert not replica.hurt, "who has its name is well"
    site.wake(zombie)
    os.waitid(os.P_PID, old_pid, os.WCONTINUED)
    os.kill(old_pid, signal.SIGTERM)
    assert site.ends_of_zombies() == [-signal.SIGTERM]
    site.wake(zombie)  # it is over


def test_a_gateway_that_does_not_run_serves_nobody(tmp_path: Path) -> None:
    machine = Machine("127.0.0.1")
    gateway = GatewayProcess("gateway0", machine, machine.free_address(), (), tmp_path)
    assert not gateway.is_serving()
    gateway.stop()
