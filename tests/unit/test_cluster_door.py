"""Joining a Ray cluster that may demand a token: a head that answers as Ray's does, and every way to get it wrong.

pytest tests/unit/test_cluster_door.py
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from outrider.coordinator import cluster_door
from outrider.coordinator.cluster_door import MODE, TOKEN, TOKEN_PATH, find_token, prepare_to_join
from outrider.launch.process import StartFailed

SECRET = "the cluster's own token"


@contextlib.contextmanager
def head(demanded: str) -> Iterator[str]:
    """Yields its address. demanded: a token, empty for none."""

    def answer(request: bytes, context: Any) -> bytes:
        sent = dict(context.invocation_metadata()).get("authorization", "")
        if demanded and sent != f"Bearer {demanded}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken: Authentication token is missing or incorrect")
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"GetClusterId": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ray.rpc.NodeInfoGcsService", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with head(SECRET) as address:
        yield address


def test_an_open_cluster_changes_nothing() -> None:
    environment: dict[str, str] = {}
    with head("") as address:
        prepare_to_join(address, environment)
    assert environment == {}


def test_a_token_at_hand_is_turned_on_where_the_cluster_demands_one(guarded: str, tmp_path: Path) -> None:
    by_value = {TOKEN: SECRET}
    prepare_to_join(guarded, by_value)
    assert by_value == {TOKEN: SECRET, MODE: "token"}
    named = tmp_path / "token"
    named.write_text(SECRET + "\n", encoding="utf-8")
    prepare_to_join(guarded, {TOKEN_PATH: str(named), "HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "demands a token, and there is none here: put .* into RAY_AUTH_TOKEN"),
        ({"HOME": "/nowhere"}, "there is none here"),
        ({TOKEN_PATH: "/nowhere/token", "HOME": "/nowhere"}, "there is none here"),
        ({MODE: "disabled", TOKEN: SECRET}, "RAY_AUTH_MODE=disabled says to send none: set RAY_AUTH_MODE=token"),
        ({MODE: "token", TOKEN: "another's"}, "does not take the token of RAY_AUTH_TOKEN"),
    ],
)
def test_what_is_wrong_is_told_with_the_remedy(guarded: str, environment: dict[str, str], told: str) -> None:
    before = dict(environment)
    with pytest.raises(StartFailed, match=told) as caught:
        prepare_to_join(guarded, environment)
    assert environment == before
    assert SECRET not in str(caught.value)
    assert "another's" not in str(caught.value)


def test_a_token_is_found_where_ray_looks_for_it(tmp_path: Path) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("at home", encoding="utf-8")
    named = tmp_path / "named"
    named.write_text("in a file\n", encoding="utf-8")
    home = {"HOME": str(tmp_path)}
    assert find_token(home).value == "at home"
    assert find_token({**home, TOKEN_PATH: str(named)}).value == "in a file"
    assert find_token({**home, TOKEN_PATH: str(named), TOKEN: "itself"}).value == "itself"


def test_nobody_there_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_door, "ASK_TIMEOUT_S", 0.2)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(StartFailed, match="no Ray cluster answers"):
            prepare_to_join(f"127.0.0.1:{nobody.getsockname()[1]}", {})


@pytest.mark.parametrize(
    ("address", "environment"),
    [("auto", {}), ("ray", {}), (":1", {}), ("127.0.0.1:1", {"RAY_USE_TLS": "1"}), ("127.0.0.1:1", {"RAY_ENABLE_K8S_TOKEN_AUTH": "true"})],
)
def test_what_only_ray_can_judge_is_left_to_it(address: str, environment: dict[str, str]) -> None:
    prepare_to_join(address, environment)
