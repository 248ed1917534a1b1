"""The gateway as a process of its own: ready line, no torch, drain on SIGTERM, clear failures.

pytest tests/integration/test_gateway_process.py
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fakes_verifier import MODEL_DIR, FakeVerifier, Hold, gateway_over, serving
from outrider.client import address_of_ready_line, connect
from outrider.errors import Unavailable
from outrider.gateway.__main__ import MOST_CONCURRENT_RPCS, MOST_MESSAGE_MIB, parse_config
from outrider.gateway.gateway import GatewayConfig, start_gateway
from outrider.gateway.limits import FailoverLimits
from outrider.rpc.channel import open_channel
from outrider.rpc.server import ServerLimits
from outrider.types.generation import Delta, Done, GenerationRequest

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 60.0
EOS = 3


async def start(*arguments: str) -> asyncio.subprocess.Process:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "services")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "outrider.gateway",
        *arguments,
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@asynccontextmanager
async def gateway_process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process and the address of its ready line; killed at the end if it still runs."""
    process = await start(*arguments)
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        yield process, address_of_ready_line(line.decode())
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def finished(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    out, err = await asyncio.wait_for(process.communicate(), START_TIMEOUT_S)
    return process.returncode, out.decode(), err.decode()


async def test_a_signal_lets_the_live_answer_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    fake = FakeVerifier([40, 41, 42, EOS], hold=Hold.AFTER_FIRST_COMMIT)
    socket = f"unix:{tmp_path}/gateway.sock"
    async with serving(fake, f"unix:{tmp_path}/verifier.sock") as verifier:
        arguments = ("--verifier", verifier, "--listen", socket, "--model-dir", str(MODEL_DIR), "--drain-grace-s", "8")
        async with gateway_process(*arguments) as (process, address), await connect(address) as client:
            assert address == socket
            running = client.generate(GenerationRequest(prompt="hi"))
            await anext(running)
            assert isinstance(await anext(running), Delta)
            await fake.reached.wait()
            process.send_signal(signal.SIGTERM)
            async with open_channel(address) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                watch = health.Watch(health_pb2.HealthCheckRequest(service="outrider.v1.GenerationService"))
                while (await asyncio.wait_for(watch.read(), STOP_TIMEOUT_S)).status != health_pb2.HealthCheckResponse.NOT_SERVING:
                    pass
            with pytest.raises(Unavailable, match="draining"):
                await client.generate_once(GenerationRequest(prompt="hi"))
            fake.release.set()
            events = [event async for event in running]
            assert isinstance(events[-1], Done)
            code = await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    assert code == 0


async def test_health_and_reflection_answer_the_generated_stubs() -> None:
    async with (
        serving(FakeVerifier([EOS])) as verifier,
        gateway_process("--verifier", verifier, "--listen", "127.0.0.1:0", "--model-dir", str(MODEL_DIR)) as (_, address),
        open_channel(address) as channel,
    ):
        assert not address.endswith(":0"), "the ready line holds the real port"
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "outrider.v1.GenerationService"):
            status = (await health.Check(health_pb2.HealthCheckRequest(service=service))).status
            assert status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {service.name for service in (await call.read()).list_services_response.service}
        await call.done_writing()
    assert "outrider.v1.GenerationService" in listed


async def test_the_gateway_waits_for_a_verifier_that_starts_after_it(tmp_path: Path) -> None:
    socket = f"unix:{tmp_path}/late.sock"
    process = await start("--verifier", socket, "--listen", "127.0.0.1:0", "--model-dir", str(MODEL_DIR))
    try:
        assert process.stdout is not None
        async with serving(FakeVerifier([40, EOS]), socket):
            line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
            async with await connect(address_of_ready_line(line.decode())) as client:
                answer = await client.generate_once(GenerationRequest(prompt="hi"))
        assert answer.samples[0].token_ids == (40, EOS)
        assert json.loads(line)["pid"] == process.pid
    finally:
        process.kill()
        await process.communicate()


async def test_health_follows_the_verifiers(tmp_path: Path) -> None:
    socket = f"unix:{tmp_path}/verifier.sock"
    async with AsyncExitStack() as stack:
        async with serving(FakeVerifier([EOS]), socket):
            config = GatewayConfig(
                ("127.0.0.1:0",), (socket,), MODEL_DIR, verifier_refresh_s=0.05, failover=FailoverLimits(begin_timeout_s=0.2)
            )
            gateway = await start_gateway(config)
            stack.push_async_callback(gateway.stop, 0.0)
            channel = await stack.enter_async_context(open_channel(gateway.address))
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        assert (await asyncio.wait_for(watch.read(), STOP_TIMEOUT_S)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        client = await stack.enter_async_context(await connect(gateway.address))
        with pytest.raises(Unavailable, match="no verifier answers"):
            await client.generate_once(GenerationRequest(prompt="hi"))
        async with serving(FakeVerifier([40, EOS]), socket):
            assert (await asyncio.wait_for(watch.read(), STOP_TIMEOUT_S)).status == health_pb2.HealthCheckResponse.SERVING
            assert (await client.generate_once(GenerationRequest(prompt="hi"))).samples[0].token_ids == (40, EOS)
        watch.cancel()


async def test_without_a_verifier_it_ends_with_a_sentence(tmp_path: Path) -> None:
    code, out, err = await finished(
        await start("--verifier", f"unix:{tmp_path}/nobody.sock", "--model-dir", str(MODEL_DIR), "--verifier-timeout-s", "0.2")
    )
    assert (code, out) == (1, "")
    assert "nobody.sock did not answer within 0.2 s" in err
    assert "Traceback" not in err


async def test_help_teaches_and_a_wrong_command_line_names_the_option() -> None:
    (code, out, _), (wrong_code, _, err) = await asyncio.gather(
        finished(await start("--help")), finished(await start("--verifier", "x:1", "--max-live-requests", "0"))
    )
    assert code == 0
    for word in ("--verifier", "--listen", "--model-dir", "unix:/path", "SIGTERM", "ready"):
        assert word in out
    assert wrong_code == 2
    assert "--max-live-requests" in err


def test_times_are_numbers_of_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    config, _ = parse_config(["--verifier", "x:1", "--failover-timeout-s", "2.5", "--verifier-timeout-s", "3", "--drain-grace-s", "0"])
    assert (config.failover.place_timeout_s, config.verifier_timeout_s, config.drain_grace_s) == (2.5, 3.0, 0.0)
    for option in ("--failover-timeout-s", "--verifier-timeout-s", "--drain-grace-s"):
        for wrong in ("-1", "nan", "inf", "1e9", "soon"):
            with pytest.raises(SystemExit):
                parse_config(["--verifier", "x:1", f"{option}={wrong}"])
            assert f"{option}: must be a number of seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "wrong", "problem"),
    [
        ("--max-message-mib", "2048", "must be a whole number in [1, 1024], got 2048"),
        ("--max-concurrent-rpcs", "3000000000", "must be a whole number in [1, 1000000], got 3000000000"),
        ("--max-concurrent-rpcs", "0", "must be a whole number in [1, 1000000], got 0"),
        ("--max-live-samples", "many", "must be a whole number in [1, 2147483647], got many"),
        ("--max-live-requests", "99999999999", "must be a whole number in [1, 2147483647], got 99999999999"),
        ("--listen", "nonsense", "'nonsense' is neither host:port nor unix:/path"),
        ("--verifier", "x:99999", "'x:99999' is neither host:port nor unix:/path"),
        ("--coordinator", "unix:", "unix: needs a path"),
    ],
)
def test_what_no_start_could_use_is_refused_before_a_verifier_is_waited_for(
    option: str, wrong: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_config(["--verifier", "x:1", f"{option}={wrong}"])
    *_, last = capsys.readouterr().err.splitlines()
    assert (ended.value.code, last.endswith(f"{option}: {problem}")) == (2, True), last


async def test_the_largest_values_are_served() -> None:
    largest = ServerLimits(MOST_MESSAGE_MIB * 2**20, MOST_CONCURRENT_RPCS)
    async with gateway_over(FakeVerifier([40, EOS]), server=largest) as under_test:
        answer = await under_test.client.generate_once(GenerationRequest(prompt="hi"))
    assert answer.samples[0].token_ids == (40, EOS)


async def test_the_gateway_never_imports_torch() -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; import outrider.gateway.__main__;"
        "from outrider.gateway.tokenizer import load_tokenizer; load_tokenizer(Path(sys.argv[2]));"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(ROOT / "services"), str(MODEL_DIR), stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
