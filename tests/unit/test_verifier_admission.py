"""What a session may draft: wishes that are set win, what is unset is the deployment's, the rest is refused by name."""

from __future__ import annotations

import dataclasses
import math

import pytest

from fakes_coordinator import fake_replica
from fakes_verifier import fake_identity
from fakes_verifier_service import PROMPT, start
from outrider.errors import DoesNotFit, InvalidRequest
from outrider.rpc.address import MAX_ADDRESS_LEN
from outrider.rpc.convert.fleet import replica_from_proto, replica_to_proto
from outrider.types.fleet import PairMeasurement
from outrider.types.frames import MAX_SVIP_THRESHOLD, DraftLimits
from outrider.v1 import generation_pb2 as pb
from verifier_service.admission import Admission
from verifier_service.settings import DraftDefaults, parse_settings

DEFAULTS = DraftDefaults(pacing="serial", max_len=16, max_nodes=48, tree_width=2, stop_below=0.375, svip_threshold=0.25)


def limits(**wishes: object) -> DraftLimits:
    options = pb.DraftOptions(**wishes)  # type: ignore[arg-type]
    return Admission(fake_identity(), DEFAULTS, 0).check(start(draft=options), frozenset()).spec.limits


def test_what_is_not_wished_for_is_the_deployments() -> None:
    found = limits()
    assert (found.max_nodes, found.tree_width, found.stop_below, found.svip_threshold) == (48, 2, 0.375, 0.25)


def test_every_stop_rule_can_be_wished_for_and_switched_off() -> None:
    wished = limits(tree_width=1, stop_below=0.0, svip_threshold=0.5)
    assert (wished.tree_width, wished.stop_below, wished.svip_threshold) == (1, 0.0, 0.5)
    assert limits(svip_threshold=0.0).svip_threshold == 0.0
    assert limits(svip_threshold=0.0).stop_below == 0.375


def test_drafters_and_none_contradict_each_other() -> None:
    admission = Admission(fake_identity(), DEFAULTS, 0)
    assert admission.check(start(no_drafters=True), frozenset()).drafters == frozenset()
    with pytest.raises(InvalidRequest) as caught:
        admission.check(start(drafters=["d:1"], no_drafters=True), frozenset())
    assert caught.value.field == "no_drafters"


def test_a_drafter_that_no_coordinator_would_take_in_a_heartbeat_is_refused() -> None:
    longest = "unix:/".ljust(MAX_ADDRESS_LEN, "x")
    admission = Admission(fake_identity(), DEFAULTS, 0)
    assert admission.check(start(drafters=[longest]), frozenset()).spec.request_id
    with pytest.raises(InvalidRequest, match=str(MAX_ADDRESS_LEN)) as caught:
        admission.check(start(drafters=["d:1", longest + "x"]), frozenset())
    assert caught.value.field == "drafters"
    paired = dataclasses.replace(fake_replica(), pairs={longest: PairMeasurement(1)})
    assert replica_from_proto(replica_to_proto(paired)).pairs.keys() == {longest}
    with pytest.raises(InvalidRequest):
        replica_from_proto(replica_to_proto(dataclasses.replace(fake_replica(), pairs={longest + "x": PairMeasurement(1)})))


@pytest.mark.parametrize("address", ["nonsense", "unix:/".ljust(MAX_ADDRESS_LEN + 1, "x")])
def test_a_configured_drafter_at_no_address_is_refused_before_a_model_is_loaded(address: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_settings(["--model", "nowhere", "--drafter", "10.0.0.2:7072", "--drafter", address])
    assert caught.value.field == "--drafter"


@pytest.mark.parametrize("threshold", [-0.1, MAX_SVIP_THRESHOLD + 0.1, math.nan, math.inf])
def test_a_threshold_that_cannot_be_is_refused_by_its_name(threshold: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        limits(svip_threshold=threshold)
    assert caught.value.field == "draft.svip_threshold"


def test_an_answer_longer_than_the_context_is_refused_and_never_cut() -> None:
    """Verifiers of one fingerprint may have contexts of several lengths: cut, the answer would end elsewhere at each of them."""
    admission, room = Admission(fake_identity(max_context=64), DEFAULTS, 0), 64 - len(PROMPT)
    assert admission.check(start(max_tokens=room), frozenset()).spec.max_len == 64
    with pytest.raises(DoesNotFit, match=f"prompt tokens leave {room} of 64") as caught:
        admission.check(start(max_tokens=room + 1), frozenset())
    assert caught.value.field == "max_tokens"
