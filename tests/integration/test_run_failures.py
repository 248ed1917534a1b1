"""Real processes, the reference pair: a drafter killed or stopped in the middle of an answer, cancellation, drain.

One deployment serves the whole module; a test that hurts the drafter makes it well again. Losing drafts may cost speed, never a token.
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from forked_services import ForkedDeployment
from outrider.cli.connection import CollectedAnswer, Connection
from outrider.cli.starting import await_pair
from outrider.errors import Cancelled, Unavailable
from outrider.launch.deployment import Deployment, DeploymentSpec
from outrider.launch.threads import ThreadPlan
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import identity_pb2, sampling_pb2
from outrider_models.paths import model_dir

PROMPT = "Copy this list without smooth summer:\n- hollow story\n- brave flower\n- smooth summer\n- black judge\n- hollow meadow"
NUM_TOKENS = 160
HURT_AFTER = 24
# The services' own round deadline is a fraction of a second; the bound leaves room for a machine that is busy with other things.
MAX_STALL_S = 5.0
SETTLE_S = 60.0


@dataclass
class Pair:
    """A deployment, connections to its three services, and the truth: what plain decoding answers."""

    deployment: Deployment
    gateway: Connection
    verifier: Connection
    truth: list[int]

    def live(self) -> list[identity_pb2.LiveCounts]:
        """What each process that runs holds right now."""
        counts = [self.gateway.model_info().live, self.verifier.verifier_info().live]
        if "drafter" not in self.deployment.failures():
            assert self.deployment.drafter is not None
            with Connection(self.deployment.drafter) as drafter:
                counts.append(drafter.drafter_info().live)
        return counts


def request(*, drafts: bool = True, num_tokens: int = NUM_TOKENS) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        chat=pb.ChatMessages(messages=[pb.ChatMessage(role="user", content=PROMPT)]),
        sampling=sampling_pb2.SamplingParams(temperature=0.8, seed=5),
        max_tokens=num_tokens,
        ignore_eos=True,
        draft=pb.DraftOptions(off=not drafts),
    )


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    spec = DeploymentSpec(str(model_dir("ref-large")), str(model_dir("ref-small")), "serial", ThreadPlan(1, 1), numerics="invariant")
    with ForkedDeployment(spec) as deployment:
        await_pair(deployment)
        with Connection(deployment.gateway) as gateway, Connection(deployment.verifier) as verifier:
            yield Pair(deployment, gateway, verifier, gateway.ask(request(drafts=False)).first.token_ids)


def ask_and_hurt(pair: Pair, hurt: Callable[[], None]) -> CollectedAnswer:
    """One drafted answer; `hurt` is called once HURT_AFTER tokens have come."""
    answer = CollectedAnswer()
    begun_s = time.perf_counter()
    hurt_already = False
    for event in pair.gateway.stream(request()):
        answer.add(event, time.perf_counter() - begun_s)
        if not hurt_already and answer.num_tokens >= HURT_AFTER:
            hurt_already = True
            hurt()
    return answer


def abort_in_the_middle(pair: Pair, request: pb.GenerateRequest) -> None:
    """Read on to the end that the abort brings."""
    num_tokens, aborted = 0, False
    for event in pair.gateway.stream(request):
        num_tokens += len(event.delta.token_ids)
        if num_tokens >= HURT_AFTER and not aborted:
            aborted = True
            pair.gateway.abort(request.request_id)


def longest_stall_s(answer: CollectedAnswer) -> float:
    times = [when for when, _ in answer.first.arrivals]
    return max(after - before for before, after in itertools.pairwise(times))


def until(condition: Callable[[], bool], what: str) -> None:
    """Ask again until it holds; every ask is a round trip to a service."""
    deadline = time.monotonic() + SETTLE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {SETTLE_S} s"


def drafts_again(pair: Pair) -> bool:
    """A short answer has the plain tokens, and drafts in it."""
    answer = pair.gateway.ask(request(num_tokens=HURT_AFTER)).first
    assert answer.token_ids == pair.truth[:HURT_AFTER]
    return answer.finished.statistics.num_accepted > 0


def has_lane(pair: Pair) -> bool:
    """Frames between verifier and drafter go past gRPC."""
    (info,) = pair.verifier.verifier_info().pairs
    return info.connected and info.has_lane


def is_idle(live: identity_pb2.LiveCounts) -> bool:
    return not (live.sessions or live.kv_blocks_used or live.queued)


def test_an_undisturbed_answer_is_the_plain_one_and_used_drafts(pair: Pair) -> None:
    answer = pair.gateway.ask(request()).first
    assert answer.token_ids == pair.truth
    statistics = answer.finished.statistics
    assert statistics.num_accepted > 0
    assert statistics.num_accepted < statistics.num_drafted
    assert statistics.num_drafter_losses == 0


def test_a_stopped_drafter_costs_no_token_and_no_stall(pair: Pair) -> None:
    assert has_lane(pair)
    drafter = pair.deployment.processes["drafter"]
    try:
        answer = ask_and_hurt(pair, lambda: drafter.signal(signal.SIGSTOP))
    finally:
        drafter.signal(signal.SIGCONT)
    assert answer.first.token_ids == pair.truth
    assert longest_stall_s(answer) < MAX_STALL_S
    assert answer.first.finished.statistics.num_drafter_losses >= 1
    until(lambda: drafts_again(pair), "drafting after the drafter was continued")
    until(lambda: has_lane(pair), "a lane after the drafter was continued")


def lose_in_mid_answer(pair: Pair, lose: Callable[[], None]) -> None:
    """The drafter goes away while it is of use: no token changes, nothing stalls, the loss is counted."""
    answer = ask_and_hurt(pair, lose)
    assert answer.first.token_ids == pair.truth
    assert longest_stall_s(answer) < MAX_STALL_S
    statistics = answer.first.finished.statistics
    assert statistics.num_drafter_losses >= 1
    assert statistics.num_accepted > 0, "it was lost in the middle: some drafts came before"


def start_again(pair: Pair) -> None:
    """A new drafter in its place, which drafts."""
    pair.deployment.restart("drafter")
    await_pair(pair.deployment)
    until(lambda: drafts_again(pair), "drafting after the drafter was started again")
    assert has_lane(pair)


def test_a_killed_drafter_costs_no_token_and_no_stall(pair: Pair) -> None:
    drafter = pair.deployment.processes["drafter"]
    lose_in_mid_answer(pair, lambda: drafter.signal(signal.SIGKILL))
    start_again(pair)


@pytest.mark.slow
def test_a_drafter_that_is_told_to_end_takes_leave_and_costs_no_token(pair: Pair) -> None:
    drafter = pair.deployment.processes["drafter"]
    lose_in_mid_answer(pair, lambda: drafter.signal(signal.SIGTERM))
    until(lambda: drafter.exit_code is not None, "the end of a drafter that drains")
    assert drafter.exit_code == 0, drafter.log_tail()
    start_again(pair)


def test_a_cancelled_request_leaves_nothing_on_any_process(pair: Pair) -> None:
    stream = pair.gateway.stream(request(num_tokens=1000))
    tokens = 0
    for event in stream:
        tokens += len(event.delta.token_ids)
        if tokens >= HURT_AFTER:
            assert not all(is_idle(live) for live in pair.live()), "it must be live before it can be gone"
            stream.cancel()
            break
    until(lambda: all(is_idle(live) for live in pair.live()), "freeing everything of a cancelled request")


def test_an_aborted_request_leaves_nothing_either(pair: Pair) -> None:
    long = request(num_tokens=1000)
    long.request_id = "to-be-aborted"
    with pytest.raises(Cancelled):
        abort_in_the_middle(pair, long)
    until(lambda: all(is_idle(live) for live in pair.live()), "freeing everything of an aborted request")


def test_a_drain_finishes_the_answer_under_way_and_refuses_new_ones(pair: Pair) -> None:
    """Ends the deployment: keep it last."""
    under_way = CollectedAnswer()
    enough = threading.Event()
    codes: dict[str, int] = {}

    def stop_everything() -> None:
        enough.wait(SETTLE_S)
        codes.update(pair.deployment.stop())

    stopper = threading.Thread(target=stop_everything)
    stopper.start()
    try:
        for event in pair.gateway.stream(request()):
            under_way.add(event, 0.0)
            if under_way.num_tokens >= HURT_AFTER:
                enough.set()
    finally:
        enough.set()
        stopper.join()
    assert under_way.first.token_ids == pair.truth
    assert codes == {"gateway": 0, "verifier": 0, "drafter": 0}
    with pytest.raises(Unavailable):
        pair.gateway.ask(request())
