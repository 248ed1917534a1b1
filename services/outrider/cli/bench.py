"""`outrider bench`: speed against transformers, OpenVINO and plain decoding, identity of tokens, cost of steps, policies, placements.

The drivers live in bench/outrider_bench, beside the code they measure but not in it; this module only declares their options and
hands over. Must not measure anything itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
import tempfile
from pathlib import Path

from outrider.cli.deployment_options import DEFAULT_DRAFT, DEFAULT_TARGET, model_path
from outrider.cli.dtype_choice import AUTO_DTYPE, BFLOAT16, FLOAT32, auto_dtype
from outrider.engine.config import SHORTLIST_HELP, shortlist_from
from outrider.errors import InvalidRequest
from outrider.launch import numbers

BENCH_ROOT = Path(__file__).resolve().parents[3] / "bench"
DRIVERS = (
    "speed", "peers", "identity", "steps", "rounds", "network", "machines", "load", "gpu", "simulate", "chaos", "fleet", "grid", "plots",
)  # fmt: skip
FIXED_POLICIES = (
    "plain",
    *(f"serial:{length}" for length in (1, 2, 4, 6, 8, 12, 16)),
    "pearl",
    *(f"pearl:{length}" for length in (2, 4, 8)),
)
# Of replayed drafts: what the reference draft's second choice does where its first is wrong, on prose at T = 0.8 (bench/LOG.md).
HEDGE_ACCEPTANCE = 0.35
TASKS = ("arithmetic", "copying", "prose")
EVERY_TASK = list(TASKS)  # this very list, where none is named
ON_A_CARD = ("gpu", "peers")
FROM_FILES = ("speed", "peers", "machines", "network", "load")
WITH_SHORTLIST = ("speed", "peers")
AS_SERVED = ("speed", "network", "machines", "load", "grid")  # in the dtype that `outrider up` would take
TARGET_SIZES = ("tiny", "1b", "3b", "8b")
MADE_FAMILIES = ("qwen3", "mistral", "gpt_neox", "widened", "spread", "enlarged")
_SEED, _SOME = numbers.whole_number(0, numbers.MAX_INT64), numbers.whole_number(0)
_COUNT = numbers.whole_number(1)  # of what is measured: of nothing there is no median
_EXAMPLES = """examples:
  outrider bench                              everything: about twenty minutes on two cores
  outrider bench --quick                      few prompts, no tuning, no two machines: about four minutes
  outrider bench --tasks copying --repeats 5 --out copying.md
  outrider bench --prompts-from mt_bench.jsonl code.jsonl    your own prompts, a task of each file
  outrider bench --made qwen3                 the same tables for a pair of another architecture, made on the spot (its text is gibberish)
  outrider bench --made widened               the reference pair with a target ten times as large: a step of many milliseconds, real text
  outrider bench --made spread --draft-shortlist off   the same pair with a vocabulary of 131,072 ids, each of which may be guessed
  outrider bench peers --out peers.md         the same prompts through OpenVINO GenAI too: about half an hour (make bench-peers)
  outrider bench peers --device cuda          the same on a CUDA card, without OpenVINO, which does not compute there
  outrider bench steps                        what a step of the target costs by rows, context and cache
  outrider bench rounds                       what rounds, messages and requests cost beside the model: microseconds and calls by part
  outrider bench identity                     are the tokens those of plain decoding, and of an independent oracle?
  outrider bench network                      drafter and verifier a core each, 0 to 20 ms apart: adaptive against fixed policies
  outrider bench machines                     gateway, verifier and draft model as three machines, 0 to 20 ms apart: x plain
  outrider bench load                         1 to 64 requests at a time, and up and down, with a useful and a useless drafter
  outrider bench gpu --size 8b                the full stack on a CUDA card: a large random target, replayed drafts (make bench-gpu)
  outrider bench gpu --device cpu --size tiny --quick    the same code without a card, for its own sake
  outrider bench chaos                        200 faults under 16 requests at a time: nothing lost, nothing different? (make chaos)
  outrider bench simulate                     is a policy ever slower than the best fixed one? worlds on virtual time
  outrider bench simulate --quick --policies adaptive serial:16
  outrider bench simulate --quick --wide      on processors too: every row costs something, drafter and verifier share cores
  outrider bench grid --made widened          1, 2 drafters x 1, 2 verifiers as real processes, measured and predicted
  outrider bench fleet --quick                placement by the coordinator against simpler ones: a simulated fleet (all of it: minutes)
  outrider bench fleet --actor                what a placement takes over gRPC at a real coordinator of 1,000 verifiers and 2,000 drafters
  outrider bench plots bench/RESULTS.md       draws the pictures that a page links to from the tables below them
The last line is RESULT {json}."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `outrider bench`."""
    parser = subparsers.add_parser(
        "bench",
        help="speed against transformers and OpenVINO, identity of tokens, cost of steps, policies far apart, loaded or simulated, fleets",
        description="Measure the whole stack on this machine: same prompts, repetitions in rotated order, medians.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", choices=DRIVERS, default="speed", help="what to measure (%(default)s)")
    parser.add_argument("files", nargs="*", type=Path, metavar="PAGE", help="plots: whose pictures are drawn from its tables")
    parser.add_argument("--target", default=DEFAULT_TARGET, metavar="MODEL", help="the large model (%(default)s)")
    parser.add_argument("--draft", default=DEFAULT_DRAFT, metavar="MODEL", help="the small model (%(default)s)")
    parser.add_argument(
        "--made", choices=MADE_FAMILIES, metavar="FAMILY",
        help=f"instead of --target and --draft: a pair made on the spot, {', '.join(MADE_FAMILIES)}; random weights, useful drafts "
        "(widened: the reference pair, its target ten times as large; spread: the same with a vocabulary 64 times as large; enlarged: "
        "that in the shapes of SmolLM2-360M and 135M)",
    )  # fmt: skip
    parser.add_argument("--draft-shortlist", default="auto", metavar="IDS", help=f"{', '.join(WITH_SHORTLIST)}: {SHORTLIST_HELP}")
    parser.add_argument(
        "--dtype",
        default=AUTO_DTYPE,
        choices=(AUTO_DTYPE, FLOAT32, BFLOAT16),
        help="of our models; transformers takes that or float32, whichever is quicker; auto: what `outrider up` takes, in "
        f"{', '.join(AS_SERVED)}, and float32 in the others (%(default)s)",
    )
    parser.add_argument(
        "--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"], metavar="DTYPE",
        help="identity: which dtypes (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--numerics", nargs="+", choices=("invariant", "fast"), default=["invariant", "fast"], metavar="NAME",
        help="identity: in which numerics (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, default=EVERY_TASK, metavar="TASK",
        help="speed, peers, machines: which of the reference tasks (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--prompts-from", nargs="+", type=Path, default=[], metavar="FILE",
        help=f"{', '.join(FROM_FILES)}: your prompts in place of the reference tasks, each file a task: .jsonl (a record a line, as "
        "MT-Bench, Spec-Bench, GSM8K, HumanEval or ShareGPT have them), .json (a list) or .txt (a prompt a line); a quarter of each file "
        "is kept apart for choosing settings, prompts that leave no room for --max-tokens are passed over",
    )  # fmt: skip
    parser.add_argument(
        "--prompt-field",
        metavar="NAME",
        help="of those records, what holds the text (the first there is of prompt, turns, question, ...)",
    )
    parser.add_argument("--repeats", type=_COUNT, metavar="N", help="speed, peers: repetitions of each cell, for medians")
    parser.add_argument("--prompts", type=_COUNT, metavar="N", help="speed, peers: prompts of each task; identity: requests")
    parser.add_argument(
        "--prompt-seed", type=_SEED, default=23, metavar="N", help="of the prompts that are reported; others tune (%(default)s)"
    )
    parser.add_argument("--max-tokens", type=_COUNT, metavar="N", help="most tokens of an answer")
    parser.add_argument("--quick", action="store_true", help="fewer prompts and repetitions, no tuning")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="also write the tables as markdown, and a plot beside it where matplotlib is"
    )
    _add_network(parser.add_argument_group("network, machines and load (network and load replay drafts)"))
    _add_gpu(parser.add_argument_group("gpu (it replays drafts too), and peers on a card"))
    _add_simulation(parser.add_argument_group("simulate"))
    chaos = parser.add_argument_group("chaos")
    chaos.add_argument("--faults", type=_COUNT, metavar="N", help="how many (200; --quick: 16)")
    chaos.add_argument("--fault-seed", type=_SEED, default=1, metavar="N", help="of the schedule (%(default)s)")
    parser.add_argument(
        "--machines", choices=("auto", "namespaces", "loopback"), default="auto",
        help="chaos, machines: network namespaces where permitted, or loopback addresses (%(default)s)",
    )  # fmt: skip
    _add_fleet(parser.add_argument_group("fleet"))
    parser.set_defaults(run=run)


def _add_network(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--delays-ms", nargs="+", type=_not_negative, metavar="MS", help="network, machines: one way (0 1 5 20; --quick: 5)")
    group.add_argument(
        "--replay-acceptances",
        nargs="+",
        type=_probability,
        metavar="A",
        help="network, load, gpu: of a drafted token (0.5 0.7 0.9; --quick: 0.7; load: 0.9 0.7 0; 0.7 0; gpu: 0.6 0.8 0.9; 0.8)",
    )
    group.add_argument(
        "--requests",
        nargs="+",
        type=int,
        metavar="N",
        help="load, gpu: at a time (1 4 16 64; --quick: 1 8; gpu: 1 16; 1 4); grid: one number (4; --quick: 2)",
    )
    group.add_argument(
        "--replay-hedge-acceptance",
        type=_probability,
        default=HEDGE_ACCEPTANCE,
        metavar="H",
        help="of the second choice where the first is wrong; 0: none is sent (%(default)s, as the reference draft's on prose at T = 0.8)",
    )
    group.add_argument("--draft-us", type=_SOME, default=200, metavar="US", help="what drafting a token takes (%(default)s)")


def _add_gpu(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--size", choices=TARGET_SIZES, default="8b", metavar="SIZE",
        help=f"of the random target, written once into the cache folder: {', '.join(TARGET_SIZES)} (%(default)s: 16 GB)",
    )  # fmt: skip
    group.add_argument("--device", choices=("cuda", "cpu"), help="gpu: where the target runs (cuda); peers: where all models run (cpu)")
    group.add_argument(
        "--no-generate", action="store_true", help="gpu: leave transformers' generate out, whose compilation takes minutes; ours alone"
    )
    group.add_argument(
        "--draft-ms", type=_not_negative, metavar="MS",
        help="what drafting a token takes (what a model of a twentieth of the target's bytes would at the measured speed of copies)",
    )  # fmt: skip


def _add_simulation(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--policies", nargs="+", default=["adaptive"], metavar="NAME", help="judged policies, or name:length; grid: one (%(default)s)"
    )
    group.add_argument("--fixed", nargs="+", default=list(FIXED_POLICIES), metavar="NAME", help="the yardstick (%(default)s)")
    group.add_argument(
        "--acceptances", nargs="+", metavar="A", help="axis: 0.8; 0.9>0.2 changes mid-answer; 0.9|0.3 by session; 0.9/0.5 by depth"
    )
    group.add_argument("--cost-ratios", nargs="+", type=_positive, metavar="C", help="axis: a target step over a draft step")
    group.add_argument("--delays", nargs="+", type=_not_negative, metavar="D", help="axis: one way, in target steps")
    group.add_argument("--sessions", nargs="+", type=int, metavar="N", help="axis: requests at a time; fleet: one number, requests in all")
    group.add_argument("--curves", nargs="+", metavar="NAME", help="axis: flat, knee, measured, or file with --curve")
    group.add_argument("--shared", nargs="+", type=_positive, metavar="X", help="axis: how much longer each takes while both run")
    group.add_argument("--wide", action="store_true", help="four times the cells: knee and measured curves, cores apart and shared (x2)")
    group.add_argument("--unsure", nargs="+", metavar="W/R", help="axis: how often the drafter stops before a wrong / a right guess")
    group.add_argument(
        "--hedged", nargs="+", type=_not_negative, metavar="H", help="axis: how often the second choice is right where the first is wrong"
    )
    group.add_argument("--curve", type=Path, metavar="FILE", help='measured: {"verify_us": {"1": us, ...}, "draft_us": {...}} by rows')
    group.add_argument("--target-ms", type=_positive, default=6.0, metavar="MS", help="a target step of one row (%(default)s)")
    group.add_argument("--message-us", type=_SOME, default=130, metavar="US", help="what a message costs beside the delay (%(default)s)")
    group.add_argument("--step-overhead-us", type=_SOME, default=200, metavar="US", help="of a step, beside the target (%(default)s)")
    group.add_argument("--floor", type=_positive, default=0.97, metavar="X", help="least ratio of a judged policy (%(default)s)")
    group.add_argument("--share", type=_positive, metavar="X", help="of the usual number of tokens a cell")
    group.add_argument("--drafter", choices=("chain", "session"), default="chain", help="reduced or real sessions (%(default)s)")
    group.add_argument("--sim-seed", type=_SEED, default=1, metavar="N", help="of the luck of drafts; fleet: of everything (%(default)s)")
    group.add_argument("--jobs", type=_COUNT, metavar="N", help="processes (as many as there are cores)")


def _add_fleet(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--verifiers", type=int, metavar="N", help="in the simulated fleet (1000; --quick: 64)")
    group.add_argument("--drafters", type=int, metavar="N", help="in the simulated fleet (2000; --quick: 128)")
    group.add_argument("--actor", action="store_true", help="place at a real coordinator process that this fleet announces itself to")
    group.add_argument("--live", type=int, metavar="N", help="with --actor: placements that are not finished yet (1000)")
    group.add_argument("--ray", action="store_true", help="with --actor: then at the coordinator as a Ray actor too (extra `ray`)")


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _probability(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not a probability")
    return value


def _not_negative(text: str) -> float:
    return 0.0 if float(text) == 0.0 else _positive(text)


def _device(what: str, device: str | None) -> str:
    if device == "cuda" and what not in ON_A_CARD:
        raise InvalidRequest("--device", f"{what} runs on the processor only; {' and '.join(ON_A_CARD)} take cuda")
    return device or ("cuda" if what == "gpu" else "cpu")


def _check_shortlist(args: argparse.Namespace) -> None:
    shortlist_from("--draft-shortlist", args.draft_shortlist)
    if args.draft_shortlist != "auto" and args.what not in WITH_SHORTLIST:
        raise InvalidRequest("--draft-shortlist", f"{args.what} leaves it at auto; {' and '.join(WITH_SHORTLIST)} take others")


def _read_prompts(args: argparse.Namespace) -> None:
    """The user's files, whose tasks take the place of the reference tasks."""
    if args.prompts_from and args.what not in FROM_FILES:
        raise InvalidRequest("--prompts-from", f"{args.what} makes its own prompts; {', '.join(FROM_FILES)} take files")
    if args.prompt_field and not args.prompts_from:
        raise InvalidRequest("--prompt-field", "says where the text is in the files of --prompts-from, and there are none")
    if args.prompts_from and args.tasks is not EVERY_TASK:
        raise InvalidRequest("--tasks", "are the reference tasks, whose place the files of --prompts-from take; name one of the two")
    args.prompt_files = importlib.import_module("outrider_bench.prompt_files").read_files(args.prompts_from, args.prompt_field)
    args.tasks = list(args.prompt_files.tasks) or args.tasks


def _check_out(out: Path | None) -> None:
    """A table that cannot be written is known before it takes minutes to measure."""
    if out is None:
        return
    if not out.parent.is_dir():
        raise InvalidRequest("--out", f"there is no folder {out.parent}")
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise InvalidRequest("--out", f"{out} cannot be written")


def run(args: argparse.Namespace) -> int:
    """Hand over to the driver; its exit code is 0 when every answer that must be identical was."""
    if importlib.util.find_spec("outrider_bench") is None:
        if not BENCH_ROOT.is_dir():
            raise InvalidRequest("bench", "the drivers are not installed; run it from a checkout of the repository")
        sys.path.insert(0, str(BENCH_ROOT))
    if args.files and args.what != "plots":
        raise InvalidRequest("bench", f"{args.what} takes no further word, got {args.files[0]}")
    _check_out(args.out)
    args.device = _device(args.what, args.device)
    _check_shortlist(args)
    importlib.import_module("outrider_bench.prompts").check_prompt_seed(args.prompt_seed)
    _read_prompts(args)
    driver = importlib.import_module(f"outrider_bench.{args.what}")
    with tempfile.TemporaryDirectory(prefix="outrider-made-") as folder:
        if args.made is not None:
            made_pair = importlib.import_module("outrider_bench.made_pair")
            args.target, args.draft = made_pair.make(args.made, Path(folder))
        if args.dtype == AUTO_DTYPE:
            models = [model_path(args.target), model_path(args.draft)] if args.what in AS_SERVED else []
            args.dtype = auto_dtype(models, ["full"] * 2) if models else FLOAT32
        code: int = driver.run(args)
    return code
