"""What a session may draft: wishes that are set win, what is unset is the deployment's, the rest is refused by name."""

from __future__ import annotations

import math

import pytest

from fakes_verifier import fake_identity
from fakes_verifier_service import PROMPT, start
from outrider.errors import DoesNotFit, InvalidRequest
from outrider.types.frames import MAX_SVIP_THRESHOLD, DraftLimits
from outrider.v1 import generation_pb2 as pb
from verifier_service.admission import Admission
from verifier_service.settings import DraftDefaults

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
