"""When `outrider up` makes one process of verifier and drafter, and when the gateway is part of it."""

from __future__ import annotations

import argparse

import pytest

from outrider.cli import deployment_options
from outrider.cli.deployment_options import add_deployment_options, spec_from
from outrider.errors import InvalidRequest
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.threads import ThreadPlan


def spec(monkeypatch: pytest.MonkeyPatch, num_cores: int, *options: str) -> DeploymentSpec:
    monkeypatch.setattr(deployment_options, "usable_cores", lambda: tuple(range(num_cores)))
    parser = argparse.ArgumentParser()
    add_deployment_options(parser)
    return spec_from(parser.parse_args(["--target", "hub/target", "--draft", "hub/draft", "--dtype", "float32", *options]), None)


@pytest.mark.parametrize(
    ("num_cores", "options", "together"),
    [
        (2, (), True),
        (1, (), True),
        (2, ("--pacing", "adaptive"), True),
        (2, ("--pacing", "pearl"), False),
        (2, ("--pair", "apart"), False),
        (2, ("--pin",), False),
        (2, ("--drafter-threads", "1"), False),
        (2, ("--lent-threads", "0"), False),
        (2, ("--draft", "none"), False),
        (8, (), False),
        (8, ("--pacing", "adaptive"), False),
        (8, ("--pair", "together"), True),
        (2, ("--pacing", "pearl", "--pair", "together"), True),
    ],
)
def test_where_few_cores_are_shared_in_turns(
    monkeypatch: pytest.MonkeyPatch, num_cores: int, options: tuple[str, ...], together: bool
) -> None:
    found = spec(monkeypatch, num_cores, *options)
    assert found.together is together
    if together:
        assert found.threads.verifier == num_cores
        assert not found.threads.lent


def test_given_threads_hold_for_one_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--pair", "together", "--verifier-threads", "3", "--drafter-threads", "2")
    assert spec(monkeypatch, 8, *options).threads == ThreadPlan(verifier=3, drafter=2)


@pytest.mark.parametrize("other", [("--pin",), ("--lent-threads", "1"), ("--draft", "none")])
def test_what_contradicts_one_process_is_refused(monkeypatch: pytest.MonkeyPatch, other: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="--pair"):
        spec(monkeypatch, 2, "--pair", "together", *other)


@pytest.mark.parametrize(
    ("num_cores", "options", "inside"),
    [
        (2, (), True),
        (2, ("--draft", "none"), True),
        (2, ("--pair", "apart"), True),
        (2, ("--pin",), False),
        (2, ("--gateway-process", "apart"), False),
        (8, (), False),
        (8, ("--gateway-process", "together"), True),
    ],
)
def test_where_few_cores_carry_no_messages_to_the_gateway(
    monkeypatch: pytest.MonkeyPatch, num_cores: int, options: tuple[str, ...], inside: bool
) -> None:
    assert spec(monkeypatch, num_cores, *options).gateway_inside is inside
