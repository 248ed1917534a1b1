"""Command-line options that describe one request, and the request they describe.

Knows the client API's fields and argparse. Must not know how a request is sent. Options left out stay unset in the message, so that
the service's defaults apply.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from outrider.errors import InvalidRequest
from outrider.launch import numbers
from outrider.v1 import generation_pb2, sampling_pb2

_SAMPLING_OPTIONS: tuple[tuple[str, Callable[[str], float], str], ...] = (
    ("temperature", float, "0 is argmax; the service's default is 1"),
    ("top-k", numbers.count, "keep the k most probable tokens (0: off)"),
    ("top-p", float, "keep the smallest set of tokens with this mass (1: off)"),
    ("min-p", float, "keep tokens at least this fraction as probable as the best (0: off)"),
    ("repetition-penalty", float, "above 1 discourages tokens of prompt and output"),
    ("presence-penalty", float, "subtracted once from tokens of the output, -2 to 2"),
    ("frequency-penalty", float, "subtracted per occurrence in the output, -2 to 2"),
    ("seed", numbers.seed, "address of the noise: the same seed gives the same tokens, with any draft"),
)


def add_sampling_options(parser: argparse.ArgumentParser, **defaults: float) -> None:
    """How tokens are chosen. defaults: by options' names, what a command says where nothing is given."""
    group = parser.add_argument_group("sampling")
    for name, kind, text in _SAMPLING_OPTIONS:
        default = defaults.get(name)
        group.add_argument(
            f"--{name}", type=kind, metavar="X", default=default, help=text if default is None else f"{text} (here: {default})"
        )
    group.add_argument(
        "--logit-bias", action="append", default=[], metavar="ID=VALUE", type=_bias, help="added to a token's logit; repeatable"
    )


def add_length_options(parser: argparse.ArgumentParser) -> None:
    """Where the answer ends."""
    group = parser.add_argument_group("length")
    group.add_argument("--max-tokens", type=numbers.count, metavar="N", help="most tokens per sample")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable")
    group.add_argument(
        "--stop-token-id", action="append", default=[], type=numbers.count, metavar="ID", help="end at this token; repeatable"
    )
    group.add_argument("--ignore-eos", action="store_true", help="do not end at the model's end token")


def add_draft_options(parser: argparse.ArgumentParser) -> None:
    """Speculation: changes the speed, never the tokens."""
    group = parser.add_argument_group("drafting (changes the speed, never the tokens)")
    group.add_argument("--draft-off", action="store_true", help="plain decoding")
    group.add_argument("--draft-len", type=numbers.count, metavar="N", help="most drafted tokens a round, 1 to 64")
    group.add_argument("--tree-width", type=numbers.count, metavar="N", help="children tried per node, 1 (a chain) to 8")
    group.add_argument("--stop-below", type=float, metavar="P", help="stop drafting below this draft probability")
    group.add_argument("--svip-threshold", type=float, metavar="T", help="stop drafting above this bound on rejection by entropy (SVIP)")
    group.add_argument("--request-pacing", metavar="NAME", help="pacing policy of this request: plain, serial, pearl, ...")
    group.add_argument(
        "--acceptance", choices=("coupled", "rejection"), help="coupled: exactly the target's tokens; rejection: its distribution"
    )


def given_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given or have a default here, but for biases, by the message's fields."""
    fields = [name.replace("-", "_") for name, _, _ in _SAMPLING_OPTIONS]
    return {field: value for field in fields if (value := getattr(args, field)) is not None}


def sampling_from(args: argparse.Namespace) -> sampling_pb2.SamplingParams:
    """The sampling part of a request; options left out stay unset."""
    return sampling_pb2.SamplingParams(**given_sampling(args), logit_bias=dict(args.logit_bias))


def sendable(option: str, text: str) -> str:
    """The text as it is. Raises InvalidRequest naming the option where its bytes are no UTF-8, which is all that a message can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:  # the interpreter keeps bytes that it cannot decode as lone surrogates
        raise InvalidRequest(option, "is not UTF-8 text") from None
    return text


def draft_from(args: argparse.Namespace) -> generation_pb2.DraftOptions:
    """The request's wishes about speculation."""
    options = generation_pb2.DraftOptions(
        max_len=args.draft_len,
        tree_width=args.tree_width,
        stop_below=args.stop_below,
        svip_threshold=args.svip_threshold,
        pacing=None if args.request_pacing is None else sendable("--request-pacing", args.request_pacing),
    )
    if args.draft_off:
        options.off = True
    return options


def request_from(args: argparse.Namespace) -> generation_pb2.GenerateRequest:
    """Everything of the request but its input. Missing attributes are the caller's mistake."""
    acceptance = {
        None: sampling_pb2.ACCEPTANCE_UNSPECIFIED,
        "coupled": sampling_pb2.ACCEPTANCE_COUPLED,
        "rejection": sampling_pb2.ACCEPTANCE_REJECTION,
    }[args.acceptance]
    return generation_pb2.GenerateRequest(
        sampling=sampling_from(args),
        max_tokens=args.max_tokens,
        stop=[sendable("--stop", text) for text in args.stop],
        stop_token_ids=args.stop_token_id,
        ignore_eos=args.ignore_eos or None,
        draft=draft_from(args),
        acceptance=acceptance,
    )


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        bias = int(token), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ID=VALUE, for example 42=-5") from None
    return numbers.count(token), bias[1]
