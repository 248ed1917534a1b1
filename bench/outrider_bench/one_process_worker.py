"""The process behind `one_process.OneProcess`: one JSON request a line in, one JSON reply a line out.

Run as `python -m outrider_bench.one_process_worker OPTIONS`, a JSON list of pair_service's command-line arguments. Loads with the services'
loaders, checks requests with the gateway's and the verifier's checks, and decodes with their schedulers (in_turns.py). Serves nothing. Ends
when its input ends.
"""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict
from typing import Any

from drafter_service.drafting_thread import LoadedDrafter
from drafter_service.loading import load_drafter
from outrider.engine.contract import Engine
from outrider.engine.load import load_engine
from outrider.errors import OutriderError
from outrider.gateway.checks import check_request
from outrider.gateway.limits import GatewayLimits, ServedModel
from outrider.gateway.resolved import resolve
from outrider.gateway.sample_run import decode_start
from outrider.rpc.convert.tokens import statistics_to_proto
from outrider.v1 import generation_pb2
from outrider_bench.contestants import draft_numbers
from outrider_bench.in_turns import PairInTurns
from pair_service.__main__ import parse
from verifier_service.admission import Admission
from verifier_service.resident import RESIDENT
from verifier_service.settings import VerifierSettings


class Answering:
    """Requests as a gateway would get them, answered by a pair in turns."""

    def __init__(self, settings: VerifierSettings, pair: PairInTurns) -> None:
        identity = pair.engine.identity
        self._pair = pair
        self._served = ServedModel("", identity)
        self._limits = GatewayLimits()
        self._admission = Admission(identity, settings.draft, settings.max_prompt_len)

    def answer(self, message: generation_pb2.GenerateRequest) -> dict[str, Any]:
        """A reply for worker.answer_of. Raises what a service would refuse it with."""
        checked = check_request(message, self._served, self._limits)
        resolved = resolve(checked, "bench", "token_ids", message.token_ids.ids, self._served, self._limits)
        told = self._pair.answer(self._admission.check(decode_start(resolved, "bench", 0), frozenset({RESIDENT})))
        return {
            "tokens": told.tokens,
            "first_token_ms": told.first_token_ms,
            "total_ms": told.total_ms,
            "draft": asdict(draft_numbers(statistics_to_proto(told.statistics))),
        }


def serve(options: list[str]) -> None:
    """Load both, then answer requests until the input ends."""
    target_settings, draft_settings = parse(options)

    def load_draft() -> LoadedDrafter:
        return load_drafter(draft_settings)

    def load() -> Engine:
        return load_engine(target_settings.engine)

    with PairInTurns(load_draft, load, target_settings.draft.draft_len) as pair:
        answering = Answering(target_settings, pair)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            try:
                message = generation_pb2.GenerateRequest.FromString(bytes.fromhex(json.loads(line)["request"]))
                reply = answering.answer(message)
            except OutriderError as error:
                reply = {"error": str(error)}
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    serve(json.loads(sys.argv[1]))
