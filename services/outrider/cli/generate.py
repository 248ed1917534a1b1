"""`outrider generate`: one request to a running gateway, streamed to the terminal with tokens coloured by how they came to be."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter

from rich.console import Console
from rich.table import Table

from outrider.cli.connection import CollectedAnswer, Connection
from outrider.cli.console import Literal, make_console, print_line
from outrider.cli.painter import Painter, legend, local_decoder
from outrider.cli.sampling_options import add_draft_options, add_length_options, add_sampling_options, request_from, sendable
from outrider.cli.up import DEFAULT_LISTEN
from outrider.errors import InvalidRequest
from outrider.launch import numbers
from outrider.v1 import generation_pb2, sampling_pb2

_EXAMPLES = """examples:
  outrider generate --chat "Leopold has 7 shelves of 14 cups. He breaks 9. How many are left?"
  outrider generate "Once upon a time" --temperature 0.8 --seed 7 --max-tokens 64
  echo "some text" | outrider generate -                 the prompt from standard input
  outrider generate --chat "Write a story" -n 3 --temperature 1 --stop "The end"
  outrider generate --chat "2 + 2" --draft-off --json     plain decoding; the whole answer as JSON"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `outrider generate`."""
    parser = subparsers.add_parser(
        "generate",
        help="one answer from a running deployment",
        description="Send one request to a running gateway and stream its answer.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="?", metavar="TEXT", help="text to continue as it is; - reads standard input")
    parser.add_argument("--chat", metavar="TEXT", help="a user's message, through the model's chat template")
    parser.add_argument("--system", metavar="TEXT", help="a system message before that of --chat")
    address = os.environ.get("OUTRIDER_GATEWAY") or DEFAULT_LISTEN
    parser.add_argument("--gateway", default=address, metavar="ADDRESS", help="of the client API (OUTRIDER_GATEWAY, %(default)s)")
    parser.add_argument("-n", type=numbers.count, metavar="N", help="samples of the same prompt, 1 to 16")
    parser.add_argument(
        "--logprobs", type=numbers.count, metavar="N", help="log-probabilities of each token and of the N best (with --json)"
    )
    parser.add_argument("--json", action="store_true", help="print the whole answer as one JSON object instead of streaming")
    add_sampling_options(parser)
    add_length_options(parser)
    add_draft_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0 once the answer is complete."""
    request = full_request(args)
    console = make_console()
    with Connection(args.gateway) as gateway:
        if args.json:
            print_line(json.dumps(as_json(gateway, request)))
            return 0
        decode = local_decoder(gateway.model_info().target.model)
        if (args.n or 1) > 1:
            answer = gateway.ask(request)
            counts = _print_samples(console, answer)
        else:
            painter = Painter(decode)
            answer = gateway.ask(request, lambda event: _print_delta(console, painter, event))
            counts = painter.counts
    console.print()
    console.print(legend(counts))
    console.print(statistics_table(answer))
    return 0


def full_request(args: argparse.Namespace) -> generation_pb2.GenerateRequest:
    """The request with its input; raises InvalidRequest when there is not exactly one."""
    if (args.prompt is None) == (args.chat is None):
        raise InvalidRequest("prompt", "give either TEXT to continue (- for standard input) or --chat TEXT")
    if args.system is not None and args.chat is None:
        raise InvalidRequest("--system", "goes before a message of --chat; TEXT is continued as it is")
    request = request_from(args)
    if args.chat is not None:
        system = None if args.system is None else sendable("--system", args.system)
        request.chat.CopyFrom(chat_messages(sendable("--chat", args.chat), system))
    else:
        request.prompt = _standard_input() if args.prompt == "-" else sendable("TEXT", args.prompt)
    if args.n is not None:
        request.n = args.n
    if args.logprobs is not None:
        request.top_logprobs = args.logprobs
    return request


def _standard_input() -> str:
    try:
        return sendable("TEXT", sys.stdin.read())
    except UnicodeDecodeError:
        raise InvalidRequest("TEXT", "standard input is not UTF-8 text") from None


def chat_messages(user: str, system: str | None = None) -> generation_pb2.ChatMessages:
    """One user's turn, perhaps after a system message."""
    turns = [] if system is None else [generation_pb2.ChatMessage(role="system", content=system)]
    return generation_pb2.ChatMessages(messages=[*turns, generation_pb2.ChatMessage(role="user", content=user)])


def as_json(gateway: Connection, request: generation_pb2.GenerateRequest) -> dict[str, object]:
    """The whole answer for programs."""
    logprobs: dict[int, list[sampling_pb2.TokenLogprob]] = {}

    def note(event: generation_pb2.GenerateResponse) -> None:
        if event.HasField("delta") and event.delta.logprobs:
            logprobs.setdefault(event.delta.index, []).extend(event.delta.logprobs)

    answer = gateway.ask(request, note)
    samples = []
    for index, sample in sorted(answer.samples.items()):
        statistics = sample.finished.statistics
        samples.append(
            {
                "text": sample.text,
                "token_ids": sample.token_ids,
                "origins": [sampling_pb2.TokenOrigin.Name(origin) for origin in sample.origins],
                **_logprob_fields(logprobs.get(index)),
                "finish_reason": generation_pb2.FinishReason.Name(sample.finished.finish_reason),
                "rounds": statistics.num_rounds,
                "drafted": statistics.num_drafted,
                "accepted": statistics.num_accepted,
                "looked_up": statistics.num_looked_up,
                "looked_up_accepted": statistics.num_looked_up_accepted,
                "failovers": sample.finished.num_failovers,
                "exact": sample.finished.exact,
            }
        )
    started = answer.started
    return {
        "request_id": started.request_id,
        "model": started.model,
        "seed": started.seed,
        "exact": started.exact,
        "fingerprint": started.fingerprint,
        "num_prompt_tokens": started.num_prompt_tokens,
        "first_token_ms": round(1000 * answer.first_token_s, 3),
        "total_ms": round(1000 * answer.total_s, 3),
        "samples": samples,
    }


def _logprob_fields(entries: list[sampling_pb2.TokenLogprob] | None) -> dict[str, object]:
    """Of each token, and of the best in its place, the likeliest first; null where none were asked for."""
    if entries is None:
        return {"logprobs": None, "top_logprobs": None}
    best = [zip(entry.top_token_ids, entry.top_logprobs, strict=True) for entry in entries]
    top = [[{"token_id": token, "logprob": logprob} for token, logprob in pairs] for pairs in best]
    return {"logprobs": [entry.logprob for entry in entries], "top_logprobs": top}


def statistics_table(answer: CollectedAnswer) -> Table:
    """Speed and speculation of each sample."""
    table = Table("sample", "tokens", "tokens/s", "first token", "rounds", "tokens/round", "drafted", "accepted", "ended by")
    for index, sample in sorted(answer.samples.items()):
        statistics = sample.finished.statistics
        table.add_row(
            f"{index} (seed {answer.started.seed})",
            str(len(sample.token_ids)),
            f"{len(sample.token_ids) / answer.total_s:.0f}" if answer.total_s else "",
            f"{sample.finished.time_to_first_token_us / 1000:.0f} ms",
            str(statistics.num_rounds),
            f"{statistics.mean_emitted_per_round:.2f}",
            str(statistics.num_drafted),
            f"{statistics.num_accepted} ({statistics.acceptance_rate:.0%})",
            finish_text(sample.finished),
        )
    return table


def finish_text(finished: generation_pb2.Finished) -> str:
    """Why a sample ended, in words, and whether it went on at other verifiers on the way."""
    name = generation_pb2.FinishReason.Name(finished.finish_reason).removeprefix("FINISH_REASON_").lower().replace("_", " ")
    text = f"{name} {finished.stop_string!r}" if finished.stop_string else name
    if not finished.num_failovers:
        return text
    return f"{text}; failed over {finished.num_failovers}x, {'exact' if finished.exact else 'not exact'}"


def _print_delta(console: Console, painter: Painter, event: generation_pb2.GenerateResponse) -> None:
    if event.HasField("delta"):
        console.print(painter.paint(event.delta), soft_wrap=True)


def _print_samples(console: Console, answer: CollectedAnswer) -> Counter[int]:
    counts: Counter[int] = Counter()
    for index, sample in sorted(answer.samples.items()):
        console.rule(f"sample {index}")
        console.print(Literal(((sample.text, ""),)), soft_wrap=True)
        console.print()
        counts.update(sample.origins)
    return counts
