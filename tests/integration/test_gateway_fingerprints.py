"""A gateway over verifiers of different numerics: one answer's engine is always of the fingerprint it is labelled with.

pytest tests/integration/test_gateway_fingerprints.py
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from fakes_verifier import FakeVerifier, GatewayUnderTest, fake_identity, gateway_over
from outrider.errors import Unavailable
from outrider.types.generation import GenerationRequest, Started
from outrider.types.identity import Numerics

EOS = 3
OTHER = replace(fake_identity(), fingerprint="dd" * 16, numerics=Numerics.FAST)


async def started(under_test: GatewayUnderTest) -> Started:
    answer = under_test.client.generate(GenerationRequest(token_ids=(0, 1, 40), seed=7), timeout_s=10.0)
    events = [event async for event in answer]
    assert isinstance(events[0], Started)
    return events[0]


async def test_requests_stay_with_one_fingerprint_and_the_log_names_the_reserve(caplog: pytest.LogCaptureFixture) -> None:
    first, reserve, third = FakeVerifier([EOS]), FakeVerifier([EOS], identity=OTHER), FakeVerifier([EOS])
    with caplog.at_level(logging.WARNING):
        async with gateway_over(first, reserve, third) as under_test:
            labels = {(await started(under_test)).fingerprint for _ in range(4)}
    assert labels == {first.identity.fingerprint}
    assert (len(first.starts), len(reserve.starts), len(third.starts)) == (2, 0, 2)
    assert f"is a reserve: its numerics have fingerprint {OTHER.fingerprint}" in caplog.text


async def test_the_reserve_takes_over_as_a_whole_and_is_labelled_as_what_it_is() -> None:
    first, reserve = FakeVerifier([EOS]), FakeVerifier([EOS], identity=OTHER)
    async with gateway_over(first, reserve) as under_test:
        answer = await started(under_test)
        assert (answer.fingerprint, answer.exact) == (first.identity.fingerprint, True)
        first.refuse = Unavailable("draining")
        answer = await started(under_test)  # nothing of its answer was told before
        assert (answer.fingerprint, answer.exact) == (OTHER.fingerprint, False)
        assert len(reserve.starts) == 1


async def test_another_engine_at_a_known_address_is_asked_who_it_is_before_it_answers() -> None:
    fake = FakeVerifier([EOS])
    async with gateway_over(fake) as under_test:
        assert (await started(under_test)).exact
        fake.identity = OTHER
        answer = await started(under_test)
        assert (answer.fingerprint, answer.exact) == (OTHER.fingerprint, False)
        assert len(fake.starts) == 3, "the opening that found out was given up, and another made once it was asked who it is"
        assert len(fake.starts) == 3, "the opening that found out was given up, and another made once it was asked who it is"
