"""The samples in deploy/ and the fleet started by hand in README.md: command lines that the services take, and what their supervisors make
of exit codes and a drain.

pytest tests/unit/test_deploy_samples.py
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from drafter_service.settings import parse_settings as drafter_settings
from outrider.cli.__main__ import build_parser
from outrider.gateway.__main__ import parse_config as gateway_config
from outrider.launch.grace import DRAIN_DEADLINE_S
from outrider.rpc.announcer import SUPERSEDED_EXIT_CODE
from verifier_service.settings import parse_settings as verifier_settings

DEPLOY = Path(__file__).parents[2] / "deploy"
README = (DEPLOY.parent / "README.md").read_text(encoding="utf-8")
UNIT = (DEPLOY / "systemd/outrider-verifier@.service").read_text(encoding="utf-8")
NODE = (DEPLOY / "systemd/ray-node.service").read_text(encoding="utf-8")
SHARE = (DEPLOY / "systemd/outrider-share.service").read_text(encoding="utf-8")
MANIFEST = (DEPLOY / "kubernetes/drafter.yaml").read_text(encoding="utf-8")


def told(text: str, pattern: str) -> str:
    """The first group of what is there once."""
    (found,) = re.findall(pattern, text, re.MULTILINE)
    return str(found)


def unit_environment(unit: str = UNIT) -> dict[str, str]:
    """As the unit's own comment has it."""
    return dict(re.findall(r"^#   ([A-Z_]+)=(.+)$", unit, re.MULTILINE))


def unit_command(unit: str, environment: dict[str, str]) -> list[str]:
    """What it starts on a machine with this environment."""
    line = told(unit, r"^ExecStart=(.+)$").replace("%H", "host").replace("%i", "0")
    for name, value in environment.items():
        line = line.replace(f"${{{name}}}", value).replace(f"${name}", value)
    assert "$" not in line
    return shlex.split(line)


def test_the_units_command_is_one_that_a_verifier_takes() -> None:
    _, _, module, *arguments = unit_command(UNIT, unit_environment())
    settings = verifier_settings(arguments)
    assert (module, settings.listen, settings.membership.replica_id) == ("verifier_service", "10.0.0.3:7071", "host-verifier-0")
    assert settings.membership.coordinators == ("10.0.0.1:7069",)


def test_the_units_of_a_machine_under_ray_are_the_two_commands_of_the_readme() -> None:
    environment = unit_environment(NODE)
    _, *node = unit_command(NODE, environment)
    (by_hand,) = re.findall(r"^ray start (--address=.+)$", README, re.MULTILINE)
    assert set(node) == {"start", "--block", *shlex.split(by_hand)}
    exported = re.findall(r"(RAY_\w+=\S+)", "\n".join(re.findall(r"^export (.+)$", README, re.MULTILINE)))
    assert set(exported) <= set(" ".join(re.findall(r"^Environment=(.+)$", NODE, re.MULTILINE)).split())
    _, *arguments = unit_command(SHARE, environment)
    args = build_parser().parse_args(arguments)
    assert (args.ray, args.ray_address, args.ray_node_ip) == (True, "10.0.0.1:6379", "10.0.0.2")
    assert (args.verifiers, args.drafters, args.listen) == (1, 2, "10.0.0.2:7070")
    assert told(SHARE, r"^Restart=(.+)$") == "on-failure", "a machine that was given up begins anew, one that is told to stop does not"


def test_the_fleet_that_is_started_by_hand_is_one_that_its_services_take() -> None:
    (block,) = re.findall(r"^```\n(python -m outrider\.coordinator .+?)^```", README, re.MULTILINE | re.DOTALL)
    lines = {words[2]: words[3:] for words in map(shlex.split, block.splitlines())}
    parse = {"drafter_service": drafter_settings, "verifier_service": verifier_settings}
    assert list(lines) == ["outrider.coordinator", "drafter_service", "verifier_service", "outrider.gateway"]
    (coordinator,) = lines["outrider.coordinator"][1:]
    for service, parse_settings in parse.items():
        membership = parse_settings(lines[service]).membership  # type: ignore[operator]
        assert (membership.coordinators, membership.replica_id) == ((coordinator,), f"{service.removesuffix('_service')}-0")
    config, _ = gateway_config(lines["outrider.gateway"])
    assert (config.coordinators, config.verifiers) == ((coordinator,), ())
    command = told(README, r"`outrider (fleet --coordinator \S+ )\[--drain verifier-0\]`")
    asked = build_parser().parse_args([*command.split(), "--drain", "verifier-0"])
    assert (asked.coordinator, asked.drain) == (coordinator, "verifier-0")


def test_the_unit_lets_a_drain_end_and_starts_again_only_what_crashed() -> None:
    assert float(told(UNIT, r"^TimeoutStopSec=(\d+)$")) > DRAIN_DEADLINE_S
    assert told(UNIT, r"^Restart=(.+)$") == "on-failure", "0 is no failure: it drained"
    assert told(UNIT, r"^RestartPreventExitStatus=(.+)$") == str(SUPERSEDED_EXIT_CODE)


def test_the_pods_command_is_one_that_a_drafter_takes() -> None:
    arguments = [
        one.replace("$(POD_NAME)", "pod-1").replace("$(POD_IP)", "10.1.0.9") for one in re.findall(r"^ +- (--.+)$", MANIFEST, re.MULTILINE)
    ]
    settings = drafter_settings(arguments)
    assert told(MANIFEST, r"command: (.+)$") == '["python", "-m", "drafter_service"]'
    assert settings.membership.replica_id == "pod-1", "pods of one deployment never share a name"
    assert settings.membership.endpoint("0.0.0.0:7072") == "10.1.0.9:7072"
    assert set(re.findall(r"(?:port|containerPort): (\d+)", MANIFEST)) == {"7072"}
    listen, advertise = re.findall(r"^ +# Where pods have IPv6 addresses: (\S+) and (\S+),", MANIFEST, re.MULTILINE)[0]
    assert [one.split("=")[0] for one in arguments[1:3]] == ["--listen", "--advertise"]
    in_ipv6 = [arguments[0], listen, advertise.replace("$(POD_IP)", "fd00:10:244::5"), *arguments[3:]]
    assert drafter_settings(in_ipv6).membership.endpoint("[::]:7072") == "[fd00:10:244::5]:7072"
    assert float(told(MANIFEST, r"terminationGracePeriodSeconds: (\d+)$")) > DRAIN_DEADLINE_S
