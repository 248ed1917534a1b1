"""The chaos driver's clients: whoever loses a gateway asks another for the rest, by id, seed and tokens; and what the report makes of it.

Gateways answer from a script, over real sockets.

pytest tests/unit/test_chaos_askers.py
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import grpc
import pytest

from outrider.errors import InvalidRequest, OutriderError, Overloaded, Unavailable
from outrider.rpc.announcer import SUPERSEDED_EXIT_CODE
from outrider.rpc.status import error_metadata, status_of
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2
from outrider.v1.generation_pb2_grpc import GenerationServiceServicer, add_GenerationServiceServicer_to_server
from outrider_bench.chaos import askers
from outrider_bench.chaos.askers import Askers, Caller, Harvest
from outrider_bench.chaos.driver import MUST_BE_NONE
from outrider_bench.chaos.phase import Phase
from outrider_bench.chaos.report import make_report
from outrider_bench.chaos.site import Drain
from outrider_bench.chaos.stalls import Stretch

WAIT_S = 30.0
SCRIPT = (11, 12, 13, 14, 15)
REQUEST = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1]), sampling=sampling_pb2.SamplingParams(seed=7), max_tokens=len(SCRIPT))


@dataclass
class ScriptedGateway(GenerationServiceServicer):
    """losses: after how many tokens each call in turn ends with which error; then calls are whole. asked: every request."""

    losses: list[tuple[int, OutriderError]] = field(default_factory=list)
    fingerprint: str = "aa"
    asked: list[pb.GenerateRequest] = field(default_factory=list)
    was_asked: threading.Event = field(default_factory=threading.Event)

    def Generate(self, request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        self.asked.append(request)
        self.was_asked.set()
        begin = len(request.resume_token_ids)
        end, error = self.losses.pop(0) if self.losses else (len(SCRIPT), None)
        is_exact = set(request.resume_fingerprints) <= {self.fingerprint}
        if end >= 0:
            yield pb.GenerateResponse(started=pb.Started(request_id="minted", seed=7, fingerprint=self.fingerprint, exact=is_exact))
        for token in SCRIPT[begin : max(0, end)]:
            yield pb.GenerateResponse(delta=pb.Delta(token_ids=[token], origins=[sampling_pb2.TOKEN_ORIGIN_ACCEPTED]))
        if error is not None:
            context.set_trailing_metadata(error_metadata(error))
            context.abort(status_of(error), str(error))
        yield pb.GenerateResponse(finished=pb.Finished(finish_reason=pb.FINISH_REASON_LENGTH, exact=is_exact))
        yield pb.GenerateResponse(done=pb.Done())


@contextmanager
def serving(*gateways: ScriptedGateway) -> Iterator[list[str]]:
    with ExitStack() as stack:
        addresses = []
        for gateway in gateways:
            server = grpc.server(ThreadPoolExecutor(4))
            add_GenerationServiceServicer_to_server(gateway, server)  # type: ignore[no-untyped-call]
            addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            server.start()
            stack.callback(server.stop, 0.0)
        yield addresses


LOST = Unavailable("gone")


@pytest.mark.parametrize("num_before", range(-1, len(SCRIPT) + 1))
def test_a_lost_gateways_answer_is_asked_of_the_next_by_id_seed_and_tokens(num_before: int) -> None:
    lost, other = ScriptedGateway([(num_before, LOST)]), ScriptedGateway()
    times = [0.0]
    with serving(lost, other) as addresses, Caller(addresses, preferred=0) as caller:
        answer = caller.ask(REQUEST, times)
        assert tuple(answer.first.token_ids) == SCRIPT
        assert (caller.num_resumes, answer.first.finished.exact, len(times)) == (1, True, 1 + len(SCRIPT))
        assert caller.ask(REQUEST, [0.0]).num_tokens == len(SCRIPT)
        assert (len(lost.asked), len(other.asked)) == (1, 2), "it stays with whom it has found"
    asked = other.asked[0]
    assert tuple(asked.resume_token_ids) == SCRIPT[: max(0, num_before)]
    assert list(asked.resume_fingerprints) == (["aa"] if num_before > 0 else [])
    assert (asked.request_id, asked.takes_over) == ("" if num_before < 0 else "minted", True)
    assert (asked.sampling.seed, asked.max_tokens) == (7, len(SCRIPT))


def test_clients_prefer_gateways_in_turns() -> None:
    gateways = ScriptedGateway(), ScriptedGateway()
    with serving(*gateways) as addresses:
        for preferred in range(4):
            with Caller(addresses, preferred) as caller:
                caller.ask(REQUEST, [0.0])
    assert [len(gateway.asked) for gateway in gateways] == [2, 2]


@pytest.mark.parametrize(
    ("error", "num_before"), [(InvalidRequest("prompt", "bad"), 2), (Overloaded("full"), -1)], ids=["no loss", "full before it began"]
)
def test_what_is_no_loss_is_lost_for_good(error: OutriderError, num_before: int) -> None:
    with serving(ScriptedGateway([(num_before, error)])) as addresses, Caller(addresses, 0) as caller:
        with pytest.raises(type(error)):
            caller.ask(REQUEST, [0.0])
        assert not caller.num_resumes


def test_when_no_gateway_goes_on_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(askers, "MAX_RESUMES", 3)
    monkeypatch.setattr(askers, "RESUME_PAUSE_S", 0.0)
    with Caller(["127.0.0.1:1"], 0) as caller:
        with pytest.raises(Unavailable):
            caller.ask(REQUEST, [0.0])
        assert caller.num_resumes == 3


def test_askers_count_what_they_asked_again_and_what_is_not_called_exact() -> None:
    lost, other = ScriptedGateway([(2, LOST)]), ScriptedGateway(fingerprint="bb")
    with serving(lost, other) as addresses:
        with Askers(addresses, [REQUEST], num=1) as clients:
            assert other.was_asked.wait(WAIT_S)
        harvest = clients.harvest
    assert not harvest.errors
    assert set(harvest.answers) == {(0, SCRIPT)}
    assert (harvest.num_resumes, harvest.num_inexact) == (1, 1)


def reported(harvest: Harvest, zombie_codes: Sequence[int]) -> dict[str, object]:
    phases = [Phase(1, one, Stretch(0.0, 1.0), [], 1.0) for one in (harvest, Harvest())]
    return make_report(phases[0], phases[1], [SCRIPT], [Drain("v", 0, 1.0)], zombie_codes, {})


def test_a_report_counts_resumes_and_zombies_that_did_not_end_as_they_should() -> None:
    fine = reported(Harvest(num_resumes=3), [SUPERSEDED_EXIT_CODE])
    assert (fine["resumes"], fine["zombies"]) == (3, 1)
    assert not any(fine[key] for key in MUST_BE_NONE if key in fine)
    bad = reported(Harvest(num_inexact=2), [SUPERSEDED_EXIT_CODE, 0, -9])
    assert (bad["answers_inexact"], bad["zombies"], bad["zombies_unaware"]) == (2, 3, 2)
