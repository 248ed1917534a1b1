"""`outrider run` (what `make run` calls): up, one answer with drafts, the same request decoded plainly, a table of both, down again.

The two requests differ in `draft.off` only and share a seed, so their tokens must be the same. Both are asked several times in turn
after a warm-up, and medians are compared; the first drafted answer is the one streamed to the terminal.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from outrider.cli.connection import CollectedAnswer, Connection
from outrider.cli.console import make_console, print_line
from outrider.cli.deployment_options import add_deployment_options, spec_from
from outrider.cli.generate import chat_messages
from outrider.cli.painter import Painter, legend, local_decoder
from outrider.cli.sampling_options import add_sampling_options, given_sampling, sampling_from, sendable
from outrider.cli.starting import endpoint_table, start
from outrider.launch import numbers
from outrider.launch.deployment import Deployment
from outrider.v1 import generation_pb2

DEFAULT_PROMPT = (
    "There are 77 flowers in Balthazar's park. For 5 days, Balthazar uses up 12 flowers a day. He works hard until there are 2 times as "
    "many flowers. On Saturday, Esmeralda brings another 134 flowers. After that, 743 more flowers come in the mail. What is the final "
    "number of flowers?"
)
DEFAULT_SEED = 2026
DEFAULT_MAX_TOKENS = 256
WARM_UP_TOKENS = 24
_EXAMPLES = """examples:
  outrider run                                    the reference pair on an arithmetic problem
  outrider run --prompt "Tell a story about a storm." --temperature 0.8
  outrider run --temperature 0.7 --top-p 0.8 --top-k 20 --repetition-penalty 1.05
  outrider run --target ./my-model --draft ./my-small-model --pacing pearl
The last line is RESULT {json}; the exit code is 1 when the two answers differ."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `outrider run`."""
    parser = subparsers.add_parser(
        "run",
        help="serve a pair, stream one answer, compare with plain decoding",
        description="Start every service, stream one answer, decode the same request without drafts, compare, stop.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--prompt", default=os.environ.get("PROMPT") or DEFAULT_PROMPT, metavar="TEXT", help="what to ask (an arithmetic problem)"
    )
    most = f"most tokens of the answer ({DEFAULT_MAX_TOKENS}, or what the context has room for)"
    parser.add_argument("--max-tokens", type=numbers.whole_number(1, numbers.MAX_UINT32), metavar="N", help=most)
    asked = "times each request is asked, for medians (%(default)s)"
    parser.add_argument("--repeats", type=numbers.whole_number(1), default=3, metavar="N", help=asked)
    add_sampling_options(parser, temperature=0.0, seed=DEFAULT_SEED)
    add_deployment_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 when drafted and plain answers have the same tokens, 1 otherwise."""
    console, progress = make_console(), make_console(stderr=True)
    sendable("--prompt", args.prompt)
    with start(spec_from(args, None), progress) as deployment:
        console.print(endpoint_table(deployment))
        with Connection(deployment.gateway) as gateway:
            drafted, plain = ask_both(gateway, request_from_prompt(args, gateway), args.repeats, console)
        result = compare(drafted, plain)
        console.print(comparison_table(result))
        result |= facts(deployment, args)
    if not result["identical"]:
        progress.print(
            "The answers differ. With --numerics fast a near tie may flip a pick, which is rare; run again with --numerics invariant: "
            "if they still differ, that is a bug."
        )
    print_line("RESULT " + json.dumps(result))
    return 0 if result["identical"] else 1


def request_from_prompt(args: argparse.Namespace, gateway: Connection) -> generation_pb2.GenerateRequest:
    """The request: as a user's message where the model has a chat template, else as text."""
    request = generation_pb2.GenerateRequest(sampling=sampling_from(args))
    info = gateway.model_info()
    if info.has_chat_template:
        request.chat.CopyFrom(chat_messages(args.prompt))
        prompt_ids = gateway.tokenize(chat=request.chat)
    else:
        request.prompt = args.prompt
        prompt_ids = gateway.tokenize(text=args.prompt)
    room = info.max_completion_tokens + 1 - len(prompt_ids)
    request.max_tokens = max(1, min(DEFAULT_MAX_TOKENS, room)) if args.max_tokens is None else args.max_tokens
    return request


def ask_both(
    gateway: Connection, request: generation_pb2.GenerateRequest, repeats: int, console: Console
) -> tuple[list[CollectedAnswer], list[CollectedAnswer]]:
    """The drafted and the plain answers, asked in turn; the first drafted one is streamed to the console."""
    plain_request = without_drafts(request)
    for warm_up in (request, plain_request):
        short = generation_pb2.GenerateRequest()
        short.CopyFrom(warm_up)
        short.max_tokens = min(WARM_UP_TOKENS, request.max_tokens)
        gateway.ask(short)
    painter = Painter(local_decoder(gateway.model_info().target.model))

    def show(event: generation_pb2.GenerateResponse) -> None:
        if event.HasField("delta"):
            console.print(painter.paint(event.delta), soft_wrap=True)

    console.rule("answer")
    drafted, plain = [gateway.ask(request, show)], [gateway.ask(plain_request)]
    console.print()
    console.rule()
    console.print(legend(painter.counts))
    for _ in range(repeats - 1):
        drafted.append(gateway.ask(request))
        plain.append(gateway.ask(plain_request))
    return drafted, plain


def without_drafts(request: generation_pb2.GenerateRequest) -> generation_pb2.GenerateRequest:
    """The same request, decoded plainly."""
    plain = generation_pb2.GenerateRequest()
    plain.CopyFrom(request)
    plain.draft.off = True
    return plain


def compare(drafted: list[CollectedAnswer], plain: list[CollectedAnswer]) -> dict[str, object]:
    """The numbers of the RESULT line: medians over the repetitions."""
    tokens_per_s, plain_tokens_per_s = _median_speed(drafted), _median_speed(plain)
    truth = plain[0].first.token_ids
    numbers = [answer.first.finished.statistics for answer in drafted]
    draft_us = sum(number.draft_us for number in numbers)
    return {
        "tokens_per_s": round(tokens_per_s, 1),
        "plain_tokens_per_s": round(plain_tokens_per_s, 1),
        "speedup": round(tokens_per_s / plain_tokens_per_s, 3),
        "identical": all(answer.first.token_ids == truth for answer in [*drafted, *plain]),
        "acceptance_rate": round(statistics.median(number.acceptance_rate for number in numbers), 4),
        "mean_emitted_per_round": round(statistics.median(number.mean_emitted_per_round for number in numbers), 3),
        "overlap_share": round(sum(number.overlapped_draft_us for number in numbers) / draft_us, 4) if draft_us else 0.0,
        "first_token_ms": round(1000 * statistics.median(answer.first_token_s for answer in drafted), 1),
        "plain_first_token_ms": round(1000 * statistics.median(answer.first_token_s for answer in plain), 1),
        "num_tokens": len(drafted[0].first.token_ids),
        "plain_num_tokens": len(truth),
        "num_rounds": _median(number.num_rounds for number in numbers),
        "plain_num_rounds": plain[0].first.finished.statistics.num_rounds,
        "num_drafted": _median(number.num_drafted for number in numbers),
        "num_accepted": _median(number.num_accepted for number in numbers),
        "num_looked_up": _median(number.num_looked_up for number in numbers),
        "num_looked_up_accepted": _median(number.num_looked_up_accepted for number in numbers),
    }


def comparison_table(result: dict[str, object]) -> Table:
    """Both ways side by side: medians over the repetitions."""
    same = "the same tokens" if result["identical"] else "DIFFERENT TOKENS"
    table = Table("", "with drafts", "plain", title=f"{result['speedup']} times as fast, {same}")
    table.add_row("tokens per second", f"{result['tokens_per_s']}", f"{result['plain_tokens_per_s']}")
    table.add_row("time to first token", f"{result['first_token_ms']} ms", f"{result['plain_first_token_ms']} ms")
    table.add_row("tokens", f"{result['num_tokens']}", f"{result['plain_num_tokens']}")
    table.add_row("rounds of the target", f"{result['num_rounds']}", f"{result['plain_num_rounds']}")
    table.add_row("tokens per round", f"{result['mean_emitted_per_round']:.2f}", "1.00")
    table.add_row("drafted, accepted", f"{result['num_drafted']}, {result['num_accepted']} ({result['acceptance_rate']:.0%})", "")
    table.add_row("of these looked up in the text", f"{result['num_looked_up']}, {result['num_looked_up_accepted']}", "")
    table.add_row("drafting while verifying", f"{result['overlap_share']:.0%} of drafting time", "")
    return table


def facts(deployment: Deployment, args: argparse.Namespace) -> dict[str, object]:
    """What the numbers belong to."""
    spec = deployment.spec
    with Connection(deployment.verifier) as verifier:
        info = verifier.verifier_info()
    return {
        "pacing": spec.pacing,
        "verifier_threads": spec.threads.verifier,
        "lent_threads": info.lent_threads,
        "lent_step_share": round(info.num_lent_steps / max(1, info.num_steps), 4),
        "drafter_threads": spec.threads.drafter if spec.draft else 0,
        "dtype": spec.dtype,
        "numerics": spec.numerics,
        "target_weights": spec.target_weights,
        "draft_weights": spec.draft_weights,
        "draft_shortlist": spec.draft_shortlist,
        "target": args.target,
        "draft": args.draft,
        **given_sampling(args),
        "repeats": args.repeats,
        "start_s": round(deployment.start_s, 2),
    }


def _median(counts: Iterable[int]) -> int:
    return round(statistics.median(counts))


def _median_speed(answers: list[CollectedAnswer]) -> float:
    return statistics.median(answer.num_tokens / answer.total_s for answer in answers)
