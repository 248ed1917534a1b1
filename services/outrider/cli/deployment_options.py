"""Command-line options that describe a deployment on this machine, and the DeploymentSpec they describe.

Knows model names, thread plans and argparse. Must not start anything. TARGET and DRAFT of the environment are the defaults, so that
`make run TARGET=...` needs no quoting.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from outrider.cli.dtype_choice import AUTO_DTYPE, BFLOAT16, DTYPE_HELP, FLOAT32, auto_dtype
from outrider.engine.config import DRAFT_WEIGHTS_HELP, SHORTLIST_HELP, shortlist_from
from outrider.errors import InvalidRequest
from outrider.exposition.options import MAX_PORT
from outrider.launch import numbers
from outrider.launch.deployment import METRICS_PLACES, DeploymentSpec
from outrider.launch.threads import FEW_CORES, ThreadPlan, pinned, plan_threads, takes_turns, usable_cores
from outrider.session.pacing.default import DEFAULT_PACING
from outrider_kernels.native_library import find_compiler
from outrider_kernels.thin_team import takes_bfloat16
from outrider_models.paths import MODEL_NAMES, model_dir
from verifier_service.sharing_settings import MEMORY, OFF, URL_VARIABLE, SharingSettings

DEFAULT_TARGET = "ref-large"
DEFAULT_DRAFT = "ref-small"
NO_DRAFT = "none"
NO_LOOKUP = "--no-lookup"  # the verifier's own option
IN_TURNS = "serial"  # whose plan of threads gives verifier and drafter every core in turn
# Each service, what lists its options, and one of them.
_SERVICE_ARGUMENTS = (
    ("verifier", "verifier_service", "--max-prefill-stretch=2"),
    ("drafter", "drafter_service", "--max-sessions=64"),
    ("gateway", "outrider.gateway", "--failover-timeout-s=120"),
)
AUTO, TOGETHER, APART = "auto", "together", "apart"


def add_deployment_options(parser: argparse.ArgumentParser) -> None:
    """Which models are served, and how."""
    models = parser.add_argument_group("models (a folder, a hub name, or ref-large, ref-medium, ref-small)")
    models.add_argument(
        "--target", default=os.environ.get("TARGET") or DEFAULT_TARGET, metavar="MODEL", help="the large model (%(default)s)"
    )
    models.add_argument(
        "--draft", default=os.environ.get("DRAFT") or DEFAULT_DRAFT, metavar="MODEL", help="the small model, or none (%(default)s)"
    )
    models.add_argument("--dtype", default=AUTO_DTYPE, choices=(AUTO_DTYPE, FLOAT32, BFLOAT16, "float16"), help=DTYPE_HELP)
    whole = "int8: keep the target's matrices as int8, a quarter of the memory and another model (%(default)s)"
    models.add_argument("--target-weights", default="full", choices=("full", "int8"), help=whole)
    models.add_argument("--draft-weights", default="auto", choices=("auto", "full", "int8"), help=DRAFT_WEIGHTS_HELP)
    models.add_argument("--draft-shortlist", default="auto", metavar="IDS", help=SHORTLIST_HELP)
    models.add_argument(
        "--numerics", default="fast", choices=("fast", "invariant"), help="invariant: bit-exact whatever shares the batch (%(default)s)"
    )
    add_process_options(parser)


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """How the machine is shared among the processes."""
    group = parser.add_argument_group("processes")
    group.add_argument("--pacing", default=DEFAULT_PACING, metavar="NAME", help="adaptive, plain, serial, pearl, lookup (%(default)s)")
    group.add_argument(
        "--verifier-threads",
        type=numbers.whole_number(1, numbers.MAX_THREADS),
        metavar="N",
        help="compute threads of the verifier (planned from cores and pacing; with --ray of each of them)",
    )
    group.add_argument(
        "--drafter-threads",
        type=numbers.whole_number(1, numbers.MAX_THREADS),
        metavar="N",
        help="compute threads of the drafter (planned from cores and pacing; with --ray of each of them)",
    )
    group.add_argument(
        "--lent-threads",
        type=numbers.whole_number(0, numbers.MAX_THREADS),
        metavar="N",
        help="further threads of the verifier for steps during which the drafter is idle; 0: a fixed plan by pacing (the drafter's; "
        "with --ray none)",
    )
    group.add_argument(
        "--pair",
        choices=(AUTO, TOGETHER, APART),
        default=AUTO,
        help="together: verifier and drafter in one process, in turns, each with every core; apart: a process each "
        f"(auto: together with up to {FEW_CORES} cores, unless the pacing overlaps them or threads are given)",
    )
    group.add_argument(
        "--gateway-process",
        choices=(AUTO, TOGETHER, APART),
        default=AUTO,
        help="together: the gateway is part of the verifier's process, and no message travels between them; apart: a process of its own "
        f"(auto: together with up to {FEW_CORES} cores, unless cores are pinned; with --ray always apart)",
    )
    group.add_argument(
        "--metrics-port",
        type=int,
        metavar="BASE",
        help="let Prometheus scrape the gateway at 127.0.0.1:BASE, the verifier at the next port, the drafter at the one after (off); "
        "with --ray the coordinator at the next port, then drafters and verifiers, at this machine's address in a cluster that is joined",
    )
    group.add_argument(
        "--shared-ngrams",
        choices=(OFF, MEMORY),
        default=OFF,
        help="memory: pacings that look up (lookup, adaptive) guess from earlier answers to the same tenant too (%(default)s)",
    )
    group.add_argument(
        "--redis-url",
        default=os.environ.get(URL_VARIABLE, ""),
        metavar="URL",
        help=f"share such guesses with other verifiers through this Redis: redis://HOST:PORT (${URL_VARIABLE} hides a password)",
    )
    group.add_argument("--pin", action="store_true", help="pin verifier and drafter to cores of their own")
    for service, module, example in _SERVICE_ARGUMENTS:
        group.add_argument(
            f"--{service}-arg",
            action="append",
            default=[],
            metavar="ARG",
            help=f"passed on to the {service}, for example --{service}-arg={example}; repeatable (`python -m {module} --help` lists them)",
        )


def model_path(name: str) -> str:
    """Folder of a reference model or of any model here; any other name is left for the hub. Raises InvalidRequest with the remedy."""
    folder = Path(model_dir(name)) if name in MODEL_NAMES else Path(name)
    if folder.is_dir():
        if not any(folder.glob("*.safetensors")):
            remedy = "train it with `make models`" if name in MODEL_NAMES else "only safetensors are loaded: convert the weights"
            raise InvalidRequest("model", f"{folder} has no *.safetensors file; {remedy}")
        return str(folder)
    if name in MODEL_NAMES or name.startswith((".", "/", "~")):
        raise InvalidRequest("model", f"there is no folder {folder}; give a folder with config.json, tokenizer.json and *.safetensors")
    return name


def dtype_from(args: argparse.Namespace) -> str:
    """What is computed in; raises InvalidRequest or ModelRefused for a model that is nowhere."""
    if args.dtype != AUTO_DTYPE:
        return str(args.dtype)
    kept = {args.target: args.target_weights} | ({} if args.draft == NO_DRAFT else {args.draft: args.draft_weights})
    return auto_dtype([model_path(model) for model in kept], list(kept.values()))


def threads_from(args: argparse.Namespace) -> ThreadPlan:
    """The planned threads, with what the command line overrides."""
    cores = usable_cores()
    if is_together(args):
        plan = plan_threads(len(cores), IN_TURNS)
        return replace(plan, verifier=args.verifier_threads or plan.verifier, drafter=args.drafter_threads or plan.drafter)
    plan = plan_threads(len(cores), args.pacing, lends=_lends(args))
    lent = plan.lent if args.lent_threads is None else args.lent_threads
    plan = replace(plan, verifier=args.verifier_threads or plan.verifier, drafter=args.drafter_threads or plan.drafter, lent=lent)
    return pinned(plan, cores) if args.pin else plan


def is_together(args: argparse.Namespace) -> bool:
    """Whether verifier and drafter are one process. Raises InvalidRequest where that contradicts another option."""
    shares = args.pin or args.lent_threads
    if args.pair == TOGETHER:
        if args.draft == NO_DRAFT:
            raise InvalidRequest("--pair", "there is no drafter to be together with; leave it out")
        if shares:
            raise InvalidRequest("--pair", "together, both have every core in turn; leave out --pin and --lent-threads")
        return True
    if args.pair == APART or args.draft == NO_DRAFT or shares or args.verifier_threads or args.drafter_threads:
        return False
    num_cores = len(usable_cores())
    return args.lent_threads is None and num_cores <= FEW_CORES and takes_turns(num_cores, args.pacing)


def is_gateway_inside(args: argparse.Namespace) -> bool:
    """Whether the gateway is part of the verifier's process."""
    if args.gateway_process == AUTO:
        return len(usable_cores()) <= FEW_CORES and not args.pin
    return bool(args.gateway_process == TOGETHER)


def _lends(args: argparse.Namespace) -> bool:
    """Whether the drafter's cores are to be lent: unless the command line says so, only where it leaves the plan to us.

    In `invariant` numerics only the compiled operations give the same bits on any number of threads.
    """
    if args.draft == NO_DRAFT or args.lent_threads is not None:
        return bool(args.draft != NO_DRAFT and args.lent_threads)
    if args.pin or args.verifier_threads or args.drafter_threads:
        return False
    dtype = dtype_from(args)
    if dtype == BFLOAT16:
        is_compiled = takes_bfloat16() and args.target_weights == "full"
    else:
        is_compiled = dtype == FLOAT32 and find_compiler() is not None
    return args.numerics != "invariant" or is_compiled


def _metrics_port(base: int | None) -> int | None:
    if base is not None and not 1 <= base <= MAX_PORT + 1 - len(METRICS_PLACES):
        raise InvalidRequest("--metrics-port", f"must be in [1, {MAX_PORT + 1 - len(METRICS_PLACES)}], got {base}")
    return base


def check_metrics_apart(base: int | None, num_ports: int, taken: Mapping[str, str]) -> None:
    """Raise InvalidRequest where one of the ports from base on is one that this machine is to listen at anyway, by option: a service that
    found it taken would say so when it has loaded its model. An address of another host is taken for one of ours: ports are plenty."""
    for option, address in taken.items():
        port = "" if address.startswith("unix:") else address.rpartition(":")[2]
        if base is not None and port and base <= int(port) < base + num_ports:
            raise InvalidRequest("--metrics-port", f"{base} to {base + num_ports - 1} are scraped, and {option} {address} is among them")


def _sharing_options(args: argparse.Namespace) -> tuple[str, ...]:
    """The verifier's options of what it shares, but for the URL, which may hold a password."""
    return () if args.shared_ngrams == OFF else ("--shared-ngrams", args.shared_ngrams)


def _sharing_environment(args: argparse.Namespace) -> dict[str, str]:
    """The URL where neither logs nor other users of the machine see it. It is said to services even if they would inherit it, for those
    under Ray inherit what Ray was started with. Raises InvalidRequest for a URL that cannot be, without it."""
    lookup = NO_LOOKUP not in args.verifier_arg
    SharingSettings(args.shared_ngrams != OFF, args.redis_url).check(lookup=lookup)
    return {URL_VARIABLE: args.redis_url} if args.redis_url or URL_VARIABLE in os.environ else {}


def spec_from(args: argparse.Namespace, listen: str | None) -> DeploymentSpec:
    """The deployment the options describe; raises InvalidRequest for models that cannot be served."""
    environment = _sharing_environment(args)
    if args.draft == NO_DRAFT and args.draft_weights == "int8":
        raise InvalidRequest("--draft-weights", f"there is no draft model whose weights could be {args.draft_weights}; leave it out")
    for option in ("--drafter-threads", "--drafter-arg"):
        if args.draft == NO_DRAFT and getattr(args, option.removeprefix("--").replace("-", "_")):
            raise InvalidRequest(option, "there is no draft model that would be started with it; leave it out")
    check_metrics_apart(args.metrics_port, len(METRICS_PLACES), {} if listen is None else {"--listen": listen})
    shortlist_from("--draft-shortlist", args.draft_shortlist)
    if args.draft == NO_DRAFT and args.draft_shortlist.isdecimal():
        raise InvalidRequest("--draft-shortlist", "there is no draft model whose guesses could be chosen among fewer ids; leave it out")
    return DeploymentSpec(
        target=model_path(args.target),
        draft=None if args.draft == NO_DRAFT else model_path(args.draft),
        pacing=args.pacing,
        threads=threads_from(args),
        dtype=dtype_from(args),
        target_weights=args.target_weights,
        draft_weights=args.draft_weights,
        draft_shortlist=args.draft_shortlist,
        numerics=args.numerics,
        listen=listen,
        together=is_together(args),
        gateway_inside=is_gateway_inside(args),
        drafter_extra=tuple(args.drafter_arg),
        verifier_extra=(*_sharing_options(args), *args.verifier_arg),
        gateway_extra=tuple(args.gateway_arg),
        environment=environment,
        metrics_port=_metrics_port(args.metrics_port),
    )
