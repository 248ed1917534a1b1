"""Between protobuf and values, both ways: the only place where a message of the wire is read or built field by field.

Knows generated messages and the value types of L0 and L1. Must not know servers, channels or policy. Encoders trust their input;
decoders trust nothing: they raise InvalidRequest or ProtocolViolation naming the field, and never anything else.
"""

from outrider.rpc.convert.bounds import token_ids
from outrider.rpc.convert.drafter_frames import (
    draft_response,
    draft_row_from_proto,
    draft_row_to_proto,
    drafter_frame_from_proto,
    drafter_frame_to_proto,
    drafter_frames,
)
from outrider.rpc.convert.generation import live_counts_from_proto, live_counts_to_proto
from outrider.rpc.convert.identity import identity_from_proto, identity_to_proto
from outrider.rpc.convert.link import BadFrame, FromDrafter, FromVerifier, Hello, Ping, Pong, ToDrafter, ToVerifier, Welcome
from outrider.rpc.convert.sampling import (
    acceptance_name,
    acceptance_to_proto,
    as_sent,
    noise_from_proto,
    noise_to_proto,
    sampling_from_proto,
    sampling_to_proto,
    seed_from_proto,
)
from outrider.rpc.convert.tokens import (
    finish_reason_to_proto,
    logprob_from_proto,
    logprobs_to_proto,
    origins_from_proto,
    origins_to_proto,
    statistics_from_proto,
    statistics_to_proto,
)
from outrider.rpc.convert.verifier_frames import (
    MAX_FRAMES_PER_MESSAGE,
    draft_request,
    verifier_frame_from_proto,
    verifier_frame_to_proto,
    verifier_frames,
)

__all__ = [
    "MAX_FRAMES_PER_MESSAGE",
    "BadFrame",
    "FromDrafter",
    "FromVerifier",
    "Hello",
    "Ping",
    "Pong",
    "ToDrafter",
    "ToVerifier",
    "Welcome",
    "acceptance_name",
    "acceptance_to_proto",
    "as_sent",
    "draft_request",
    "draft_response",
    "draft_row_from_proto",
    "draft_row_to_proto",
    "drafter_frame_from_proto",
    "drafter_frame_to_proto",
    "drafter_frames",
    "finish_reason_to_proto",
    "identity_from_proto",
    "identity_to_proto",
    "live_counts_from_proto",
    "live_counts_to_proto",
    "logprob_from_proto",
    "logprobs_to_proto",
    "noise_from_proto",
    "noise_to_proto",
    "origins_from_proto",
    "origins_to_proto",
    "sampling_from_proto",
    "sampling_to_proto",
    "seed_from_proto",
    "statistics_from_proto",
    "statistics_to_proto",
    "token_ids",
    "verifier_frame_from_proto",
    "verifier_frame_to_proto",
    "verifier_frames",
]
