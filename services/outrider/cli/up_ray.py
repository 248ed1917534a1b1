"""`outrider up --ray`: this machine's share of a fleet that Ray keeps running, until Ctrl-C.

Knows the options and what is printed. Imports nothing of Ray: the deployment does, once it is asked for.
"""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from outrider.cli.console import make_console
from outrider.cli.deployment_options import APART, TOGETHER, check_metrics_apart, spec_from
from outrider.errors import InvalidRequest
from outrider.exposition.options import MAX_PORT
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.process import StartFailed
from outrider.launch.threads import ThreadPlan
from outrider.rpc.address import check_address
from outrider.rpc.listening import check_free

if TYPE_CHECKING:
    from outrider.coordinator.ray_deployment import RayDeployment
    from outrider.coordinator.replica_plan import RayShare
    from outrider.coordinator.replica_supervisor import SupervisionReport

WATCH_INTERVAL_S = 1.0
REPORT_TIMEOUT_S = 10.0
CUT_OFF = (
    "the cluster has given this node up (it was cut off, or its Ray has ended) and goes on without it: "
    "run `ray start --address=...` here again, and then this `outrider up`"
)
MIN_RESOURCE, MAX_AMOUNT = 0.0001, 1_000_000.0  # of a GPU or custom resource; Ray counts in ten thousandths
_OWN_OPTIONS = ("CPU", "GPU")


def add_ray_options(parser: argparse.ArgumentParser) -> None:
    """Declare --ray and what belongs to it."""
    group = parser.add_argument_group("Ray (a fleet on one machine or several; needs the extra `ray`)")
    group.add_argument("--ray", action="store_true", help="a coordinator, and replicas that are started again")
    group.add_argument("--ray-address", default="", metavar="ADDR", help="join the cluster of this head (default: one of this machine)")
    group.add_argument("--ray-node-ip", default="", metavar="IP", help="of this machine in that cluster, where it has several")
    group.add_argument("--verifiers", type=int, default=1, metavar="N", help="replicas on this machine (%(default)s)")
    group.add_argument("--drafters", type=int, default=1, metavar="N", help="replicas on this machine (%(default)s)")
    for role in ("verifier", "drafter"):
        group.add_argument(f"--{role}-cpus", type=float, default=0.0, metavar="N", help=f"set aside by Ray for each {role} (%(default)g)")
        group.add_argument(
            f"--{role}-gpus",
            type=float,
            default=0.0,
            metavar="N",
            help=f"set aside by Ray for each {role}, a part of one or whole ones (%(default)g)",
        )
        group.add_argument(
            f"--{role}-resources",
            action="append",
            default=[],
            metavar="NAME=N",
            help=f"a custom resource that each {role} needs; repeatable",
        )
    group.add_argument("--fleet-port", type=int, default=7069, metavar="PORT", help="of the coordinator, where it is started (%(default)s)")
    group.add_argument(
        "--scaling-listen", default="", metavar="ADDRESS", help="where `outrider scale` is answered (a unix socket of this user's alone)"
    )


def check_no_ray_options(args: argparse.Namespace) -> None:
    """Whoever gives one without --ray would get something else than asked for. Raises InvalidRequest naming the first that was given."""
    parser = argparse.ArgumentParser(add_help=False)
    add_ray_options(parser)
    for name, default in vars(parser.parse_args([])).items():
        if getattr(args, name) != default:
            raise InvalidRequest(f"--{name.replace('_', '-')}", "belongs to a fleet under Ray; give --ray too, or leave it out")


def run_ray(args: argparse.Namespace) -> int:
    """Start, print who is where, wait. Exit code 0 after Ctrl-C or SIGTERM, 1 when the gateway or this node was lost for good."""
    from outrider.coordinator.ray_deployment import RayDeployment

    console, progress = make_console(), make_console(stderr=True)
    spec, share = ray_spec(args), ray_share(args)
    check_free({"--listen": (args.listen,)})
    stopping = threading.Event()
    with progress.status("starting Ray, the coordinator, replicas and the gateway ..."):
        deployment = RayDeployment(spec, share)
    with deployment:
        addresses = {"coordinator": deployment.coordinator, **deployment.addresses, "gateway": deployment.gateway}
        console.print(endpoints(addresses, deployment.metrics, deployment.start_s))
        console.print(f"try: outrider generate --gateway {deployment.gateway} --chat 'What is 12 times 34?'", markup=False)
        console.print(f"more or fewer replicas: outrider scale --at {deployment.scaling} --verifiers N --drafters N", markup=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        is_lost = watch(deployment, stopping, progress)
        progress.print("stopping: requests drain first ...")
    return 1 if is_lost else 0


def watch(deployment: RayDeployment, stopping: threading.Event, progress: Console) -> bool:
    """Tell what becomes of every process, until stopping is set, or until the gateway is lost for good, or the cluster has given this
    node up (True): then only a new node can bring its replicas back, which is for whoever started the first."""
    told: dict[str, str] = {}
    while not stopping.wait(WATCH_INTERVAL_S):
        report = deployment.gateway_report
        _tell_news(progress, told, "gateway", _told(report))
        if report.has_ended:
            progress.print(report.problem, markup=False)
            return True
        is_silent = False
        for replica in deployment.replicas:
            if stopping.is_set():
                return False  # those that are silent take their time, each of them
            try:
                news = _told(replica.report(REPORT_TIMEOUT_S))
            except StartFailed as error:
                news, is_silent = str(error), True
            _tell_news(progress, told, replica.replica_id, news)
        if is_silent and deployment.is_cut_off:
            progress.print(CUT_OFF, markup=False)
            return True
    return False


def ray_share(args: argparse.Namespace) -> RayShare:
    """What this machine gives. Raises InvalidRequest naming an option."""
    from outrider.coordinator.replica_plan import RayShare

    return RayShare(
        address=args.ray_address,
        node_ip=args.ray_node_ip,
        num_verifiers=args.verifiers,
        num_drafters=args.drafters,
        verifier_cpus=args.verifier_cpus,
        verifier_gpus=args.verifier_gpus,
        drafter_cpus=args.drafter_cpus,
        drafter_gpus=args.drafter_gpus,
        verifier_resources=resources_from("--verifier-resources", args.verifier_resources),
        drafter_resources=resources_from("--drafter-resources", args.drafter_resources),
        fleet_port=args.fleet_port,
        scaling_listen=args.scaling_listen,
    )


def ray_spec(args: argparse.Namespace) -> DeploymentSpec:
    """The deployment the options describe. Raises InvalidRequest naming an option that is wrong with --ray."""
    from outrider.coordinator.ray_deployment import MAX_REPLICAS
    from outrider.coordinator.replica_plan import FIRST_REPLICA_METRICS

    if args.pair == TOGETHER:
        raise InvalidRequest("--pair", "with --ray, verifiers and drafters are processes of their own; leave it out")
    if args.gateway_process == TOGETHER:
        raise InvalidRequest("--gateway-process", "with --ray, the gateway serves every verifier and is a process of its own; leave it out")
    if args.lent_threads:
        raise InvalidRequest("--lent-threads", "with --ray, nobody knows whose drafter is idle during a verifier's step; leave it out")
    if args.pin:
        raise InvalidRequest("--pin", "with --ray, replicas come and go, and none has cores of its own; leave it out")
    for flag, count in (("--verifiers", args.verifiers), ("--drafters", args.drafters)):
        if not 0 <= count <= MAX_REPLICAS:
            raise InvalidRequest(flag, f"must be in [0, {MAX_REPLICAS}], got {count}")
    for role in ("verifier", "drafter"):
        _check_cpus(f"--{role}-cpus", getattr(args, f"{role}_cpus"))
        _check_amount(f"--{role}-gpus", getattr(args, f"{role}_gpus"))
        resources_from(f"--{role}-resources", getattr(args, f"{role}_resources"))
    last = MAX_PORT + 1 - FIRST_REPLICA_METRICS - args.verifiers - args.drafters
    if args.metrics_port is not None and not 1 <= args.metrics_port <= last:
        raise InvalidRequest("--metrics-port", f"must be in [1, {last}], a port for each process from there on; got {args.metrics_port}")
    if not args.verifiers and not args.ray_address:
        raise InvalidRequest("--verifiers", "is 0, and a fleet of this machine alone has no others")
    if args.scaling_listen:
        check_address("--scaling-listen", args.scaling_listen)
    if not 1 <= args.fleet_port <= 65_535:
        raise InvalidRequest("--fleet-port", f"must be in [1, 65535], got {args.fleet_port}")
    taken = {"--listen": args.listen, "--fleet-port": f":{args.fleet_port}"}
    check_metrics_apart(args.metrics_port, FIRST_REPLICA_METRICS + args.verifiers + args.drafters, taken)
    args.pair = APART
    spec = spec_from(args, args.listen)
    return replace(spec, threads=_shared_out(spec.threads, args))


def _shared_out(plan: ThreadPlan, args: argparse.Namespace) -> ThreadPlan:
    """The plan of one verifier and one drafter, shared out among all of this machine, at least one thread each; what was given by hand is
    for each as it is. Cores are lent between one verifier and its drafter; here nobody knows who drafts for whom."""
    verifier = args.verifier_threads or max(1, plan.verifier // max(1, args.verifiers))
    drafter = args.drafter_threads or max(1, plan.drafter // max(1, args.drafters))
    return replace(plan, verifier=verifier, drafter=drafter, lent=0)


def resources_from(flag: str, given: Sequence[str]) -> dict[str, float]:
    """Amounts by name, of NAME=N. Raises InvalidRequest naming the option."""
    found: dict[str, float] = {}
    for text in given:
        name, _, amount = text.partition("=")
        if not name or name in found or name in _OWN_OPTIONS:
            raise InvalidRequest(flag, f"{text!r}: a name once, and {' and '.join(_OWN_OPTIONS)} have options of their own")
        try:
            found[name] = float(amount)
        except ValueError:
            raise InvalidRequest(flag, f"{text!r} is not NAME=N, N a number") from None
        _check_amount(flag, found[name], least=MIN_RESOURCE)
    return found


def _check_cpus(flag: str, amount: float) -> None:
    """Of these Ray takes one and a half, too."""
    if not 0.0 <= amount <= MAX_AMOUNT:
        raise InvalidRequest(flag, f"must be in [0, {MAX_AMOUNT:g}], got {amount:g}")


def _check_amount(flag: str, amount: float, least: float = 0.0) -> None:
    """As Ray has it: a part of one, or whole ones."""
    if not least <= amount <= MAX_AMOUNT or (amount > 1 and amount != int(amount)):
        raise InvalidRequest(flag, f"must be in [{least:g}, {MAX_AMOUNT:g}] and whole above 1, got {amount:g}")


def _told(report: SupervisionReport) -> str:
    if not report.exit_codes:
        return ""
    state = "ended for good" if report.has_ended else f"started for the {report.num_starts}. time"
    return f"{state}; exit codes {', '.join(map(str, report.exit_codes))}"


def _tell_news(progress: Console, told: dict[str, str], replica_id: str, news: str) -> None:
    if news != told.get(replica_id, ""):
        told[replica_id] = news
        progress.print(f"{replica_id}: {news or 'is well'}", markup=False)


def endpoints(addresses: Mapping[str, str], metrics: Mapping[str, str], start_s: float) -> Table:
    """Who listens where, and is scraped where if any is, by name."""
    table = Table("service", "address", *(("metrics",) if metrics else ()), title=f"up in {start_s:.1f} s")
    for name, address in addresses.items():
        table.add_row(name, address, *((metrics.get(name, ""),) if metrics else ()))
    return table
