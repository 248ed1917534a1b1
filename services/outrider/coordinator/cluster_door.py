"""Whether a running Ray cluster lets this process in, asked before Ray is: Ray tries for half a minute, and then says only that it failed.

Knows one question that every head answers, and where Ray looks for a token. Must not import Ray, and must never show a token. Asks nothing
where Ray's traffic is encrypted (RAY_USE_TLS) or tokens are Kubernetes' own: Ray knows how, and is left to it.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc

from outrider.launch.process import StartFailed

ASK_TIMEOUT_S = 20.0
MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
LEFT_TO_RAY = ("RAY_USE_TLS", "RAY_ENABLE_K8S_TOKEN_AUTH")
BY_TOKEN, WITHOUT = "token", "disabled"
_QUESTION = "/ray.rpc.NodeInfoGcsService/GetClusterId"  # an empty message; the answer is of no interest
_REMEDY = f"put the cluster's token into {TOKEN}, or into a file that {TOKEN_PATH} names (or ~/.ray/auth_token)"


@dataclass(frozen=True, slots=True)
class FoundToken:
    """where: for people; empty when there is none."""

    value: str = ""
    where: str = ""


def prepare_to_join(address: str, environment: MutableMapping[str, str]) -> None:
    """Make sure that the cluster at host:port lets us in, and turn tokens on where it demands one and nothing says whether to send any.

    environment: of this process, before Ray is imported. Raises StartFailed with the remedy.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or any(_is_on(environment.get(name, "")) for name in LEFT_TO_RAY):
        return
    if _lets_in(address, ""):
        return
    mode = environment.get(MODE, BY_TOKEN).lower()
    if mode == WITHOUT:
        raise StartFailed(
            f"the Ray cluster at {address} demands a token, and {MODE}={mode} says to send none: set {MODE}={BY_TOKEN}, and {_REMEDY}"
        )
    token = find_token(environment)
    if not token.value:
        raise StartFailed(f"the Ray cluster at {address} demands a token, and there is none here: {_REMEDY}")
    if not _lets_in(address, token.value):
        raise StartFailed(f"the Ray cluster at {address} does not take the token of {token.where}: it is another cluster's or has changed")
    environment[MODE] = BY_TOKEN


def find_token(environment: Mapping[str, str]) -> FoundToken:
    """The token that Ray would send, found where and in the order in which Ray looks."""
    if environment.get(TOKEN):
        return FoundToken(environment[TOKEN].strip(), TOKEN)
    home = environment.get("HOME", "")
    named = environment.get(TOKEN_PATH, "")
    path = Path(named) if named else Path(home) / ".ray" / "auth_token"
    if not (named or home) or not path.is_file():
        return FoundToken()
    return FoundToken(path.read_text(encoding="utf-8").strip(), str(path))


def _lets_in(address: str, token: str) -> bool:
    """Whether the head answers whoever has this token (none when empty). Raises StartFailed when nobody answers."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(_QUESTION, None, None)(b"", timeout=ASK_TIMEOUT_S, metadata=metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            call = cast("grpc.Call", error)  # what a call raises is the call too
            if call.code() is grpc.StatusCode.UNAUTHENTICATED:
                return False
            raise StartFailed(f"no Ray cluster answers at {address}: {call.details()}; is it the head's address and port?") from error
    return True


def _is_on(value: str) -> bool:
    return value.lower() not in ("", "0", "false")
