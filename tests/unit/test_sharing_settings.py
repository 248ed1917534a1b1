"""Where n-grams are shared: the verifier's options, what `outrider up` makes of them, and that no error shows a password."""

from __future__ import annotations

import argparse
import sys

import pytest

from outrider.cli.deployment_options import add_deployment_options, spec_from
from outrider.errors import InvalidRequest
from outrider.store.shared_ngrams import SharedNgrams
from verifier_service.settings import parse_settings
from verifier_service.sharing import open_sharing
from verifier_service.sharing_settings import NO_SHARING, URL_VARIABLE, SharingSettings

SECRET = "s3cret"


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
    ["host:6379", "http://host", f"redis://u:{SECRET}@host:x", f"redis://u:{SECRET}@host:99999", "redis://", "redis://host:0", "unix://"],
)
def test_a_url_that_is_none_is_refused_by_the_flag_s_name_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed("--redis-url", url)
    assert caught.value.field == "--redis-url"
    assert SECRET not in str(caught.value)


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


def test_up_hands_the_options_on() -> None:
    parser = argparse.ArgumentParser()
    add_deployment_options(parser)
    names = ["--target", "hub/target", "--draft", "hub/draft", "--dtype", "float32"]
    assert spec_from(parser.parse_args(names), None).verifier_extra == ()
    given = parser.parse_args([*names, "--redis-url", "redis://host", "--shared-ngrams", "memory", "--verifier-arg=--no-probe"])
    assert spec_from(given, None).verifier_extra == ("--shared-ngrams", "memory", "--redis-url", "redis://host", "--no-probe")
