"""Whether a verifier takes guesses from other answers, and where it shares them: the options, as checked values.

Knows URLs by their form. Must not connect, nor import the client of a store: arguments are refused before anything is loaded.
"""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from outrider.errors import InvalidRequest

OFF, MEMORY = "off", "memory"
URL_VARIABLE = "OUTRIDER_REDIS_URL"  # the default, for URLs with a password: command lines can be read by every user of a machine
_DATABASE = re.compile("(/[0-9]*)?")
SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class SharingSettings:
    """memory: among the requests of this process. redis_url: with other verifiers too; empty: with none."""

    memory: bool = False
    redis_url: str = ""

    @property
    def is_on(self) -> bool:
        """Whether there is any sharing."""
        return self.memory or bool(self.redis_url)

    def check(self, *, lookup: bool) -> None:
        """Raise InvalidRequest naming the first argument that is wrong; never with the URL, which may hold a password."""
        if self.is_on and not lookup:
            flag = "--redis-url" if self.redis_url else "--shared-ngrams"
            raise InvalidRequest(flag, "shares what requests look up; leave it or --no-lookup out")
        if self.redis_url:
            _check_url(self.redis_url)


NO_SHARING = SharingSettings()


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        where = parts.path if parts.scheme == "unix" else parts.hostname
        port = parts.port
    except ValueError as error:
        raise InvalidRequest("--redis-url", "is no URL with a port in [1, 65535]") from error
    if parts.scheme not in SCHEMES:
        raise InvalidRequest("--redis-url", f"must begin with {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
    if not where or port == 0:
        raise InvalidRequest("--redis-url", "must name a host and a port that is not 0, or the path of a socket")
    if parts.scheme != "unix" and not _DATABASE.fullmatch(parts.path):
        raise InvalidRequest("--redis-url", "must end with the number of a database, or with none")  # redis-py would take database 0


def add_sharing_options(parser: argparse.ArgumentParser) -> None:
    """Declare --shared-ngrams and --redis-url."""
    add = parser.add_argument
    among = "memory: guesses also come from what this verifier answered to the same tenant before"
    add("--shared-ngrams", choices=(OFF, MEMORY), default=OFF, help=f"{among} (%(default)s)")
    through = "share such guesses with other verifiers through this Redis: redis://[:PASSWORD@]HOST:PORT[/DB], rediss:// or unix://"
    add(
        "--redis-url",
        default=os.environ.get(URL_VARIABLE, ""),
        metavar="URL",
        help=f"{through}; losing it costs speed only (${URL_VARIABLE})",
    )


def sharing_from(given: argparse.Namespace) -> SharingSettings:
    """The settings that a command line gives."""
    return SharingSettings(given.shared_ngrams == MEMORY, given.redis_url)
