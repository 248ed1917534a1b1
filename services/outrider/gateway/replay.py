"""A finished sample decoded once more, plainly: by the target alone, from the same prefix, seed and parameters.

Knows one Decode stream and token ids. A replay shares no KV with anybody, its own request included, for a wrong block is one of the
faults that it is to find; and it asks for no log-probabilities, which tell nothing of the pick. Must not know when it is time for one.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.gateway.decode_stream import DecodeStream, check_fingerprint, open_stream
from outrider.gateway.resolved import ResolvedRequest
from outrider.gateway.sample_run import decode_start
from outrider.gateway.sent_answer import SentSample
from outrider.gateway.verifiers import Verifier
from outrider.v1 import generation_pb2, verifier_pb2


def plain_start(request: ResolvedRequest, session_id: str, index: int) -> verifier_pb2.DecodeStart:
    """What the sample's first verifier was told, without drafts, lookup, shared prefixes and log-probabilities."""
    start = decode_start(request, session_id, index)
    start.draft.CopyFrom(generation_pb2.DraftOptions(off=True, pacing="plain"))
    start.ClearField("drafters")
    start.ClearField("top_logprobs")
    start.tenant = session_id
    return start


async def first_difference(verifier: Verifier, start: verifier_pb2.DecodeStart, fingerprint: str, sent: SentSample) -> int | None:
    """Where the replay leaves what was sent, as a position of the answer counted from its first token; None: nowhere.

    What the replay holds beyond the tokens that were sent is nobody's, as it is in a request, but where the verifier itself ended the
    answer: there it must end again. Raises what the verifier's stream raises, and Unavailable for another fingerprint.
    """
    num_resumed = len(start.prefix) - start.num_prompt_tokens
    is_short = num_resumed + len(sent.token_ids) < start.max_tokens
    was_ended = is_short and sent.finish_reason == generation_pb2.FINISH_REASON_LENGTH
    stream = await open_stream(verifier, start, None, ())
    try:
        check_fingerprint((stream,), fingerprint)
        async with stream.listener:  # a verifier that falls silent is found as it is for a client's answer
            return await _difference(stream, sent.token_ids, num_resumed, was_ended=was_ended)
    finally:
        stream.close()


async def _difference(stream: DecodeStream, sent_ids: Sequence[int], num_resumed: int, *, was_ended: bool) -> int | None:
    num_equal, num_sent = 0, len(sent_ids)
    while num_equal < num_sent or was_ended:
        message = await stream.read()
        if isinstance(message, verifier_pb2.DecodeFinished):
            return None if num_equal == num_sent else num_resumed + num_equal
        num_common = _num_common(message.token_ids, sent_ids[num_equal : num_equal + len(message.token_ids)])
        num_equal += num_common
        if num_common < len(message.token_ids) and (num_equal < num_sent or was_ended):
            return num_resumed + num_equal
    return None


def _num_common(ones: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for index, (one, other) in enumerate(zip(ones, others, strict=False)):
        if one != other:
            return index
    return min(len(ones), len(others))
