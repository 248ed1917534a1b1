"""Whether the coordinator's port can be had on this node, found out before Ray is asked for the actor that is to listen there.

Ray starts an actor anew whose process has ended, for ever, and whoever waits for its address hears after a minute that it did not answer,
with Ray's own guesses at why (no memory). Knows sockets. Must not know Ray.
"""

from __future__ import annotations

import socket
import time

from outrider.launch.process import StartFailed

# As long as the actor tries: the coordinator before this one may still hold the port for a moment.
MAX_ATTEMPTS = 50
PAUSE_S = 0.1


def await_free(listen: str, max_attempts: int = MAX_ATTEMPTS) -> None:
    """Return once host:port of this machine can be listened at. Raises StartFailed when it cannot after so many attempts."""
    host, _, port = listen.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for attempt in range(1, max_attempts + 1):
        try:
            with socket.socket(family) as probe:  # bound only: replicas that know the address from before would connect to one that listens
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host.strip("[]"), int(port)))
            return
        except OSError as error:
            if attempt == max_attempts:
                told = f"the coordinator cannot listen at {listen}: {error}"
                raise StartFailed(f"{told}; end what listens there, or give another --fleet-port") from error
        time.sleep(PAUSE_S)
