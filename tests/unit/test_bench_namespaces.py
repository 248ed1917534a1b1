"""Machines as network namespaces: they reach each other, a pulled cable is silent, nothing is left. Where they are not permitted, the same
tests hold the way out to what it promises: loopback addresses, and a sentence that says why."""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from outrider_bench import switched_machines
from outrider_bench.machine import Machine
from outrider_bench.machines_wish import LoopbackMachines, MachinesWish, machines_for
from outrider_bench.namespaces import Namespace, enter
from outrider_bench.switched_machines import NUM_SUBNETS, NotPermitted, SwitchedMachines, free_subnet

HERE = Machine("this process")
WAIT_S = 30.0
SILENCE_S = 0.3  # how long nothing must come; longer makes the test surer, never wrong
INTERFACES = Path("/sys/class/net")
ROUTES = "Iface\tDestination\tGateway\neth0\t00000000\t010200C0\nor7\t{subnet}\t00000000\n"
OWNER = """
import sys
from outrider_bench.switched_machines import SwitchedMachines
machines = SwitchedMachines(2)
print(machines.interface, flush=True)
sys.stdin.read()
"""


ATTEMPT = ("unshare", "--net", "sh", "-c", "ip link add one type bridge && ip link add two type veth peer name three")


def _problem() -> str | None:
    """Why there can be none here; None where they are permitted."""
    try:
        with SwitchedMachines(1):
            return None
    except NotPermitted as problem:
        return str(problem)


PROBLEM = _problem()


@pytest.fixture
def machines() -> Iterator[SwitchedMachines | LoopbackMachines]:
    with machines_for(MachinesWish.AUTO, 3, Console(file=io.StringIO())) as machines:
        assert isinstance(machines, LoopbackMachines) is (PROBLEM is not None)
        yield machines


def _listen(machine: Machine) -> socket.socket:
    with machine.inside():
        listener = socket.create_server((machine.host, 0))
    listener.settimeout(WAIT_S)
    return listener


def _meet(caller: Machine, called: Machine) -> tuple[socket.socket, socket.socket]:
    with _listen(called) as listener:
        with caller.inside():
            near = socket.create_connection(listener.getsockname(), WAIT_S)
        far, (host, _) = listener.accept()
    far.settimeout(WAIT_S)
    assert caller.namespace is None or host == caller.host
    return near, far


def test_they_are_there_wherever_the_tools_of_the_system_can_make_them() -> None:
    """Else a fault of ours would look like a machine where they are not permitted, and every other test here would go the way out."""
    can = bool(shutil.which("unshare")) and subprocess.run(ATTEMPT, capture_output=True, timeout=WAIT_S, check=False).returncode == 0
    assert PROBLEM is None or not can, PROBLEM


def test_each_reaches_every_other_and_we_reach_all(machines: SwitchedMachines | LoopbackMachines) -> None:
    first, second, third = machines.machines
    assert len({machine.host for machine in machines.machines}) == 3
    for caller, called in ((first, second), (second, third), (third, first), (HERE, second)):
        near, far = _meet(caller, called)
        with near, far:
            near.sendall(b"one")
            assert far.recv(16) == b"one"


def test_what_listens_on_one_machine_is_not_on_another(machines: SwitchedMachines | LoopbackMachines) -> None:
    first, second, _ = machines.machines
    with _listen(first) as listener, second.inside(), pytest.raises(OSError, match=r"refused|unreachable|timed out"):
        socket.create_connection((second.host, listener.getsockname()[1]), SILENCE_S).close()


def test_a_pulled_cable_is_silent_and_what_was_sent_arrives_once_it_is_back(machines: SwitchedMachines | LoopbackMachines) -> None:
    assert isinstance(machines, SwitchedMachines) is (PROBLEM is None), "loopback addresses have no cable, and say so by their type"
    if isinstance(machines, SwitchedMachines):
        near, far = _meet(machines.machines[0], machines.machines[1])
        with near, far:
            near.sendall(b"one")
            assert far.recv(16) == b"one"
            machines.unplug(1)
            near.sendall(b"two")
            far.settimeout(SILENCE_S)
            with pytest.raises(TimeoutError):
                far.recv(16)
            machines.plug(1)
            far.settimeout(WAIT_S)
            assert far.recv(16) == b"two"


def test_a_process_started_inside_a_machine_is_there_and_its_starter_is_not(machines: SwitchedMachines | LoopbackMachines) -> None:
    machine = machines.machines[0]
    bind = f"import socket; socket.socket().bind(({machine.host!r}, 0))"
    with machine.inside():
        assert subprocess.run([sys.executable, "-c", bind], timeout=WAIT_S, check=False).returncode == 0
    outside = subprocess.run([sys.executable, "-c", bind], stderr=subprocess.DEVNULL, timeout=WAIT_S, check=False).returncode
    assert (outside != 0) is (PROBLEM is None), "only a loopback address is everywhere"


def test_another_process_enters_by_path(machines: SwitchedMachines | LoopbackMachines) -> None:
    path = machines.machines[0].namespace_path
    assert (path is None) is (PROBLEM is not None)
    if path is not None:
        found: list[bool] = []

        def look() -> None:
            enter(path)
            with socket.socket() as probe:
                probe.bind((machines.machines[0].host, 0))
                found.append(True)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join(WAIT_S)
        assert found == [True]


def test_nothing_is_left_when_it_is_left(machines: SwitchedMachines | LoopbackMachines) -> None:
    before = set(os.listdir(INTERFACES))
    num_open = len(os.listdir("/proc/self/fd"))
    if PROBLEM is None:
        other = f"or{os.getpid()}"
        assert other in before
        assert isinstance(machines, SwitchedMachines)
        machines.__exit__(None, None, None)
        assert set(os.listdir(INTERFACES)) == before - {other}
        assert len(os.listdir("/proc/self/fd")) == num_open - 5, "three machines, the switch, and ourselves"
    else:
        assert not {name for name in before if name.startswith(f"or{os.getpid()}")}


def test_nothing_is_left_of_what_could_not_be_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    run, commands = switched_machines._run, list[tuple[str, ...]]()
    before, num_open = set(os.listdir(INTERFACES)), len(os.listdir("/proc/self/fd"))

    def fail_late(*command: str) -> None:
        commands.append(command)
        if command[:4] == ("ip", "link", "set", "lo"):
            raise NotPermitted("`ip` says no")
        run(*command)

    monkeypatch.setattr(switched_machines, "_run", fail_late)
    with pytest.raises(NotPermitted, match=r"says no" if PROBLEM is None else r"cannot|failed"):
        SwitchedMachines(2)
    assert (len(commands) > 4) is (PROBLEM is None), "it had begun"
    assert set(os.listdir(INTERFACES)) == before
    assert len(os.listdir("/proc/self/fd")) == num_open


def test_nothing_is_left_of_an_owner_that_was_killed() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as owner:
        assert owner.stdout is not None
        interface = owner.stdout.readline().strip()
        assert (interface == "") is (PROBLEM is not None)
        if interface:
            assert (INTERFACES / interface).exists()
        owner.send_signal(signal.SIGKILL)
        owner.wait(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while interface and (INTERFACES / interface).exists():
        assert time.monotonic() < deadline, "the kernel has taken nothing away"
        time.sleep(0.01)


def test_without_the_command_it_says_what_to_install_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    said = io.StringIO()
    with machines_for(MachinesWish.AUTO, 2, Console(file=said, width=200)) as machines:
        assert isinstance(machines, LoopbackMachines)
        assert [machine.host for machine in machines.machines] == ["127.0.1.1", "127.0.1.2"]
    assert ("iproute2" if PROBLEM is None else "loopback") in said.getvalue()
    with pytest.raises(NotPermitted), machines_for(MachinesWish.NAMESPACES, 2, Console(file=io.StringIO())):
        pass


def test_without_the_right_to_it_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Namespace:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Namespace, "make", refuse)
    said = io.StringIO()
    with machines_for(MachinesWish.AUTO, 2, Console(file=said, width=200)) as machines:
        assert isinstance(machines, LoopbackMachines)
    assert "not permitted" in said.getvalue()


def test_loopback_addresses_are_taken_where_they_are_wished_for() -> None:
    said = io.StringIO()
    with machines_for(MachinesWish.LOOPBACK, 2, Console(file=said)) as machines:
        assert (machines.kind, said.getvalue()) == ("loopback addresses", "")
        with machines.machines[0].inside():
            assert machines.machines[0].free_address().startswith("127.0.1.1:")


def test_a_subnet_that_a_route_leads_into_is_left_out() -> None:
    nothing = ROUTES.format(subnet="000200C0")
    assert free_subnet(nothing, 3) == "198.18.3"
    assert free_subnet(nothing, 256 + 3) == "198.19.3"
    assert free_subnet(nothing, NUM_SUBNETS + 3) == "198.18.3"
    assert free_subnet(ROUTES.format(subnet="000312C6"), 3) == "198.18.4"
    everything = "Iface\tDestination\n" + "".join(f"or\t00{third:02X}{second:02X}C6\n" for second in (18, 19) for third in range(256))
    with pytest.raises(NotPermitted, match=r"198\.18"):
        free_subnet(everything, 0)
