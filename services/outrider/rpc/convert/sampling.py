"""SamplingParams, NoiseAddress and the acceptance rule's name between protobuf and values.

Knows defaults of unset fields (those of types/sampling.py). Must not know ranges: `SamplingParams.check` owns them.
The wire carries parameters as float32, so a value that was written as 0.8 arrives as 0.800000011920929 everywhere: `as_sent` gives
the parameters exactly as every service sees them, for oracles that must agree bit by bit.
"""

from __future__ import annotations

from outrider.errors import InvalidRequest
from outrider.rpc.convert.bounds import MAX_TOKEN_ID, bounded
from outrider.types.sampling import MAX_LOGIT_BIAS_ENTRIES, NoiseAddress, SamplingParams
from outrider.v1 import sampling_pb2 as pb

COUPLED = "coupled"
REJECTION = "rejection"
_ACCEPTANCE_NAMES: dict[int, str] = {
    int(pb.ACCEPTANCE_UNSPECIFIED): COUPLED,
    int(pb.ACCEPTANCE_COUPLED): COUPLED,
    int(pb.ACCEPTANCE_REJECTION): REJECTION,
}
_ACCEPTANCE_VALUES = {COUPLED: pb.ACCEPTANCE_COUPLED, REJECTION: pb.ACCEPTANCE_REJECTION}
_DEFAULTS = SamplingParams()


def sampling_to_proto(params: SamplingParams, seed: int | None = None) -> pb.SamplingParams:
    """Every field set explicitly; seed only when given."""
    return pb.SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias) if params.logit_bias else None,
        seed=seed,
    )


def sampling_from_proto(message: pb.SamplingParams, field: str = "sampling") -> SamplingParams:
    """Unset fields take their defaults; ranges are not checked here (call `check` with the vocabulary's size).

    Raises InvalidRequest when there are more biases than MAX_LOGIT_BIAS_ENTRIES or an id no vocabulary could have.
    """
    return SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else _DEFAULTS.temperature,
        top_k=bounded(f"{field}.top_k", message.top_k, 0),
        top_p=message.top_p if message.HasField("top_p") else _DEFAULTS.top_p,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty if message.HasField("repetition_penalty") else _DEFAULTS.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=_logit_bias(message, f"{field}.logit_bias"),
    )


def seed_from_proto(message: pb.SamplingParams) -> int | None:
    """The client's seed, None when it left the choice to us."""
    return message.seed if message.HasField("seed") else None


def as_sent(params: SamplingParams) -> SamplingParams:
    """The parameters as every service sees them: floating-point fields rounded to float32."""
    return sampling_from_proto(sampling_to_proto(params))


def noise_to_proto(noise: NoiseAddress) -> pb.NoiseAddress:
    """The address of a request's noise."""
    return pb.NoiseAddress(seed=noise.seed, sample_index=noise.sample_index, branch=noise.branch)


def noise_from_proto(message: pb.NoiseAddress) -> NoiseAddress:
    """Any value is legal: protobuf bounds the fields."""
    return NoiseAddress(message.seed, message.sample_index, message.branch)


def acceptance_name(value: int, field: str = "acceptance") -> str:
    """The registered name of an acceptance rule; raises InvalidRequest for a number this version does not know."""
    rule = _ACCEPTANCE_NAMES.get(int(value))
    if rule is None:
        raise InvalidRequest(field, f"{value} is no acceptance rule; known: {', '.join(_ACCEPTANCE_VALUES)}")
    return rule


def acceptance_to_proto(rule: str) -> pb.Acceptance:
    """The wire's value of a rule's name; raises InvalidRequest for a rule the wire does not know."""
    value = _ACCEPTANCE_VALUES.get(rule)
    if value is None:
        raise InvalidRequest("acceptance", f"{rule!r} is no acceptance rule; known: {', '.join(_ACCEPTANCE_VALUES)}")
    return value


def _logit_bias(message: pb.SamplingParams, field: str) -> tuple[tuple[int, float], ...]:
    if not message.logit_bias:
        return ()
    if len(message.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidRequest(field, f"has {len(message.logit_bias)} entries, at most {MAX_LOGIT_BIAS_ENTRIES}")
    biases = sorted(message.logit_bias.items())
    bounded(field, biases[-1][0], 0, MAX_TOKEN_ID)
    return tuple(biases)
