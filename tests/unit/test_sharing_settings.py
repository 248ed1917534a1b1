"""Where n-grams are shared: the verifier's options, what `outrider up` makes of them, and that no error shows a password."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from outrider.cli import up
from outrider.cli.__main__ import main
from outrider.cli.deployment_options import spec_from
from outrider.cli.up_ray import ray_spec
from outrider.coordinator.replica_plan import NodePlace, RayShare, ReplicaPlan
from outrider.errors import InvalidRequest
from outrider.launch.deployment import Deployment
from outrider.launch.process import service_environment
from outrider.store.shared_ngrams import SharedNgrams
from verifier_service.settings import parse_settings
from verifier_service.sharing import open_sharing
from verifier_service.sharing_settings import NO_SHARING, URL_VARIABLE, SharingSettings

SECRET = "s3cret"
URL = f"redis://:{SECRET}@host:6379"
MODELS = ("--target", "hub/target", "--draft", "hub/draft", "--dtype", "float32")


def parsed(*extra: str) -> SharingSettings:
    return parse_settings(["--model", "somewhere", *extra]).sharing


def test_nothing_is_shared_unless_asked_for() -> None:
    assert parsed() == NO_SHARING
    assert open_sharing(NO_SHARING) is None
    assert parsed("--no-lookup") == NO_SHARING


def test_memory_and_redis() -> None:
    assert parsed("--shared-ngrams", "memory") == SharingSettings(memory=True)
    shared = open_sharing(SharingSettings(memory=True))
    assert isinstance(shared, SharedNgrams)
    assert shared.store is None
    for url in ("redis://host:6379/1", f"rediss://user:{SECRET}@host", "unix:///run/redis.sock", "redis://[::1]:7000"):
        settings = parsed("--redis-url", url)
        assert settings == SharingSettings(redis_url=url)
        opened = open_sharing(settings)
        assert opened is not None
        assert opened.store is not None


def test_a_url_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, "redis://elsewhere:1")
    assert parsed() == SharingSettings(redis_url="redis://elsewhere:1")
    assert parsed("--redis-url", "redis://here:2").redis_url == "redis://here:2"


@pytest.mark.parametrize(
    "url",
    [
        *(
            "host:6379",
            "http://host",
            f"redis://u:{SECRET}@host:x",
            f"redis://u:{SECRET}@host:99999",
            "redis://",
            "redis://host:0",
            "unix://",
        ),
        *("redis://host/abc", "redis://host/1/2", "rediss://host/-1", f"redis://host/{SECRET}"),
    ],
)
def test_a_url_that_is_none_is_refused_by_the_flag_s_name_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed("--redis-url", url)
    assert caught.value.field == "--redis-url"
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis://host?foo=bar", "'foo'"),
        ("redis://host?ssl_cert_reqs=none", "'ssl_cert_reqs'"),  # of rediss:// only
        ("unix:///run/redis.sock?host=elsewhere", "'host'"),
        ("rediss://host?ssl_cert_reqs=bogus", "the package redis"),
        ("redis://host?health_check_interval=x", "'health_check_interval'"),
        ("redis://host?encoding=nonsense", "the package redis"),
        ("redis://host?encoding=utf-16", "'encoding'"),
        ("redis://host?decode_responses=true", "'decode_responses'"),
    ],
)
def test_options_that_make_no_connection_are_refused_before_one_is_needed(url: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as caught:
        open_sharing(parsed("--redis-url", url.replace("//h", f"//:{SECRET}@h")))
    assert caught.value.field == "--redis-url"
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["rediss://host?ssl_cert_reqs=none", "redis://host?client_name=us&health_check_interval=5", "redis://host/"]
)
def test_options_that_the_client_knows_are_taken(url: str) -> None:
    opened = open_sharing(parsed("--redis-url", url))
    assert opened is not None
    assert opened.store is not None


@pytest.mark.parametrize("options", [("--shared-ngrams", "memory"), ("--redis-url", "redis://host")])
def test_sharing_without_lookup_is_refused(options: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed("--no-lookup", *options)
    assert caught.value.field == options[0]


def test_without_the_client_installed_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "outrider.store.redis_store", raising=False)
    with pytest.raises(InvalidRequest, match="pip install"):
        open_sharing(SharingSettings(redis_url="redis://host"))


def asked(*extra: str) -> argparse.Namespace:
    """What `outrider up` is asked for."""
    parser = argparse.ArgumentParser()
    up.add_parser(parser.add_subparsers())
    return parser.parse_args(["up", *MODELS, *extra])


def test_up_hands_the_options_on_and_the_url_where_nobody_sees_it() -> None:
    nothing = spec_from(asked(), None)
    assert (nothing.verifier_extra, nothing.environment) == ((), {})
    spec = spec_from(asked("--redis-url", URL, "--shared-ngrams", "memory", "--verifier-arg=--no-probe"), None)
    assert spec.verifier_extra == ("--shared-ngrams", "memory", "--no-probe")
    assert spec.environment == {URL_VARIABLE: URL}
    assert SECRET not in repr(spec)


@pytest.mark.parametrize("together", [True, False])
def test_a_verifier_that_up_starts_finds_the_url_in_its_environment(
    together: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = replace(spec_from(asked("--redis-url", URL), None), together=together)
    deployment = object.__new__(Deployment)
    deployment.spec, deployment.folder, deployment.ready = spec, tmp_path, {}
    commands = {command.name: command for command in deployment.commands()}
    assert not [command for command in commands.values() if SECRET in repr(command)]
    monkeypatch.setenv(URL_VARIABLE, "redis://elsewhere:1")
    assert service_environment(commands["verifier"])[URL_VARIABLE] == URL


def test_replicas_under_ray_find_what_the_environment_of_up_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(URL_VARIABLE, URL)
    spec = ray_spec(asked("--ray", "--ray-address", "10.0.0.1:6379"))
    command = ReplicaPlan(spec, RayShare(), tmp_path, NodePlace("h:1", "id", "n", "10.0.0.2")).verifier(()).command
    assert (command.environment, SECRET in repr(command)) == ({URL_VARIABLE: URL}, False)
    unshared = spec_from(asked("--redis-url", ""), None)
    assert unshared.environment == {URL_VARIABLE: ""}, "not what services would inherit"


@pytest.mark.parametrize("ray", [(), ("--ray",)])
@pytest.mark.parametrize(
    "wrong", [("--redis-url", f"redis://:{SECRET}@host:99999"), ("--redis-url", URL, "--verifier-arg=--no-lookup")], ids=["url", "no use"]
)
def test_up_refuses_a_wrong_url_before_anything_starts(
    wrong: tuple[str, ...], ray: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert main(["up", *MODELS, *ray, *wrong]) == 2
    told = capsys.readouterr().err
    assert told.startswith("outrider: --redis-url")
    assert (told.count("\n"), SECRET in told) == (1, False)
