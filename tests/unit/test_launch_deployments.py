"""The command lines of a deployment, and that a failed start leaves nothing behind."""

from __future__ import annotations

import errno
import io
import signal
import subprocess
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from rich.console import Console

from machine_service.__main__ import parse
from outrider.cli.restarts import RestartLimits, Restarts
from outrider.cli.up import watch
from outrider.launch.deployment import Deployment, DeploymentSpec
from outrider.launch.process import ServiceCommand, ServiceProcess, StartFailed
from outrider.launch.threads import ThreadPlan

SPEC = DeploymentSpec("target", "draft", "serial", ThreadPlan(2, 1))
SERVES = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("{}", flush=True)
signal.sigwait({signal.SIGTERM})
"""


class FakeServices(Deployment):
    """A deployment whose services are one-line scripts."""

    codes: tuple[str, ...] = (SERVES, SERVES, SERVES)

    def commands(self) -> list[ServiceCommand]:
        return [ServiceCommand(real.name, ("-c", code)) for real, code in zip(super().commands(), self.codes, strict=True)]


class DyingVerifier(FakeServices):
    codes = (SERVES, "raise SystemExit('weights are missing')", SERVES)


def arguments(spec: DeploymentSpec) -> dict[str, str]:
    with FakeServices(spec) as deployment:
        return {command.name: " ".join(command.arguments) for command in Deployment.commands(deployment)}


def test_a_folder_whose_name_is_too_long_for_sockets_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(StartFailed, match="x is too long a path for a socket: set TMPDIR to a shorter one"):
        FakeServices(SPEC)
    assert not any(folder.iterdir())


def test_each_service_is_told_its_model_threads_and_peers() -> None:
    lines = arguments(SPEC)
    assert list(lines) == ["drafter", "verifier", "gateway"]
    assert "--model draft" in lines["drafter"]
    assert "--threads 1" in lines["drafter"]
    assert "--threads 2" in lines["verifier"]
    assert "--drafter unix:" in lines["verifier"]
    assert "--pacing serial" in lines["verifier"]
    assert "--verifier unix:" in lines["gateway"]
    assert "--model-dir" not in lines["gateway"], "a hub name is no folder: the gateway asks the verifier where its tokenizer is"


def test_each_process_is_scraped_at_a_port_of_its_own() -> None:
    lines = arguments(replace(SPEC, metrics_port=9100))
    assert {name: line.split("--metrics-port ")[1].split()[0] for name, line in lines.items()} == {
        "gateway": "9100",
        "verifier": "9101",
        "drafter": "9102",
    }
    assert "--metrics-port" not in "".join(arguments(SPEC).values())


def test_a_pair_in_one_process_has_both_command_lines() -> None:
    class TwoServices(FakeServices):
        codes = (SERVES, SERVES)

    with TwoServices(replace(SPEC, together=True, verifier_extra=("--kv-mib", "8"), drafter_extra=("--no-probe",))) as deployment:
        assert deployment.drafter is None
        assert list(deployment.processes) == ["verifier", "gateway"]
        command, _ = Deployment.commands(deployment)
        assert command.arguments[:2] == ("-m", "pair_service")
        verifier, drafter = " ".join(command.arguments[2:]).split(" -- ")
        assert "--model target" in verifier
        assert "--kv-mib 8" in verifier
        assert "--drafter" not in verifier
        assert "--model draft" in drafter
        assert drafter.endswith("--no-probe")
        assert "--listen" not in drafter


class OneService(FakeServices):
    codes = (SERVES.replace("{}", '{\\"address\\": \\"127.0.0.1:4243\\", \\"service\\": \\"gateway\\"}'),)


def test_a_machine_in_one_process_has_all_three_command_lines(tmp_path: Path) -> None:
    spec = replace(
        SPEC, target=str(tmp_path), together=True, gateway_inside=True, gateway_extra=("--audit-share", "0.5"), metrics_port=9100
    )
    with OneService(spec) as deployment:
        assert (deployment.drafter, deployment.gateway) == (None, "127.0.0.1:4243")
        (command,) = Deployment.commands(deployment)
        assert (command.name, command.arguments[:2]) == ("verifier", ("-m", "machine_service"))
        settings = parse(command.arguments[2:])
    assert settings.verifier.engine.model == str(tmp_path) == str(settings.gateway.model_dir)
    assert settings.drafter is not None
    assert settings.drafter.engine.model == "draft"
    assert settings.gateway.audit.share == 0.5
    assert settings.gateway.verifiers == (settings.verifier.listen,)
    assert (settings.gateway.metrics.port, settings.verifier.metrics.port) == (9100, 9101)


def test_a_gateway_inside_may_have_its_drafter_apart_or_none() -> None:
    class TwoServices(FakeServices):
        codes = (SERVES, SERVES)

    with TwoServices(replace(SPEC, gateway_inside=True)) as deployment:
        drafter, machine = Deployment.commands(deployment)
        assert (drafter.name, drafter.arguments[1]) == ("drafter", "drafter_service")
        settings = parse(machine.arguments[2:])
        assert (settings.drafter, settings.verifier.drafters) == (None, (deployment.drafter,))
    with OneService(replace(SPEC, draft=None, gateway_inside=True)) as deployment:
        (machine,) = Deployment.commands(deployment)
        assert parse(machine.arguments[2:]).drafter is None


def test_the_verifier_is_told_what_it_may_be_lent() -> None:
    assert "--lent-threads" not in arguments(SPEC)["verifier"]
    lines = arguments(replace(SPEC, threads=ThreadPlan(1, 1, lent=1)))
    assert "--threads 1" in lines["verifier"]
    assert "--lent-threads 1" in lines["verifier"]
    assert "--lent-threads" not in lines["drafter"]


def test_each_model_keeps_its_weights_as_it_was_told() -> None:
    lines = arguments(replace(SPEC, draft_weights="int8"))
    assert "--weights int8" in lines["drafter"]
    assert "--weights full" in lines["verifier"]
    assert "--shortlist auto" in lines["drafter"]
    assert "--shortlist" not in lines["verifier"], "the target decides tokens"
    assert "--shortlist off" in arguments(replace(SPEC, draft_shortlist="off"))["drafter"]
    assert "--weights int8" in arguments(replace(SPEC, target_weights="int8"))["verifier"]


def test_the_gateway_reads_the_tokenizer_of_a_local_model(tmp_path: Path) -> None:
    assert f"--model-dir {tmp_path}" in arguments(replace(SPEC, target=str(tmp_path)))["gateway"]


def test_the_gateways_real_port_is_known_once_it_is_ready() -> None:
    class AnyPort(FakeServices):
        codes = (SERVES, SERVES, SERVES.replace("{}", '{\\"address\\": \\"127.0.0.1:4242\\"}'))

    with AnyPort(replace(SPEC, listen="127.0.0.1:0")) as deployment:
        assert deployment.gateway == "127.0.0.1:4242"


def test_without_a_draft_model_there_is_no_drafter() -> None:
    class NoDrafter(FakeServices):
        codes = (SERVES, SERVES)

    with NoDrafter(DeploymentSpec("target", None, "plain", ThreadPlan(2, 1))) as deployment:
        assert list(deployment.processes) == ["verifier", "gateway"]
        assert deployment.drafter is None


def test_a_clean_stop_drains_every_service_and_removes_the_folder() -> None:
    deployment = FakeServices(SPEC)
    assert deployment.failures() == {}
    assert deployment.stop() == {"gateway": 0, "verifier": 0, "drafter": 0}
    assert not deployment.folder.exists()


def test_a_service_that_cannot_start_takes_the_others_down_and_keeps_the_log() -> None:
    with pytest.raises(StartFailed, match=r"(?s)verifier ended before it was ready.*weights are missing") as failure:
        DyingVerifier(SPEC)
    log = str(failure.value).split("log: ")[1].splitlines()[0]
    with open(log) as kept:
        assert "weights are missing" in kept.read()


def test_a_restart_that_the_system_refuses_is_one_that_failed_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told, stopping, spawn = io.StringIO(), threading.Event(), ServiceProcess._spawn

    def refused_once(process: ServiceProcess, log: IO[bytes]) -> subprocess.Popen[bytes]:
        monkeypatch.setattr(ServiceProcess, "_spawn", spawn)
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    class Twice(Restarts):
        def started(self, name: str) -> None:
            if deployment.failures() == {}:
                stopping.set()
            super().started(name)

    with FakeServices(SPEC) as deployment:
        monkeypatch.setattr(ServiceProcess, "_spawn", refused_once)
        drafter = deployment.processes["drafter"]
        drafter.signal(signal.SIGKILL)
        drafter.stop(1.0)
        assert not watch(deployment, stopping, Console(file=told), Twice(RestartLimits(first_pause_s=0.0)))
    assert "drafter could not be started: [Errno 11] Resource temporarily unavailable" in told.getvalue()
    assert "(2 of 3)" in told.getvalue()


def test_a_killed_service_shows_up_as_a_failure_and_can_be_restarted() -> None:
    with FakeServices(SPEC) as deployment:
        drafter = deployment.processes["drafter"]
        drafter.signal(signal.SIGKILL)
        drafter.stop(1.0)
        assert deployment.failures() == {"drafter": -signal.SIGKILL}
        deployment.restart("drafter", extra=("--louder",))
        assert deployment.failures() == {}
        assert deployment.processes["drafter"].command.arguments[-1] == "--louder"
