"""Values of outrider.types: ranges are refused by name, pairs are judged with a sentence, hashes roll."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from outrider.errors import InvalidRequest, UnsupportedParameter
from outrider.types.identity import ModelIdentity, Numerics, incompatibility
from outrider.types.sampling import MAX_LOGIT_BIAS_ENTRIES, SamplingParams
from outrider.types.tree import DraftTree, extend_hash

IDENTITY = ModelIdentity(
    model="large",
    revision="",
    weights_hash="aa",
    vocab_hash="0123456789abcdef",
    vocab_size=100,
    dtype="float32",
    numerics=Numerics.FAST,
    fingerprint="ff",
    max_context=64,
    eos_token_ids=(1,),
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", 10.5),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", 1.0),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("repetition_penalty", 1 / 129),
        ("repetition_penalty", 129.0),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("logit_bias", ((100, 1.0),)),
        ("logit_bias", ((3, 101.0),)),
        ("logit_bias", tuple((i, 0.0) for i in range(MAX_LOGIT_BIAS_ENTRIES + 1))),
    ],
)
def test_out_of_range_sampling_is_refused_by_name(field: str, value: Any) -> None:
    params = dataclasses.replace(SamplingParams(), **{field: value})
    with pytest.raises(InvalidRequest) as refused:
        params.check(vocab_size=100)
    assert refused.value.field.startswith(f"sampling.{field}")


def test_defaults_and_extremes_are_in_range() -> None:
    SamplingParams().check(1)
    SamplingParams(0.0, 5, 1e-6, 0.999, 1.3, 2.0, -2.0, ((0, -100.0), (99, 100.0))).check(100)


def test_only_penalties_make_the_pick_depend_on_history() -> None:
    assert not SamplingParams(temperature=0.3, top_k=4, logit_bias=((1, 2.0),)).has_penalties
    assert SamplingParams(repetition_penalty=1.1).has_penalties
    assert SamplingParams(presence_penalty=0.1).has_penalties
    assert SamplingParams(frequency_penalty=-0.1).has_penalties


def test_unsupported_is_an_invalid_request() -> None:
    error = UnsupportedParameter("adapter", "no adapters are served here")
    assert isinstance(error, InvalidRequest)
    assert str(error) == "adapter: no adapters are served here"


def test_an_equal_pair_is_compatible_whatever_the_weights() -> None:
    small = dataclasses.replace(IDENTITY, model="small", weights_hash="bb", fingerprint="00", dtype="bfloat16", max_context=9)
    assert incompatibility(small, IDENTITY) is None


@pytest.mark.parametrize(
    ("change", "mention"),
    [
        ({"vocab_hash": "fedcba9876543210"}, "fedcba987654"),
        ({"vocab_size": 99}, "99"),
        ({"noise_revision": 7}, "7"),
        ({"protocol_version": 9}, "9"),
    ],
)
def test_a_mismatch_says_which_side_has_what(change: dict[str, Any], mention: str) -> None:
    sentence = incompatibility(dataclasses.replace(IDENTITY, model="small", **change), IDENTITY)
    assert sentence is not None
    assert f"the drafter 'small' has {mention}" in sentence
    assert "the verifier 'large' has" in sentence


def test_the_prefix_hash_rolls_and_tells_prefixes_apart() -> None:
    whole = extend_hash(0, [5, 0, 7])
    assert extend_hash(extend_hash(0, [5]), np.asarray([0, 7], np.int32)) == whole
    others = [extend_hash(0, tokens) for tokens in ([5, 7, 0], [5, 0], [5, 0, 7, 0], [0, 5, 0, 7], [])]
    assert whole not in others
    assert 0 <= whole < 2**64


def test_a_chain_is_a_tree_of_one_path() -> None:
    tree = DraftTree.chain([4, 5, 6])
    assert tree.parents.tolist() == [-1, 0, 1]
    assert DraftTree.empty().num_nodes == 0
