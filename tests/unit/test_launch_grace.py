"""How long whoever ends a service waits for it: its own grace and a little more, wherever it is ended from.

pytest tests/unit/test_launch_grace.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drafter_service.settings import parse_settings as drafter_settings
from outrider.coordinator.cluster import STOP_MARGIN_S, stop_timeout_s
from outrider.coordinator.replica_actor import ReplicaSpec
from outrider.coordinator.replica_supervisor import ReplicaSupervisor
from outrider.gateway.__main__ import parse_config
from outrider.launch.deployment import UNREADY_DRAIN_S, Deployment, DeploymentSpec
from outrider.launch.grace import CLOSING_S, DRAIN_DEADLINE_S, drain_deadline_s
from outrider.launch.numbers import MAX_SECONDS
from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider.launch.threads import ThreadPlan
from verifier_service.settings import parse_settings as verifier_settings

START_S = 60.0
LONG = ("--drain-grace-s", "40")
# Drains at SIGTERM, and from before anybody may send it.
SERVES = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print('{"address": "h:7"}', flush=True)
signal.sigwait({signal.SIGTERM})
"""


class OneLiners(Deployment):
    """Services of one line that are told what their real ones would be."""

    def commands(self) -> list[ServiceCommand]:
        return [replace(real, arguments=("-c", SERVES, *real.arguments)) for real in super().commands()]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """How long was waited for each service that was ended, by name."""
    found: dict[str, float] = {}
    stop = ServiceProcess.stop

    def noted(process: ServiceProcess, drain_s: float) -> int:
        found[process.command.name] = drain_s
        return stop(process, START_S)

    monkeypatch.setattr(ServiceProcess, "stop", noted)
    return found


@pytest.mark.parametrize(
    ("arguments", "deadline_s"),
    [
        ((), DRAIN_DEADLINE_S),
        (LONG, 40 + CLOSING_S),
        (("--grace-s=20", "--", "--drain-grace-s=30", "--", "--drain-grace-s", "25"), 30 + CLOSING_S),
        (("--drain-grace", "40"), 40 + CLOSING_S),
        (("--drain-grace-s", "1"), DRAIN_DEADLINE_S),
        (("--drain-grace-s", "nan"), DRAIN_DEADLINE_S),
        (("--grace-s=-5",), DRAIN_DEADLINE_S),
        (("--grace-s",), DRAIN_DEADLINE_S),
        (("--grace-s", "1e300"), MAX_SECONDS + CLOSING_S),
        (("--", "50", "--drafter", "60"), DRAIN_DEADLINE_S),
    ],
)
def test_a_service_is_given_its_grace_and_a_little_more(arguments: tuple[str, ...], deadline_s: float) -> None:
    assert drain_deadline_s(arguments) == deadline_s


def test_by_default_no_service_needs_more_than_it_is_given() -> None:
    graces_s = (
        parse_config(["--verifier", "h:1"])[0].drain_grace_s,
        verifier_settings(["--model", "m"]).grace_s,
        drafter_settings(["--model", "m", "--listen", "127.0.0.1:0"]).drain_grace_s,
    )
    assert max(graces_s) + CLOSING_S <= DRAIN_DEADLINE_S


def test_a_deployment_waits_for_each_service_as_it_was_told(patience: dict[str, float]) -> None:
    spec = DeploymentSpec("target", "draft", "serial", ThreadPlan(1, 1), gateway_extra=LONG, verifier_extra=("--grace-s=20",))
    with OneLiners(spec) as deployment:
        deployment.restart("gateway")
        assert patience == {"gateway": 45.0}
    assert patience == {"gateway": 45.0, "verifier": 25.0, "drafter": DRAIN_DEADLINE_S}
    OneLiners(spec).stop(drain_s=UNREADY_DRAIN_S)
    assert set(patience.values()) == {UNREADY_DRAIN_S}, "whoever is in a hurry says so"


def test_a_supervised_service_has_its_grace_too(tmp_path: Path, patience: dict[str, float]) -> None:
    one = ReplicaSupervisor(ServiceCommand("gateway", ("-c", SERVES, *LONG)), tmp_path / "one.log", final_codes=())
    one.start()
    one.wait_ready(START_S)
    assert one.stop() == (0,)
    assert patience == {"gateway": 45.0}


def test_replicas_that_drain_side_by_side_are_waited_for_as_long_as_the_longest() -> None:
    short, long = (ReplicaSpec(ServiceCommand("one", arguments)) for arguments in ((), LONG))
    assert stop_timeout_s([short]) == DRAIN_DEADLINE_S + STOP_MARGIN_S
    assert stop_timeout_s([long, short]) == 45.0 + STOP_MARGIN_S


@pytest.mark.parametrize("wrong", ["nan", "inf", "-1", "soon"])
def test_a_gateways_grace_that_is_no_time_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config(["--verifier", "h:1", f"--drain-grace-s={wrong}"])
    assert "--drain-grace-s" in capsys.readouterr().err
