"""Two verifiers as processes of their own, the reference model, one Redis: what one answered the other guesses, and Redis may die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fakes_redis import redis_server
from forked_services import ForkedDeployment
from outrider.cli.connection import CollectedSample, Connection
from outrider.launch.deployment import DeploymentSpec
from outrider.launch.threads import ThreadPlan
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2
from outrider_bench.chaos.redis_server import RedisServer
from outrider_models.paths import model_dir

NUM_TOKENS = 64
PROMPT = "A shop has 12 cups. It sells 5 of them and buys 9 more. How many cups does the shop have now? "
GAIN = 1.5  # of tokens a round; three and more where the machine is quiet


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(Path(tmp_path_factory.mktemp("redis"))) as server:
        yield server


@pytest.fixture(scope="module")
def gateways(redis: RedisServer) -> Iterator[list[Connection]]:
    """Of two deployments without a drafter."""
    shared = ("--redis-url", redis.url)
    spec = DeploymentSpec(str(model_dir("ref-small")), None, "lookup", ThreadPlan(1, 1), numerics="invariant", verifier_extra=shared)
    with ExitStack() as stack:
        deployments = [stack.enter_context(ForkedDeployment(spec)) for _ in range(2)]
        yield [stack.enter_context(Connection(deployment.gateway)) for deployment in deployments]


def ask(gateway: Connection, tenant: str, *, pacing: str = "lookup") -> CollectedSample:
    prompt = list(gateway.tokenize(text=PROMPT))
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=prompt),
        sampling=sampling_pb2.SamplingParams(temperature=0.8, seed=11),
        max_tokens=NUM_TOKENS,
        ignore_eos=True,
        cache_salt=tenant,
        draft=pb.DraftOptions(pacing=pacing, off=pacing == "plain"),
    )
    return gateway.ask(request).samples[0]


def per_round(sample: CollectedSample) -> float:
    return len(sample.token_ids) / sample.finished.statistics.num_rounds


def test_what_one_process_answered_another_guesses_for_the_same_tenant(gateways: list[Connection], redis: RedisServer) -> None:
    one, other = gateways
    truth = ask(one, "nobody", pacing="plain").token_ids
    first = ask(one, "a")
    strangers = [ask(other, f"stranger{number}") for number in range(2)]
    seconds = [ask(other, "a") for _ in range(2)]
    assert all(sample.token_ids == truth for sample in (first, *strangers, *seconds))
    assert max(map(per_round, seconds)) > GAIN * max(per_round(sample) for sample in (first, *strangers))
    redis.kill()
    for gateway in gateways:
        again = ask(gateway, "a")
        assert again.token_ids == truth
        assert per_round(again) > GAIN * per_round(first), "each still knows what it fetched or answered"
        assert ask(gateway, "late").token_ids == truth
    redis.start()
    assert ask(one, "b").token_ids == truth
