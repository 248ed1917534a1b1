"""`outrider up`: every service on this machine until Ctrl-C.

Watches its services and starts a lost one again where it was, a few times: a drafter costs speed only, a verifier a pause of the answers,
for the gateway waits for it, and a gateway (a process of its own, or part of the verifier's) the streams of its clients, who ask again.
"""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Callable

from rich.console import Console

from outrider.cli.console import make_console
from outrider.cli.deployment_options import add_deployment_options, spec_from
from outrider.cli.restarts import Restarts
from outrider.cli.starting import endpoint_table, start
from outrider.cli.up_ray import add_ray_options, check_no_ray_options, run_ray
from outrider.launch.deployment import UNREADY_DRAIN_S, Deployment
from outrider.launch.process import StartFailed
from outrider.rpc.address import check_address
from outrider.rpc.listening import check_free

DEFAULT_LISTEN = "127.0.0.1:7070"
WATCH_INTERVAL_S = 0.5
_MEANWHILE = {
    "drafter": "answers go on without drafts",
    "verifier": "answers under way wait for it",
    "gateway": "clients lose their streams and may ask again: the same seed gives the same tokens",
}
_EXAMPLES = """examples:
  outrider up                                    the reference pair on 127.0.0.1:7070
  outrider up --target ./my-model --draft ./my-small-model --dtype bfloat16
  outrider up --draft none                       plain decoding, no drafter
  outrider up --pair apart                       verifier and drafter as processes of their own, however few the cores
  outrider up --pacing pearl --listen 0.0.0.0:7070
  outrider up --ray --verifiers 2 --drafters 1   a fleet of this machine: a coordinator, and replicas that Ray keeps running
  outrider up --ray --ray-address HEAD:6379      this machine's share of a fleet, after `ray start` on it"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `outrider up`."""
    parser = subparsers.add_parser(
        "up",
        help="all services on this machine, until Ctrl-C",
        description="Start drafter, verifier and gateway on this machine, and keep them until Ctrl-C.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen", default=DEFAULT_LISTEN, metavar="ADDRESS", help="of the client API, host:port or unix:/path (%(default)s)"
    )
    add_deployment_options(parser)
    add_ray_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Start, print the table, wait. Exit code 0 after Ctrl-C, SIGTERM or SIGHUP, 1 when a service was lost for good."""
    check_address("--listen", args.listen)
    if args.ray:
        return run_ray(args)
    check_no_ray_options(args)
    console, progress = make_console(), make_console(stderr=True)
    stopping = threading.Event()
    spec = spec_from(args, args.listen)
    check_free({"--listen": (args.listen,)})  # before models are loaded for nothing
    with start(spec, progress) as deployment:
        end_on_signals(stopping, deployment.hurry)
        console.print(endpoint_table(deployment))
        console.print(f"try: outrider generate --gateway {deployment.gateway} --chat 'What is 12 times 34?'", markup=False)
        lost = watch(deployment, stopping, progress)
        progress.print("stopping: requests drain first; Ctrl-C once more ends them ...")
    return 1 if lost else 0


def end_on_signals(stopping: threading.Event, hurry: Callable[[], None]) -> None:
    """SIGTERM, SIGINT and SIGHUP (not under `nohup`) set stopping; a second one hurries what drains by then."""

    def on_signal(*_: object) -> None:
        if stopping.is_set():
            hurry()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, on_signal)


def watch(deployment: Deployment, stopping: threading.Event, progress: Console, restarts: Restarts | None = None) -> bool:
    """Until stopping is set, or until a service is lost for good (True). From a thread that lives as long as the deployment should."""
    restarts = restarts or Restarts()
    while not stopping.wait(WATCH_INTERVAL_S):
        for name, code in deployment.failures().items():
            tail = deployment.processes[name].log_tail(8)
            progress.print(f"{name} ended with exit code {code}; the end of its log:\n{tail}", markup=False)
            pause_s = restarts.next_pause_s(name)
            if pause_s is None:
                return True
            numbers = f"{restarts.count(name)} of {restarts.limits.max_restarts}"
            progress.print(f"{_meanwhile(deployment, name)}; starting the {name} again ({numbers})", markup=False)
            if stopping.wait(pause_s):
                return False
            _start_again(deployment, name, progress, stopping)
            if stopping.is_set():
                return False
            restarts.started(name)
    return False


def _start_again(deployment: Deployment, name: str, progress: Console, stopping: threading.Event) -> None:
    """Where it was; one that does not come up has ended too, and is looked at with the others. Whoever stops does not wait for it."""
    try:
        deployment.restart(name, given_up=stopping)
    except StartFailed as error:
        if stopping.is_set():
            return  # the deployment's end is its end
        progress.print(str(error), markup=False)
        deployment.processes[name].stop(UNREADY_DRAIN_S)


def _meanwhile(deployment: Deployment, name: str) -> str:
    return _MEANWHILE["gateway" if name == "verifier" and deployment.spec.gateway_inside else name]
