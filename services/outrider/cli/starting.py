"""Starting a deployment for a person: what is being started, how long it took, whether the pair found each other.

Knows launch and the services' GetInfo. Must not know requests.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.cli.connection import Connection
from outrider.errors import IncompatiblePair, Unavailable
from outrider.launch.deployment import Deployment, DeploymentSpec
from outrider.v1 import verifier_pb2

PAIR_DEADLINE_S = 60.0
PAIR_POLL_S = 0.05


def start(spec: DeploymentSpec, progress: Console) -> Deployment:
    """Start every service and wait until the pair is connected. Raises StartFailed, IncompatiblePair or Unavailable; nothing runs then."""
    names = f"{_short(spec.target)} + {_short(spec.draft)}" if spec.draft else _short(spec.target)
    where = ", in one process" if spec.together else ""
    where += ", the gateway in the verifier's" if spec.gateway_inside else ""
    told = f"starting {names} ({spec.pacing}; {spec.threads.describe()}{where}) ..."
    with progress.status(Text(told)):  # a status takes its words for markup, whatever its console does
        deployment = Deployment(spec)
        try:
            await_pair(deployment)
        except BaseException as error:
            deployment.stop(drain_s=1.0, keep_logs=isinstance(error, Exception))
            raise
    return deployment


def await_pair(deployment: Deployment, deadline_s: float = PAIR_DEADLINE_S) -> verifier_pb2.VerifierServiceGetInfoResponse:
    """Wait until the verifier has shaken hands with its drafter, or says why it will not."""
    deadline = time.monotonic() + deadline_s
    with Connection(deployment.verifier) as verifier:
        while True:
            info = verifier.verifier_info()
            if all(pair.connected for pair in info.pairs):
                return info
            problems = "; ".join(pair.problem for pair in info.pairs if pair.problem)
            if "differs" in problems:  # a refused handshake does not mend itself
                raise IncompatiblePair(problems)
            if time.monotonic() > deadline:
                raise Unavailable(f"the verifier did not reach its drafter within {deadline_s:g} s: {problems or 'no reason given'}")
            time.sleep(PAIR_POLL_S)


def endpoint_table(deployment: Deployment) -> Table:
    """Who listens where, with which model and threads, and where it is scraped."""
    spec = deployment.spec
    table = Table("service", "address", "model", "threads", "pid", title=f"up in {deployment.start_s:.1f} s, logs in {deployment.folder}")
    target, draft = (_kept(spec.dtype, weights) for weights in (spec.target_weights, spec.draft_weights))
    verifier_threads = f"{spec.threads.verifier}{f' + {spec.threads.lent} lent' if spec.threads.lent else ''}"
    rows = {
        "gateway": (deployment.gateway, "tokenizer only", "1"),
        "verifier": (deployment.verifier, f"{_short(spec.target)} ({target}, {spec.numerics})", verifier_threads),
        "drafter": (deployment.drafter or "", f"{_short(spec.draft)} ({draft})", str(spec.threads.drafter)),
    }
    pids = {name: str(process.pid) for name, process in deployment.processes.items()}
    if spec.together:
        rows["drafter"] = ("inside the verifier", *rows["drafter"][1:])
        pids["drafter"] = pids["verifier"]
    if spec.gateway_inside:
        pids["gateway"] = pids["verifier"]
    urls = _metrics_urls(deployment)
    if urls:
        table.add_column("metrics")
    for name, pid in pids.items():
        table.add_row(name, *rows[name], pid, *((urls.get(name, ""),) if urls else ()))
    return table


def _metrics_urls(deployment: Deployment) -> dict[str, str]:
    """Where services are scraped, by name; a gateway in the verifier's process tells of both."""
    urls = {name: line.get("metrics") for name, line in deployment.ready.items()}
    if deployment.spec.gateway_inside:
        line = deployment.ready["verifier"]
        urls |= {"gateway": line.get("metrics"), "verifier": line.get("verifier_metrics")}
    return {name: str(url) for name, url in urls.items() if url}


def _kept(dtype: str, weights: str) -> str:
    return dtype if weights != "int8" else f"{dtype}, {weights} weights"


def _short(model: str | None) -> str:
    return "none" if model is None else Path(model).name or model
