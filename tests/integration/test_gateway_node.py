"""A client in another language, from the protos alone: Node with grpc-js streams an answer.

Installs two pinned packages into tests/integration/node_client/node_modules on the first run (git ignores it) and keeps them.
It fails, rather than skips, where Node or its packages cannot be had: the API is promised to every language.

    pytest tests/integration/test_gateway_node.py
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fakes_verifier import MODEL_DIR, FakeVerifier, gateway_over
from outrider.errors import InvalidRequest
from outrider.gateway.tokenizer import load_tokenizer

CLIENT_DIR = Path(__file__).parent / "node_client"
PROTO_ROOT = Path(__file__).parents[2] / "proto"
INSTALLED = CLIENT_DIR / "node_modules" / "installed-lock.json"
INSTALL_TIMEOUT_S = 120.0
RUN_TIMEOUT_S = 30.0
TOKENIZER = load_tokenizer(MODEL_DIR)
EOS = 3


async def run(*command: str, timeout_s: float) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(*command, cwd=CLIENT_DIR, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
    except TimeoutError:
        process.kill()
        await process.communicate()
        return None, "", f"did not end within {timeout_s:g} s"
    return process.returncode, out.decode(), err.decode()


async def node() -> str:
    """The node program, with the client's packages installed as the lock file says."""
    program, npm = shutil.which("node"), shutil.which("npm")
    if program is None or npm is None:
        pytest.fail("this test needs Node.js 18 or newer with npm; install them (Debian: apt-get install nodejs npm) and run it again")
    lock = (CLIENT_DIR / "package-lock.json").read_bytes()
    if not INSTALLED.is_file() or INSTALLED.read_bytes() != lock:
        code, out, err = await run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", timeout_s=INSTALL_TIMEOUT_S)
        if code != 0:
            pytest.fail(f"`npm ci` in {CLIENT_DIR.name} failed, so the Node client cannot run (is an npm registry reachable?):\n{out}{err}")
        INSTALLED.write_bytes(lock)
    return program


async def stream(address: str, *arguments: str) -> tuple[int | None, dict[str, Any]]:
    code, out, err = await run(await node(), "client.js", str(PROTO_ROOT), address, *arguments, timeout_s=RUN_TIMEOUT_S)
    assert out, err
    answer: dict[str, Any] = json.loads(out)
    return code, answer


async def test_a_node_client_streams_an_answer() -> None:
    text = "Grüße 😀, world"
    script = [*TOKENIZER.encode(text), EOS]
    fake = FakeVerifier(script, run_lens=(3, 1))
    async with gateway_over(fake) as under_test:
        code, answer = await stream(under_test.gateway.address, "say it")
    assert code == 0
    assert (answer["text"], answer["token_ids"]) == (text, script)
    assert answer["num_deltas"] > 3, "it came in parts"
    assert answer["started"]["seed"] == str(2**64 - 1)
    assert answer["started"]["exact"] is True
    assert answer["finished"]["finish_reason"] == "FINISH_REASON_STOP_TOKEN"
    assert answer["usage"]["completion_tokens"] == len(script)


async def test_a_node_client_reads_a_refusal() -> None:
    refusal = InvalidRequest("draft.pacing", "is unknown")
    async with gateway_over(FakeVerifier([EOS], refuse=refusal)) as under_test:
        code, answer = await stream(under_test.gateway.address, "say it", "5")
    assert code == 1
    assert answer["error"] == {"code": "INVALID_ARGUMENT", "details": str(refusal)}
