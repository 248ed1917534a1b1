"""`outrider doctor` and the model options: each fault is found, named, and comes with what to do."""

from __future__ import annotations

import socket
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from outrider.cli.__main__ import main
from outrider.cli.checks import machine, models
from outrider.cli.checks.finding import Finding, Level, broken, fine, note
from outrider.cli.checks.network import check_network
from outrider.cli.console import make_console
from outrider.cli.deployment_options import _SERVICE_ARGUMENTS, add_deployment_options, model_path, spec_from
from outrider.cli.doctor import show
from outrider.cli.starting import start
from outrider.errors import InvalidRequest
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.process import StartFailed
from outrider.launch.threads import ThreadPlan
from outrider.types.identity import ModelIdentity, Numerics

IDENTITY = ModelIdentity("big", "", "aa", "bb" * 8, 2048, "float32", Numerics.FAST, "cc", 2048, (3,))


def levels(findings: list[Finding]) -> dict[str, Level]:
    return {finding.what: finding.level for finding in findings}


def test_this_machine_is_described() -> None:
    findings = machine.check_machine()
    assert {finding.what for finding in findings} == {"python", "packages", "processor", "compiler", "cores", "memory"}
    assert all(finding.remedy for finding in findings if finding.level is Level.BROKEN)


def test_a_missing_and_an_old_package_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda name: ["no-such-package>=1", "numpy>=999", "rich>=1", "ray; extra == 'ray'"])
    findings = [finding for finding in machine.check_machine() if finding.what == "packages"]
    assert [finding.level for finding in findings] == [Level.BROKEN, Level.BROKEN]
    assert "no-such-package is missing" in findings[0].found
    assert "numpy>=999 is needed" in findings[1].found


@pytest.mark.parametrize(
    ("lines", "level"), [(["flags : fpu avx2 amx_bf16"], Level.NOTE), (["flags : fpu avx2"], Level.FINE), ([], Level.FINE)]
)
def test_bf16_units_are_pointed_out(lines: list[str], level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_lines", lambda path: lines)
    found = {finding.what: finding for finding in machine.check_machine()}["processor"]
    assert found.level is level


@pytest.mark.parametrize("preferred", [True, False])
def test_a_processor_that_multiplies_whole_numbers_instead_is_told_so(preferred: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_lines", lambda path: ["flags : fpu avx2"])
    monkeypatch.setattr(machine, "prefers_fixed16", lambda: preferred)
    found = {finding.what: finding for finding in machine.check_machine()}["processor"]
    assert found.level is Level.FINE
    assert ("whole numbers of 16 bits" in found.found) == preferred


def test_a_missing_compiler_is_pointed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    found = {finding.what: finding for finding in machine.check_machine()}["compiler"]
    assert found.level is Level.NOTE
    assert "gcc" in found.remedy


def test_too_little_memory_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_lines", lambda path: ["MemAvailable:  102400 kB"])
    assert levels(machine.check_machine())["memory"] is Level.BROKEN


def test_a_free_port_has_no_deployment() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert levels(check_network(f"127.0.0.1:{port}"))["deployment"] is Level.NOTE


def test_no_socket_file_is_no_deployment_rather_than_a_broken_one(tmp_path: Path) -> None:
    found = levels(check_network(f"unix:{tmp_path}/nothing.sock"))
    assert (found["address"], found["deployment"]) == (Level.FINE, Level.NOTE)


def test_a_socket_file_that_nobody_listens_at_is_free(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{tmp_path}/left.sock")
    assert levels(check_network(f"unix:{tmp_path}/left.sock"))["deployment"] is Level.NOTE


def test_an_address_of_ipv6_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def refuse(address: tuple[str, int], timeout: float) -> NoReturn:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert levels(check_network("[::1]:7070"))["deployment"] is Level.NOTE
    assert asked == [("::1", 7070)]


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "nonsense", "unix:", "[::1]"])
def test_what_is_no_address_is_broken(address: str) -> None:
    found = levels(check_network(address))
    assert found["address"] is Level.BROKEN
    assert "deployment" not in found


@pytest.mark.parametrize("more", [[], ["--ray"]])
@pytest.mark.parametrize("address", ["127.0.0.1:99999", "nonsense"])
def test_nothing_is_started_for_an_address_that_is_none(
    address: str, more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("start", "run_ray"):
        monkeypatch.setattr(f"outrider.cli.up.{name}", lambda *_: pytest.fail("it was started"))
    assert main(["up", "--listen", address, *more]) == 2
    assert "--listen" in capsys.readouterr().err


def test_another_programs_port_is_broken() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(10)
        port = listener.getsockname()[1]

        import threading

        def hang_up() -> None:
            for _ in range(2):  # the port check, then the call
                listener.accept()[0].close()

        other = threading.Thread(target=hang_up)
        other.start()
        findings = levels(check_network(f"127.0.0.1:{port}"))
        other.join()
    assert findings["deployment"] is Level.BROKEN


def test_a_path_too_long_for_sockets_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / ("x" * 120)))
    assert levels(check_network("127.0.0.1:1"))["unix sockets"] is Level.BROKEN


@pytest.mark.parametrize(
    ("changed", "level"),
    [({}, Level.FINE), ({"max_context": 1024}, Level.NOTE), ({"vocab_hash": "dd" * 8}, Level.BROKEN), ({"vocab_size": 9}, Level.BROKEN)],
)
def test_a_pair_must_share_its_tokenizer(changed: dict[str, object], level: Level) -> None:
    draft = replace(IDENTITY, model="small", **changed)  # type: ignore[arg-type]
    finding = models._pair(IDENTITY, draft)
    assert finding.level is level
    if level is Level.BROKEN:
        assert "small" in finding.found
        assert "big" in finding.found


def test_a_model_that_is_not_here_is_broken(tmp_path: Path) -> None:
    findings = levels(models.check_models(str(tmp_path / "nothing"), "none", "float32"))
    assert findings[f"model {tmp_path / 'nothing'}"] is Level.BROKEN


def test_a_model_without_a_tokenizer_is_broken(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text("{}")
    (finding,) = [finding for finding in models.check_models(str(tmp_path), "none", "float32") if "lacks" in finding.found]
    assert "tokenizer.json" in finding.found


def test_a_folder_without_weights_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="only safetensors are loaded"):
        model_path(str(tmp_path))


def test_an_absent_path_is_refused_but_a_hub_name_is_not() -> None:
    with pytest.raises(InvalidRequest, match="there is no folder"):
        model_path("./absent")
    assert model_path("somebody/some-model") == "somebody/some-model"


@pytest.mark.parametrize(("num_broken", "sentence"), [(0, "everything that was looked at works"), (1, "1 broken")])
def test_findings_are_shown_with_a_summary(num_broken: int, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    show([fine("a", "b"), note("c", "d", "e"), *[broken("f", "g", "h")] * num_broken], make_console())
    assert sentence in capsys.readouterr().out


def test_brackets_of_a_finding_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    show([broken("card", "no [triton]", "pip install 'outrider[triton]'"), fine("path", "/models/[/x]:car:")], make_console())
    printed = capsys.readouterr().out
    for text in ("no [triton]", "'outrider[triton]'", "/models/[/x]:car:", "BROKEN", "ok"):
        assert text in printed, text


def test_a_deployment_is_named_as_the_command_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is started is told before anything is; that must not end a start whose options look like markup."""

    def refuse(spec: DeploymentSpec) -> NoReturn:
        raise StartFailed(spec.pacing)

    monkeypatch.setattr("outrider.cli.starting.Deployment", refuse)
    with pytest.raises(StartFailed, match=r"\[/x\]"):
        start(DeploymentSpec("some/[/b]", None, "[/x]", ThreadPlan(1, 1)), make_console())


def options(*arguments: str) -> Namespace:
    parser = ArgumentParser()
    add_deployment_options(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--verifier-threads", "0", "a whole number in [1, 1024], got 0"),
        ("--drafter-threads", "-3", "a whole number in [1, 1024], got -3"),
        ("--lent-threads", "-1", "a whole number in [0, 1024], got -1"),
    ],
)
def test_a_number_of_threads_that_cannot_be_is_refused_as_it_is_read(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options(option, value)
    assert f"argument {option}: must be {said}" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--drafter-threads=2", "--drafter-arg=--max-sessions=3"])
def test_what_a_drafter_would_be_told_is_refused_where_there_is_none(option: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{option.partition('=')[0]}: there is no draft model that would be started with it"):
        spec_from(options("--draft", "none", option), None)


def test_threads_are_planned_from_the_pacing_and_may_be_overridden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.cli.deployment_options.usable_cores", lambda: (0, 1))
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"")
    names = ("--target", str(model), "--draft", "none")
    serial = spec_from(options(*names, "--pacing", "serial"), None)
    assert (serial.draft, serial.threads.verifier) == (None, 2)
    assert spec_from(options(*names, "--pacing", "pearl"), None).threads.verifier == 1
    assert spec_from(options(*names, "--verifier-threads", "5"), None).threads.verifier == 5
    assert spec_from(options(*names, "--pin"), None).threads.verifier_cores == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "plan"),
    [
        ((), (1, 1, 1)),
        (("--pacing", "pearl"), (1, 1, 1)),
        (("--dtype", "bfloat16"), (1, 1, 1)),
        (("--numerics", "invariant"), (1, 1, 1)),
        (("--numerics", "invariant", "--dtype", "bfloat16"), (1, 1, 1)),
        (("--numerics", "invariant", "--dtype", "bfloat16", "--target-weights", "int8"), (2, 1, 0)),
        (("--numerics", "invariant", "--dtype", "float16"), (2, 1, 0)),
        (("--lent-threads", "0"), (2, 1, 0)),
        (("--lent-threads", "0", "--pacing", "pearl"), (1, 1, 0)),
        (("--verifier-threads", "2"), (2, 1, 0)),
        (("--verifier-threads", "2", "--lent-threads", "1"), (2, 1, 1)),
        (("--lent-threads", "3"), (1, 1, 3)),
        (("--pin",), (2, 1, 0)),
    ],
)
def test_a_drafters_cores_are_lent_unless_the_command_line_plans_threads_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], plan: tuple[int, int, int]
) -> None:
    monkeypatch.setattr("outrider.cli.deployment_options.usable_cores", lambda: (0, 1))
    monkeypatch.setattr("outrider.cli.deployment_options.find_compiler", lambda: "cc")
    monkeypatch.setattr("outrider.cli.deployment_options.takes_bfloat16", lambda: True)
    (tmp_path / "model.safetensors").write_bytes(b"")
    threads = spec_from(
        options("--target", str(tmp_path), "--draft", str(tmp_path), "--pair", "apart", "--pacing", "serial", *arguments), None
    ).threads
    assert (threads.verifier, threads.drafter, threads.lent) == plan


def test_torch_is_lent_nothing_where_its_bits_would_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.cli.deployment_options.find_compiler", lambda: None)
    monkeypatch.setattr("outrider.cli.deployment_options.takes_bfloat16", lambda: False)
    (tmp_path / "model.safetensors").write_bytes(b"")
    models = ("--target", str(tmp_path), "--draft", str(tmp_path))
    for dtype in ("float32", "bfloat16"):
        assert spec_from(options(*models, "--numerics", "invariant", "--dtype", dtype), None).threads.lent == 0


def test_each_model_is_told_what_to_keep_of_its_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    names = ("--target", str(tmp_path), "--draft", str(tmp_path))
    for extra, wanted in (
        ((), ("full", "auto")),
        (("--draft-weights", "int8"), ("full", "int8")),
        (("--draft-weights", "full"), ("full", "full")),
        (("--target-weights", "int8"), ("int8", "auto")),
    ):
        spec = spec_from(options(*names, *extra), None)
        assert (spec.target_weights, spec.draft_weights) == wanted
    with pytest.raises(InvalidRequest, match="no draft model") as caught:
        spec_from(options("--target", str(tmp_path), "--draft", "none", "--draft-weights", "int8"), None)
    assert caught.value.field == "--draft-weights"


def test_a_drafter_is_told_how_many_ids_to_guess_among(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    names = ("--target", str(tmp_path), "--draft", str(tmp_path))
    assert spec_from(options(*names), None).draft_shortlist == "auto"
    assert spec_from(options(*names, "--draft-shortlist", "20000"), None).draft_shortlist == "20000"
    alone = ("--target", str(tmp_path), "--draft", "none")
    assert spec_from(options(*alone, "--draft-shortlist", "off"), None).draft is None
    for wrong in ((*names, "--draft-shortlist", "many"), (*alone, "--draft-shortlist", "20000")):
        with pytest.raises(InvalidRequest) as caught:
            spec_from(options(*wrong), None)
        assert caught.value.field == "--draft-shortlist"


def test_make_hands_models_over_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARGET", "ref-medium")
    monkeypatch.setenv("DRAFT", "")
    parsed = options()
    assert (parsed.target, parsed.draft) == ("ref-medium", "ref-small")


def test_without_a_command_the_help_teaches_a_first_hour(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "a first hour" in capsys.readouterr().out


@pytest.mark.parametrize(("service", "module", "example"), _SERVICE_ARGUMENTS)
def test_the_help_names_an_argument_that_a_service_has(
    service: str, module: str, example: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passed on, --help itself would end the service: a start that failed, with the end of a help for its log."""
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        options("--help")
    told = " ".join(capsys.readouterr().out.split())
    assert f"--{service}-arg={example}; repeatable (`python -m {module} --help` lists them)" in told
    listed = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)
    assert example.partition("=")[0] in listed.stdout


@pytest.mark.parametrize("command", ["up", "run", "generate", "bench", "doctor"])
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main([command, "--help"])
    assert leaving.value.code == 0
    assert "examples:" in capsys.readouterr().out
