"""The command against a scripted gateway: what it sends, what it prints, and how it says that something is wrong."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from outrider.cli import run
from outrider.cli.__main__ import build_parser, main
from outrider.cli.connection import CollectedAnswer, Connection
from outrider.cli.generate import finish_text
from outrider.cli.run import DEFAULT_MAX_TOKENS, compare, request_from_prompt, without_drafts
from outrider.cli.sampling_options import given_sampling
from outrider.errors import Unavailable
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import generation_pb2_grpc, identity_pb2, sampling_pb2

ACCEPTED = sampling_pb2.TOKEN_ORIGIN_ACCEPTED
BONUS = sampling_pb2.TOKEN_ORIGIN_BONUS
CORRECTED = sampling_pb2.TOKEN_ORIGIN_CORRECTED


@dataclass
class ScriptedGateway(generation_pb2_grpc.GenerationServiceServicer):
    """Answers every request with `text`; remembers what it was asked. A word is a token, and so is a message."""

    requests: list[pb.GenerateRequest] = field(default_factory=list)
    has_chat_template: bool = True
    refuse: str = ""
    max_completion_tokens: int = 0
    stop_string: str = "!"
    text: str = "12 cups"

    def Tokenize(self, request: pb.TokenizeRequest, context: grpc.ServicerContext) -> pb.TokenizeResponse:
        texts = [message.content for message in request.chat.messages] if request.HasField("chat") else [request.text]
        return pb.TokenizeResponse(token_ids=range(len(request.chat.messages) + sum(len(text.split()) for text in texts)))

    def GetModelInfo(self, request: pb.GetModelInfoRequest, context: grpc.ServicerContext) -> pb.GetModelInfoResponse:
        identity = identity_pb2.ModelIdentity(model="/nowhere/big", dtype="float32")
        return pb.GetModelInfoResponse(
            target=identity, has_chat_template=self.has_chat_template, max_completion_tokens=self.max_completion_tokens
        )

    def Generate(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        self.requests.append(request)
        if self.refuse:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refuse)
        yield pb.GenerateResponse(started=pb.Started(request_id="r", model="big", seed=7, exact=True))
        for index in range(request.n or 1):
            delta = pb.Delta(index=index, text=self.text, token_ids=[5, 6, 7], origins=[ACCEPTED, ACCEPTED, BONUS])
            best = list(range(5, 5 + request.top_logprobs))
            for _ in delta.token_ids if request.HasField("top_logprobs") else ():
                delta.logprobs.add(logprob=-0.5, top_token_ids=best, top_logprobs=[-0.5 * token for token in best])
            yield pb.GenerateResponse(delta=delta)
            numbers = pb.DraftStatistics(num_rounds=1, num_drafted=2, num_accepted=2, mean_emitted_per_round=3.0, acceptance_rate=1.0)
            finished = pb.Finished(index=index, stop_string=self.stop_string, statistics=numbers)
            finished.finish_reason = pb.FINISH_REASON_STOP_STRING
            yield pb.GenerateResponse(finished=finished)
        yield pb.GenerateResponse(done=pb.Done())


@dataclass
class Served:
    """A scripted gateway and where it listens."""

    gateway: ScriptedGateway
    address: str

    def ask(self, *arguments: str) -> int:
        """`outrider generate` against it."""
        return main(["generate", "--gateway", self.address, *arguments])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    gateway = ScriptedGateway()
    server = grpc.server(ThreadPoolExecutor(2))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(gateway, server)  # type: ignore[no-untyped-call]
    checks = health.HealthServicer()
    checks.set("", health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    address = f"unix:{tmp_path}/gateway.sock"
    server.add_insecure_port(address)
    server.start()
    yield Served(gateway, address)
    server.stop(None).wait()


def test_text_is_streamed_as_it_is_with_a_legend_and_statistics(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert served.ask("Once") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("12 cups\n")
    assert "2 accepted" in printed
    assert "1 bonus" in printed
    assert "stop string '!'" in printed
    assert served.gateway.requests[0].prompt == "Once"


def test_a_stop_string_that_looks_like_markup_is_named_as_it_is(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.gateway.stop_string = "[/INST]"
    assert served.ask("Once", "--stop", "[/INST]") == 0
    assert "stop string '[/INST]'" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["streamed", "samples"])
def test_the_answers_text_is_printed_character_by_character(
    served: Served, arguments: tuple[str, ...], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    served.gateway.text = "a tab\t, ::m:m: and :car: [/b] [bold]x\r\nover\x08\x0c" + 100 * " wide" + "  "
    assert served.ask("Once", *arguments) == 0
    assert served.gateway.text.encode() + b"\n" in capsysbinary.readouterr().out


@pytest.mark.parametrize(
    ("command", "option", "value", "most"),
    [
        *(("generate", "--seed", value, 2**64 - 1) for value in ("-1", str(2**64), "1.5")),
        *(
            ("generate", option, value, 2**32 - 1)
            for option in ("--top-k", "--max-tokens", "-n", "--logprobs", "--draft-len", "--tree-width", "--stop-token-id")
            for value in ("-1", str(2**32))
        ),
        ("generate", "--logit-bias", "99999999999=2", 2**32 - 1),
        ("run", "--seed", "-1", 2**64 - 1),
        ("run", "--max-tokens", "-1", 2**32 - 1),
        ("run", "--repeats", "0", None),
        ("bench", "--jobs", "-1", None),
        ("bench", "--sim-seed", "-1", 2**63 - 1),
        ("bench", "--sim-seed", str(2**63), 2**63 - 1),
        ("bench", "--repeats", "-1", None),
    ],
)
def test_a_number_out_of_range_is_refused_by_name_before_anything_is_done(
    command: str, option: str, value: str, most: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        build_parser().parse_args([command, option, value])
    assert leaving.value.code == 2
    complaint = capsys.readouterr().err.splitlines()[-1]
    assert f"argument {option}: must be a whole number" in complaint
    assert ("of at least" if most is None else f", {most}], got {value.partition('=')[0]}") in complaint


def test_the_largest_numbers_are_sent_as_they_are(served: Served) -> None:
    most = str(2**32 - 1)
    assert served.ask("Once", "--seed", str(2**64 - 1), "--top-k", most, "--max-tokens", most, "--logit-bias", f"{most}=1") == 0
    request = served.gateway.requests[0]
    assert (request.sampling.seed, request.sampling.top_k, request.max_tokens) == (2**64 - 1, 2**32 - 1, 2**32 - 1)
    assert dict(request.sampling.logit_bias) == {2**32 - 1: 1.0}


NOT_UTF8 = os.fsdecode(b"\xff\xfe")  # as the interpreter hands an argument over


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ((NOT_UTF8,), "TEXT"),
        (("--chat", NOT_UTF8), "--chat"),
        (("--chat", "Hello", "--system", NOT_UTF8), "--system"),
        (("Once", "--stop", "a", "--stop", NOT_UTF8), "--stop"),
        (("Once", "--request-pacing", NOT_UTF8), "--request-pacing"),
    ],
)
def test_bytes_that_are_no_text_are_refused_by_name(
    served: Served, arguments: tuple[str, ...], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert served.ask(*arguments) == 2
    assert capsys.readouterr().err == f"outrider: {option}: is not UTF-8 text\n"
    assert not served.gateway.requests


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_standard_input_that_is_no_text_is_refused(
    served: Served, errors: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"text \xff"), encoding="utf-8", errors=errors))
    assert served.ask("-") == 2
    assert "not UTF-8 text" in capsys.readouterr().err


def test_a_prompt_that_is_no_text_is_refused_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "start", lambda *_: pytest.fail("it was started"))
    assert main(["run", "--prompt", NOT_UTF8]) == 2


def test_options_left_out_stay_unset(served: Served) -> None:
    served.ask("Once")
    request = served.gateway.requests[0]
    assert not request.HasField("max_tokens")
    assert not request.HasField("n")
    assert not request.sampling.HasField("temperature")
    assert not request.draft.HasField("off")


def test_every_option_reaches_its_field(served: Served) -> None:
    served.ask(
        *("--chat", "Hello", "--system", "Be brief", "-n", "2", "--logprobs", "3", "--max-tokens", "9", "--stop", "a", "--stop", "b"),
        *("--stop-token-id", "4", "--ignore-eos", "--temperature", "0.5", "--top-k", "40", "--top-p", "0.9", "--min-p", "0.1"),
        *("--repetition-penalty", "1.5", "--presence-penalty", "0.5", "--frequency-penalty", "0.25", "--seed", "3", "--logit-bias", "8=-1"),
        *("--draft-len", "6", "--tree-width", "2", "--stop-below", "0.25", "--svip-threshold", "0.5"),
        *("--request-pacing", "pearl", "--acceptance", "rejection"),
    )
    request = served.gateway.requests[0]
    assert [(turn.role, turn.content) for turn in request.chat.messages] == [("system", "Be brief"), ("user", "Hello")]
    assert (request.n, request.top_logprobs, request.max_tokens, request.ignore_eos) == (2, 3, 9, True)
    assert (list(request.stop), list(request.stop_token_ids)) == (["a", "b"], [4])
    expected = sampling_pb2.SamplingParams(
        temperature=0.5, top_k=40, top_p=0.9, min_p=0.1, repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25, seed=3
    )
    expected.logit_bias[8] = -1.0
    assert request.sampling == expected
    assert request.draft == pb.DraftOptions(max_len=6, tree_width=2, stop_below=0.25, svip_threshold=0.5, pacing="pearl")
    assert request.acceptance == sampling_pb2.ACCEPTANCE_REJECTION


def test_the_prompt_may_come_from_standard_input(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.read", lambda: "from a pipe")
    served.ask("-")
    assert served.gateway.requests[0].prompt == "from a pipe"


def test_several_samples_are_printed_one_after_the_other(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert served.ask("Once", "-n", "2") == 0
    printed = capsys.readouterr().out
    assert printed.index("sample 0") < printed.index("sample 1")
    assert printed.count("12 cups") == 2


def test_json_is_one_object_for_programs(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert served.ask("Once", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["seed"] == 7
    assert answer["samples"][0]["text"] == "12 cups"
    assert answer["samples"][0]["origins"] == ["TOKEN_ORIGIN_ACCEPTED", "TOKEN_ORIGIN_ACCEPTED", "TOKEN_ORIGIN_BONUS"]


@pytest.mark.parametrize(
    ("asked", "of_a_token"),
    [("2", [{"token_id": 5, "logprob": -2.5}, {"token_id": 6, "logprob": -3.0}]), ("0", [])],
)
def test_json_has_the_best_of_each_place(
    served: Served, asked: str, of_a_token: list[dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert served.ask("Once", "--json", "--logprobs", asked) == 0
    (sample,) = json.loads(capsys.readouterr().out)["samples"]
    assert (sample["logprobs"], sample["top_logprobs"]) == ([-0.5] * 3, [of_a_token] * 3)


def test_json_has_no_logprobs_where_none_were_asked_for(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert served.ask("Once", "--json") == 0
    (sample,) = json.loads(capsys.readouterr().out)["samples"]
    assert (sample["logprobs"], sample["top_logprobs"]) == (None, None)


def test_json_that_nobody_reads_ends_without_a_traceback(served: Served) -> None:
    unread, pipe = os.pipe()
    os.close(unread)
    with os.fdopen(pipe, "wb") as stdout:
        command = [sys.executable, "-m", "outrider.cli", "generate", "Once", "--json", "--gateway", served.address]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        ended = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_gateway_that_is_taken_for_a_coordinator_is_called_what_it_is(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "--coordinator", served.address]) == 2
    assert f"--coordinator: {served.address} is a gateway, and no coordinator" in capsys.readouterr().err


def test_a_refused_field_is_a_sentence_and_exit_code_2(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.gateway.refuse = "n: must be in [1, 16], got 99"
    assert served.ask("Once", "-n", "99") == 2
    assert "n: must be in [1, 16], got 99" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["text", "--chat", "message"]])
def test_exactly_one_input_is_needed(served: Served, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert served.ask(*arguments) == 2
    assert "either TEXT to continue" in capsys.readouterr().err


def test_a_system_message_without_a_chat_is_refused(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert served.ask("Once", "--system", "Be brief") == 2
    assert "--system: goes before a message of --chat" in capsys.readouterr().err
    assert not served.gateway.requests


def test_an_absent_gateway_says_how_to_start_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--gateway", f"unix:{tmp_path}/none.sock", "Once"]) == 1
    assert "outrider up" in capsys.readouterr().err


def test_a_bad_address_is_the_command_lines_fault() -> None:
    assert main(["generate", "--gateway", "nowhere", "Once"]) == 2


def test_arrivals_and_totals_are_collected(served: Served) -> None:
    with Connection(served.address) as connection:
        answer = connection.ask(pb.GenerateRequest(prompt="Once"))
    assert answer.first.token_ids == [5, 6, 7]
    assert [num_tokens for _, num_tokens in answer.first.arrivals] == [3]
    assert 0 < answer.first_token_s <= answer.total_s


def test_a_stream_may_be_left_in_the_middle(served: Served) -> None:
    with Connection(served.address) as connection:
        stream = connection.stream(pb.GenerateRequest(prompt="Once"))
        first = next(iter(stream))
        assert first.started.seed == 7
        stream.cancel()


def test_doctor_sees_a_running_deployment(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-models", "--gateway", served.address]) == 0
    printed = capsys.readouterr().out
    assert "/nowhere/big" in printed
    assert "no drafter is paired" in printed


def answer_of(tokens: list[int], total_s: float, statistics: pb.DraftStatistics | None = None) -> CollectedAnswer:
    answer = CollectedAnswer()
    delta = pb.Delta(token_ids=tokens, origins=[CORRECTED] * len(tokens))
    answer.add(pb.GenerateResponse(delta=delta), total_s / 2)
    answer.add(pb.GenerateResponse(finished=pb.Finished(statistics=statistics)), total_s)
    return answer


def test_comparison_takes_medians_and_sums_overlap() -> None:
    numbers = pb.DraftStatistics(num_rounds=2, acceptance_rate=0.5, mean_emitted_per_round=2.0, draft_us=100, overlapped_draft_us=25)
    drafted = [answer_of([1, 2, 3, 4], total_s, numbers) for total_s in (1.0, 2.0, 10.0)]
    plain = [answer_of([1, 2, 3, 4], total_s) for total_s in (4.0, 4.0, 40.0)]
    result = compare(drafted, plain)
    assert (result["tokens_per_s"], result["plain_tokens_per_s"], result["speedup"]) == (2.0, 1.0, 2.0)
    assert (result["identical"], result["overlap_share"], result["num_rounds"]) == (True, 0.25, 2)


@pytest.mark.parametrize("late", [0, 1])
def test_one_differing_repetition_is_enough_not_to_be_identical(late: int) -> None:
    answers: list[Callable[[], CollectedAnswer]] = [lambda: answer_of([1, 2], 1.0), lambda: answer_of([1, 3], 1.0)]
    drafted = [answers[0](), answers[late]()]
    assert compare(drafted, [answers[0]()])["identical"] is (late == 0)


@pytest.mark.parametrize("has_chat_template", [False, True])
@pytest.mark.parametrize(
    ("asked", "context", "most"),
    [(None, 4096, DEFAULT_MAX_TOKENS), (None, 256, 252), (None, 3, 1), (40, 4096, 40), (300, 256, 300)],
    ids=["no less than is usual", "what there is room for", "no room", "asked for", "asked for too much"],
)
def test_an_answer_is_as_long_as_the_context_has_room_unless_somebody_says(
    served: Served, has_chat_template: bool, asked: int | None, context: int, most: int
) -> None:
    """A request that asks for too much is the gateway's to refuse."""
    served.gateway.max_completion_tokens, served.gateway.has_chat_template = context - 1, has_chat_template
    prompt = "two and two" if has_chat_template else "two and two are"  # four tokens
    args = run_arguments("--prompt", prompt, *(() if asked is None else ("--max-tokens", str(asked))))
    with Connection(served.address) as connection:
        request = request_from_prompt(args, connection)
    assert request.max_tokens == most
    assert request.HasField("chat") == has_chat_template


def run_arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run.add_parser(parser.add_subparsers())
    return parser.parse_args(["run", *given])


def test_a_compared_request_is_sampled_as_it_is_said(served: Served) -> None:
    args = run_arguments("--temperature", "0.7", "--top-k", "20", "--repetition-penalty", "1.05", "--logit-bias", "4=-2")
    with Connection(served.address) as connection:
        sampled = request_from_prompt(args, connection).sampling
    assert (sampled.top_k, sampled.seed, dict(sampled.logit_bias)) == (20, run.DEFAULT_SEED, {4: -2.0})
    assert (sampled.temperature, sampled.repetition_penalty) == pytest.approx((0.7, 1.05))
    assert not sampled.HasField("top_p")
    assert given_sampling(args) == {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05, "seed": run.DEFAULT_SEED}


def test_the_plain_request_differs_in_nothing_but_the_drafts() -> None:
    request = pb.GenerateRequest(prompt="Once", max_tokens=9, sampling=sampling_pb2.SamplingParams(seed=3))
    plain = without_drafts(request)
    assert plain.draft.off
    plain.ClearField("draft")
    assert plain == request


def test_an_unreachable_peer_is_unavailable(tmp_path: Path) -> None:
    with Connection(f"unix:{tmp_path}/none.sock") as connection, pytest.raises(Unavailable, match="not reachable"):
        connection.model_info()


@pytest.mark.parametrize(
    ("num_failovers", "exact", "text"),
    [(0, False, "length"), (2, True, "length; failed over 2x, exact"), (1, False, "length; failed over 1x, not exact")],
)
def test_an_answer_that_went_on_elsewhere_says_so(num_failovers: int, exact: bool, text: str) -> None:
    finished = pb.Finished(finish_reason=pb.FINISH_REASON_LENGTH, num_failovers=num_failovers, exact=exact)
    assert finish_text(finished) == text
