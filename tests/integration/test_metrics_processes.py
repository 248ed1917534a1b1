"""Real processes, scraped as Prometheus would: what a request leaves behind, its audit among it.

The gateway runs over a scripted verifier, verifier and drafter are scraped in test_verifier_announced.py too; the whole deployment with
the reference model is slow.

    pytest -m '' tests/integration/test_metrics_processes.py
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fakes_failover import REQUEST, SCRIPT
from fakes_verifier import MODEL_DIR, FakeVerifier, serving
from outrider.cli.connection import Connection
from outrider.cli.starting import await_pair
from outrider.client import connect
from outrider.launch.deployment import Deployment, DeploymentSpec
from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider.launch.threads import ThreadPlan
from outrider.telemetry import names
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2
from outrider_models.paths import model_dir
from scrape import ANY_PORT, Scrape

START_S = 120.0
SETTLE_S = 60.0
NUM_TOKENS = 96


def scraped_until_audited(url: object, num_audits: int = 1) -> Scrape:
    deadline_s = time.monotonic() + SETTLE_S
    while (found := Scrape(url)).total(names.NUM_IDENTITY_AUDITS) < num_audits:
        assert time.monotonic() < deadline_s, "no audit came to its end"
    return found


async def test_a_gateway_process_audits_and_says_so(tmp_path: Path) -> None:
    fake = FakeVerifier(lambda start: [*SCRIPT[:5], 99] if start.draft.off and start.noise.seed == 8 else SCRIPT)
    async with serving(fake, f"unix:{tmp_path}/v.sock") as verifier:
        options = ("--verifier", verifier, "--listen", f"unix:{tmp_path}/g.sock", "--model-dir", str(MODEL_DIR), "--audit-share", "1")
        process = ServiceProcess(ServiceCommand("gateway", ("-m", "outrider.gateway", *options, *ANY_PORT)), tmp_path / "gateway.log")
        try:
            ready = await asyncio.to_thread(process.wait_ready, time.monotonic() + START_S)
            before = await asyncio.to_thread(Scrape, ready["metrics"])
            assert before.value(names.NUM_IDENTITY_MISMATCHES, "target") == 0, "an alarm needs the zero before the first"
            async with await connect(str(ready["address"])) as client:
                for seed in (7, 8):
                    await client.generate_once(replace(REQUEST, seed=seed), START_S)
                found = await asyncio.to_thread(scraped_until_audited, ready["metrics"], 2)
        finally:
            code = await asyncio.to_thread(process.stop, START_S)
    assert code == 0
    assert [found.value(names.NUM_IDENTITY_AUDITS, "target", outcome) for outcome in ("equal", "mismatch")] == [1, 1]
    assert found.value(names.NUM_IDENTITY_MISMATCHES, "target") == 1
    assert found.value(f"{names.REQUEST_SECONDS.name}_count", "target", "OK") == 2
    assert found.value(f"{names.FIRST_TOKEN_SECONDS.name}_count", "target") == 2
    assert found.value(names.LIVE_SESSIONS, "gateway") == 0
    assert (found.value("process_resident_memory_bytes") or 0) > 0
    assert "ERROR outrider.gateway.auditor: identity mismatch: sample 0 of request req-" in process.log_tail(200)


def test_a_coordinator_says_who_is_in_lease(tmp_path: Path) -> None:
    arguments = ("-m", "outrider.coordinator", "--listen", f"unix:{tmp_path}/c.sock", *ANY_PORT)
    process = ServiceProcess(ServiceCommand("coordinator", arguments), tmp_path / "coordinator.log")
    try:
        found = Scrape(process.wait_ready(time.monotonic() + START_S)["metrics"])
        assert [found.value(names.LIVE_REPLICAS, role) for role in ("verifier", "drafter")] == [0, 0]
    finally:
        assert process.stop(START_S) == 0


@pytest.mark.slow
def test_a_request_and_its_audit_are_in_every_process_metrics() -> None:
    small = str(model_dir("ref-small"))
    spec = DeploymentSpec(small, small, "serial", ThreadPlan(1, 1), numerics="invariant")
    spec = replace(spec, drafter_extra=ANY_PORT, verifier_extra=ANY_PORT, gateway_extra=(*ANY_PORT, "--audit-share", "1"))
    turn = pb.ChatMessage(role="user", content="What is 12 times 34?")
    sampling = sampling_pb2.SamplingParams(temperature=0.8, seed=5)
    request = pb.GenerateRequest(chat=pb.ChatMessages(messages=[turn]), sampling=sampling, max_tokens=NUM_TOKENS, ignore_eos=True)
    with Deployment(spec, START_S) as deployment, Connection(deployment.gateway) as connection:
        await_pair(deployment)
        answer = connection.ask(request)
        gateway = scraped_until_audited(deployment.ready["gateway"]["metrics"])
        verifier = Scrape(deployment.ready["verifier"]["metrics"])
        drafter = Scrape(deployment.ready["drafter"]["metrics"])
    assert answer.started.exact
    assert gateway.value(names.NUM_IDENTITY_AUDITS, "ref-small", "equal") == 1
    assert gateway.value(names.NUM_IDENTITY_MISMATCHES, "ref-small") == 0

    assert verifier.value(f"{names.QUEUE_SECONDS.name}_count", "ref-small") == 2, "the answer and its replay"
    assert verifier.value(names.NUM_EMITTED_TOKENS, "ref-small", "serial") == NUM_TOKENS
    assert verifier.value(names.NUM_DRAFT_TOKENS, "ref-small", "plain") == 0
    assert verifier.total(names.STEP_SECONDS) > 0
    assert verifier.total(names.NUM_STEPS) >= NUM_TOKENS
    judged, right = verifier.total(names.NUM_JUDGED_TOKENS), verifier.total(names.NUM_RIGHT_TOKENS)
    assert judged >= right > 0.9 * judged, "it drafts for itself"

    assert drafter.total(names.NUM_GUESSED_TOKENS) >= right
    assert drafter.total(names.GUESSING_SECONDS) > 0
