"""Every field of a request: in range, refused by name, or refused because we do not serve it.

pytest tests/unit/test_gateway_checks.py
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes_verifier import fake_identity
from outrider.errors import DoesNotFit, InvalidRequest, UnsupportedParameter
from outrider.gateway.checks import check_input, check_request
from outrider.gateway.limits import GatewayLimits, ServedModel
from outrider.gateway.resolved import ResolvedRequest, prompt_ids, resolve
from outrider.gateway.sample_run import decode_start
from outrider.gateway.tokenizer import load_tokenizer
from outrider.types.identity import Numerics
from outrider.types.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2

TOKENIZER = load_tokenizer(Path(__file__).parents[2] / "models" / "ref-small")
SERVED = ServedModel("target", fake_identity(vocab_size=2048, max_context=100, eos=(3, 4)))
LIMITS = GatewayLimits(max_prompt_bytes=300, max_live_samples=8)
INVARIANT = SERVED.identity
FAST = replace(SERVED.identity, numerics=Numerics.FAST)
MINE, OTHER = SERVED.identity.fingerprint, "dd" * 16


def resolved(limits: GatewayLimits = LIMITS, served: ServedModel = SERVED, **fields: Any) -> ResolvedRequest:
    """The way a request takes through the checks, without a gateway around it."""
    message = pb.GenerateRequest(**({"prompt": "hi there"} | fields))
    checked = check_request(message, served, limits)
    ids = prompt_ids(message, TOKENIZER)
    return resolve(checked, message.request_id or "minted", str(message.WhichOneof("input")), ids, served, limits)


def sampling(**fields: Any) -> dict[str, Any]:
    return {"sampling": sampling_pb2.SamplingParams(**fields)}


def draft(**fields: Any) -> dict[str, Any]:
    return {"draft": pb.DraftOptions(**fields)}


def chat(role: str, content: str = "x") -> dict[str, Any]:
    return {"prompt": None, "chat": pb.ChatMessages(messages=[pb.ChatMessage(role=role, content=content)])}


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"request_id": "x" * 129}, "request_id"),
    ({"request_id": "a\nb"}, "request_id"),
    ({"model": "other"}, "model"),
    ({"prompt": None}, "input"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": None, "token_ids": pb.TokenIds()}, "token_ids"),
    ({"prompt": None, "token_ids": pb.TokenIds(ids=[1, 2048])}, "token_ids[1]"),
    ({"prompt": None, "token_ids": pb.TokenIds(ids=[2**32 - 1])}, "token_ids[0]"),
    ({"prompt": None, "chat": pb.ChatMessages()}, "chat.messages"),
    (chat("tool"), "chat.messages[0].role"),
    (sampling(temperature=-0.1), "sampling.temperature"),
    (sampling(temperature=math.nan), "sampling.temperature"),
    (sampling(temperature=10.5), "sampling.temperature"),
    (sampling(top_k=2**31), "sampling.top_k"),
    (sampling(top_p=0.0), "sampling.top_p"),
    (sampling(top_p=1.5), "sampling.top_p"),
    (sampling(min_p=1.0), "sampling.min_p"),
    (sampling(repetition_penalty=0.0), "sampling.repetition_penalty"),
    (sampling(repetition_penalty=math.inf), "sampling.repetition_penalty"),
    (sampling(repetition_penalty=1e-38), "sampling.repetition_penalty"),
    (sampling(repetition_penalty=3e38), "sampling.repetition_penalty"),
    (sampling(presence_penalty=2.5), "sampling.presence_penalty"),
    (sampling(frequency_penalty=-2.5), "sampling.frequency_penalty"),
    (sampling(logit_bias={2048: 1.0}), "sampling.logit_bias"),
    (sampling(logit_bias={7: 101.0}), "sampling.logit_bias[7]"),
    (sampling(logit_bias=dict.fromkeys(range(1025), 0.0)), "sampling.logit_bias"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": ["ok", ""]}, "stop[1]"),
    ({"stop": ["é" * 129]}, "stop[0]"),
    ({"stop_token_ids": [2048]}, "stop_token_ids[0]"),
    ({"stop_token_ids": range(65)}, "stop_token_ids"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"top_logprobs": 21}, "top_logprobs"),
    (draft(max_len=0), "draft.max_len"),
    (draft(max_len=65), "draft.max_len"),
    (draft(tree_width=9), "draft.tree_width"),
    (draft(stop_below=1.0), "draft.stop_below"),
    (draft(stop_below=math.nan), "draft.stop_below"),
    (draft(svip_threshold=-0.1), "draft.svip_threshold"),
    (draft(svip_threshold=2.5), "draft.svip_threshold"),
    (draft(svip_threshold=math.nan), "draft.svip_threshold"),
    ({"acceptance": 9}, "acceptance"),
    ({"resume_token_ids": [1], "n": 2}, "resume_token_ids"),
    ({"cache_salt": "s" * 129}, "cache_salt"),
    ({"resume_token_ids": [2048]}, "resume_token_ids[0]"),
    ({"resume_token_ids": [5, 6, 7], "max_tokens": 2}, "resume_token_ids"),
    ({"resume_fingerprints": ["aa", ""]}, "resume_fingerprints[1]"),
    ({"resume_fingerprints": ["a" * 257]}, "resume_fingerprints[0]"),
    ({"resume_fingerprints": ["aa"] * 17}, "resume_fingerprints"),
]
UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    *(({"mode": mode}, "mode") for mode in (2, 3, 4, 5, 6, 8, 99)),
    ({"adapter": "lora"}, "adapter"),
    ({"resume_token_ids": [1], "acceptance": sampling_pb2.ACCEPTANCE_REJECTION}, "resume_token_ids"),
]
TOO_LARGE: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "x" * 301}, "prompt"),
    ({"prompt": "😀" * 76}, "prompt"),
    (chat("user", "y" * 301), "chat"),
    ({"prompt": None, "token_ids": pb.TokenIds(ids=[7] * 100)}, "token_ids"),
    ({"max_tokens": 100}, "max_tokens"),
    ({"max_tokens": 99}, "max_tokens"),
    ({"n": 9}, "n"),
    ({"resume_token_ids": [7] * 100}, "resume_token_ids"),
]


def refused_field(fields: dict[str, Any], kind: type[InvalidRequest]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        resolved(**fields)
    assert type(caught.value) is kind
    return caught.value.field


@pytest.mark.parametrize(("fields", "name"), INVALID)
def test_a_wrong_field_is_refused_by_its_name(fields: dict[str, Any], name: str) -> None:
    assert refused_field(fields, InvalidRequest) == name


@pytest.mark.parametrize(("fields", "name"), UNSUPPORTED)
def test_what_is_not_served_is_refused_rather_than_ignored(fields: dict[str, Any], name: str) -> None:
    assert refused_field(fields, UnsupportedParameter) == name


@pytest.mark.parametrize(("fields", "name"), TOO_LARGE)
def test_what_can_never_fit_is_refused_by_its_name(fields: dict[str, Any], name: str) -> None:
    assert refused_field(fields, DoesNotFit) == name


FIELD_99 = bytes([0x98, 0x06, 0x01])  # field number 99, varint 1


@pytest.mark.parametrize(("part", "payload"), [("request", {}), ("sampling", sampling()), ("draft", draft(off=False))])
def test_a_field_of_a_newer_client_is_refused(part: str, payload: dict[str, Any]) -> None:
    message = pb.GenerateRequest(prompt="hi", **payload)
    target = message if part == "request" else getattr(message, part)
    target.MergeFromString(FIELD_99)
    with pytest.raises(UnsupportedParameter, match=rf"^{part}: has field number 99"):
        check_request(message, SERVED, LIMITS)


def test_a_field_of_a_newer_client_within_the_input_is_refused() -> None:
    ids = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5]))
    ids.token_ids.MergeFromString(FIELD_99)
    whole = pb.GenerateRequest(chat=chat("user")["chat"])
    whole.chat.MergeFromString(FIELD_99)
    turn = pb.TokenizeRequest(chat=chat("user")["chat"])
    turn.chat.messages[0].MergeFromString(FIELD_99)
    tokenize = pb.TokenizeRequest(text="hi")
    tokenize.MergeFromString(FIELD_99)
    messages: tuple[tuple[str, pb.GenerateRequest | pb.TokenizeRequest], ...] = (
        ("token_ids", ids),
        ("chat", whole),
        (r"chat.messages\[0\]", turn),
        ("request", tokenize),
    )
    for part, message in messages:
        with pytest.raises(UnsupportedParameter, match=rf"^{part}: has field number 99"):
            check_input(message, LIMITS)


def test_what_is_unset_is_filled_in() -> None:
    request = resolved()
    checked = request.checked
    assert checked.sampling == SamplingParams()
    assert (checked.num_samples, checked.top_logprobs, checked.acceptance, checked.stops) == (1, None, "coupled", ())
    assert checked.stop_token_ids == {3, 4}
    assert request.max_tokens == 100 - len(request.prompt_ids)
    assert request.exact(INVARIANT)
    assert checked.draft == pb.DraftOptions()


def test_a_seed_is_kept_or_minted_anew() -> None:
    assert resolved(**sampling(seed=0)).seed == 0
    assert resolved(**sampling(seed=2**64 - 1)).seed == 2**64 - 1
    assert resolved().seed != resolved().seed


def test_ends_of_the_model_and_of_the_client() -> None:
    assert resolved(stop_token_ids=[9]).checked.stop_token_ids == {3, 4, 9}
    assert resolved(stop_token_ids=[9], ignore_eos=True).checked.stop_token_ids == {9}


def test_both_names_of_the_model_are_known() -> None:
    assert resolved(model="target").checked == resolved(model=SERVED.identity.model).checked


def test_target_only_is_plain_decoding() -> None:
    request = resolved(mode=pb.GENERATION_MODE_TARGET_ONLY, **draft(max_len=5))
    assert request.checked.draft == pb.DraftOptions(off=True, max_len=5)
    assert request.exact(INVARIANT)


def test_rejection_is_served_and_labelled() -> None:
    assert not resolved(acceptance=sampling_pb2.ACCEPTANCE_REJECTION).exact(INVARIANT)


def test_fast_numerics_promise_no_exact_text() -> None:
    assert not resolved().exact(FAST)


@pytest.mark.parametrize(
    ("ids", "fingerprints", "is_exact"),
    [
        ([], [], True),
        ([], [OTHER], True),  # of no tokens
        ([7], [MINE], True),
        ([7], [MINE, MINE], True),
        ([7], [], False),  # unknown
        ([7], [OTHER], False),
        ([7], [MINE, OTHER], False),
    ],
)
def test_a_resumed_answer_is_exact_when_one_fingerprint_made_all_of_it(ids: list[int], fingerprints: list[str], is_exact: bool) -> None:
    request = resolved(resume_token_ids=ids, resume_fingerprints=fingerprints)
    assert request.exact(INVARIANT) is is_exact
    assert not request.exact(FAST)


def test_several_samples_are_refused_with_what_to_do_instead() -> None:
    with pytest.raises(InvalidRequest, match="resumes one sample, but n is 2; ask for all of them again with the same seed"):
        resolved(resume_token_ids=[7], n=2)


def test_a_request_takes_over_when_it_says_so_or_brings_tokens() -> None:
    assert [resolved(**fields).checked.takes_over for fields in ({}, {"takes_over": True}, {"resume_token_ids": [7]})] == [
        False,
        True,
        True,
    ]


def test_the_cache_salt_reaches_the_verifier_as_whose_text_it_is() -> None:
    assert decode_start(resolved(cache_salt="team-7"), "session", 0).tenant == "team-7"
    assert decode_start(resolved(), "session", 0).tenant == ""


def test_a_verifier_is_told_of_stop_strings() -> None:
    assert decode_start(resolved(stop=["\n\n"]), "session", 0).has_stop_strings
    assert not decode_start(resolved(), "session", 0).has_stop_strings
    assert len(resolved(cache_salt="s" * 128).checked.cache_salt) == 128


def test_token_ids_are_used_as_they_are() -> None:
    assert resolved(prompt=None, token_ids=pb.TokenIds(ids=[0, 1, 77, 0])).prompt_ids == (0, 1, 77, 0)


def test_chat_goes_through_the_template() -> None:
    ids = resolved(**chat("user", "hi")).prompt_ids
    assert ids == tuple(TOKENIZER.encode_rendered("<|bos|><|user|>hi<|assistant|>"))


def test_a_deployments_own_limits_bound_prompt_and_answer() -> None:
    limits = replace(LIMITS, max_prompt_tokens=2, max_completion_tokens=5)
    assert resolved(limits, prompt="a").max_tokens == 5
    with pytest.raises(DoesNotFit, match=r"^max_tokens: is 6, at most 5"):
        resolved(limits, prompt="a", max_tokens=6)
    with pytest.raises(DoesNotFit, match=r"^prompt: has \d+ tokens, at most 2"):
        resolved(limits, prompt="one two three four")


def test_the_adapter_a_verifier_serves_may_be_named() -> None:
    served = ServedModel("target", replace(SERVED.identity, adapter="math"))
    assert resolved(served=served, adapter="math").checked.adapter == "math"
    with pytest.raises(UnsupportedParameter, match=r"^adapter: '' is not served here; this model serves 'math'"):
        resolved(served=served)


@pytest.mark.parametrize(("num_prompt", "num_resumed", "context"), [(10, 0, 50), (49, 0, 50), (50, 0, 100), (49, 1, 100), (99, 0, 100)])
def test_without_max_tokens_an_answer_may_be_as_long_as_the_smallest_verifier_that_takes_it_allows(
    num_prompt: int, num_resumed: int, context: int
) -> None:
    served = replace(SERVED, identity=replace(SERVED.identity, max_context=77), contexts=(100, 50))
    ids: dict[str, Any] = {"prompt": None, "token_ids": pb.TokenIds(ids=[5] * num_prompt)}
    got = resolved(served=served, resume_token_ids=[5] * num_resumed, **ids)
    assert got.max_tokens == context - num_prompt
    assert resolved(served=served, max_tokens=100 - num_prompt, **ids).max_tokens == 100 - num_prompt, "one that asks may have the largest"
    with pytest.raises(DoesNotFit, match="of 100"):
        resolved(served=served, max_tokens=101 - num_prompt, **ids)
