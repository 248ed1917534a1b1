"""Frames that a verifier sends and a drafter receives: protobuf <-> types/frames.py, single and in batches.

Knows the shape a frame must have by itself. Must not know sessions: whether a commit follows the prefix is theirs to judge.
Decoding raises ProtocolViolation naming the field; in a batch it becomes a BadFrame, so that one bad frame costs its session only.
"""

from __future__ import annotations

from collections.abc import Iterable

from outrider.errors import InvalidRequest, ProtocolViolation
from outrider.rpc.convert.bounds import bounded, finite, integers, name, num_entries, numbers, same_len, sentence, token_ids
from outrider.rpc.convert.close import close_from_proto, close_to_proto
from outrider.rpc.convert.identity import identity_from_proto, identity_to_proto
from outrider.rpc.convert.link import BadFrame, FromVerifier, Hello, Ping, ToDrafter
from outrider.rpc.convert.sampling import noise_from_proto, noise_to_proto, sampling_from_proto, sampling_to_proto
from outrider.types.frames import Close, Commit, DraftLimits, Feedback, Open
from outrider.types.tree import MAX_TREE_NODES
from outrider.v1 import drafter_pb2 as pb

MAX_FRAMES_PER_MESSAGE = 1024
MAX_TREE_WIDTH = 64
MAX_FEEDBACK_K = 256


def draft_request(frames: Iterable[ToDrafter]) -> pb.DraftRequest:
    """One message of frames, in order; the caller batches at most MAX_FRAMES_PER_MESSAGE."""
    batch = [verifier_frame_to_proto(frame) for frame in frames]
    assert len(batch) <= MAX_FRAMES_PER_MESSAGE, f"{len(batch)} frames in one message"
    return pb.DraftRequest(frames=batch)


def verifier_frames(message: pb.DraftRequest) -> list[FromVerifier]:
    """The frames of a message in order, BadFrame in place of those that cannot be; ProtocolViolation when there are too many."""
    if len(message.frames) > MAX_FRAMES_PER_MESSAGE:
        raise ProtocolViolation(f"frames: {len(message.frames)} in one message, at most {MAX_FRAMES_PER_MESSAGE}")
    return [_frame_or_bad(frame) for frame in message.frames]


def verifier_frame_to_proto(frame: ToDrafter) -> pb.DraftRequestFrame:
    """One frame in its envelope."""
    match frame:
        case Commit():
            return pb.DraftRequestFrame(commit=_commit_to_proto(frame))
        case Open():
            return pb.DraftRequestFrame(open=_open_to_proto(frame))
        case Feedback():
            return pb.DraftRequestFrame(feedback=_feedback_to_proto(frame))
        case Close():
            return pb.DraftRequestFrame(close=close_to_proto(frame))
        case Ping():
            return pb.DraftRequestFrame(ping=pb.Ping(sent_ns=frame.sent_ns))
        case Hello():
            hello = pb.Hello(verifier=identity_to_proto(frame.verifier), verifier_id=frame.verifier_id)
            return pb.DraftRequestFrame(hello=hello)


def verifier_frame_from_proto(envelope: pb.DraftRequestFrame) -> FromVerifier:
    """One frame; raises ProtocolViolation naming the field that cannot be."""
    kind = envelope.WhichOneof("frame")
    try:
        match kind:
            case "commit":
                return _commit(envelope.commit)
            case "open":
                return _open(envelope.open)
            case "feedback":
                return _feedback(envelope.feedback)
            case "close":
                return close_from_proto(envelope.close)
            case "ping":
                return Ping(envelope.ping.sent_ns)
            case "hello":
                return Hello(identity_from_proto(envelope.hello.verifier, "verifier"), sentence(envelope.hello.verifier_id))
    except InvalidRequest as error:
        raise ProtocolViolation(f"{kind}.{error}") from error
    raise ProtocolViolation("frame: none is set")


def _frame_or_bad(envelope: pb.DraftRequestFrame) -> FromVerifier:
    try:
        return verifier_frame_from_proto(envelope)
    except ProtocolViolation as error:
        kind = envelope.WhichOneof("frame")
        if kind is None or kind in ("hello", "ping"):
            return BadFrame(None, 0, error)
        frame = getattr(envelope, kind)
        return BadFrame(frame.session, frame.incarnation, error)


def _commit_to_proto(frame: Commit) -> pb.Commit:
    return pb.Commit(
        session=frame.session,
        incarnation=frame.incarnation,
        begin=frame.begin,
        token_ids=frame.tokens.tolist(),
        prefix_hash=frame.prefix_hash,
        num_accepted=frame.num_accepted,
        verify_us=frame.verify_us,
        draft_until=frame.draft_until,
        hedge_nodes=frame.hedge_nodes,
        flush_nodes=frame.flush_nodes,
    )


def _commit(message: pb.Commit) -> Commit:
    tokens = token_ids("token_ids", message.token_ids)
    bounded("begin + len(token_ids)", message.begin + len(tokens), 0)
    flush_nodes = bounded("flush_nodes", message.flush_nodes, 0, MAX_TREE_NODES) if message.HasField("flush_nodes") else None
    return Commit(
        session=message.session,
        incarnation=message.incarnation,
        begin=message.begin,
        tokens=tokens,
        prefix_hash=message.prefix_hash,
        num_accepted=bounded("num_accepted", message.num_accepted, 0, len(tokens)),
        verify_us=message.verify_us,
        draft_until=bounded("draft_until", message.draft_until, 0),
        hedge_nodes=bounded("hedge_nodes", message.hedge_nodes, 0, MAX_TREE_NODES),
        flush_nodes=flush_nodes,
    )


def _open_to_proto(frame: Open) -> pb.Open:
    return pb.Open(
        session=frame.session,
        incarnation=frame.incarnation,
        request_id=frame.request_id,
        token_ids=frame.tokens.tolist(),
        prefix_len=frame.prefix_len,
        num_prompt_tokens=frame.num_prompt,
        sampling=sampling_to_proto(frame.sampling),
        noise=noise_to_proto(frame.noise),
        limits=_limits_to_proto(frame.limits),
        draft_until=frame.draft_until,
        with_rows=frame.with_rows,
        tenant=frame.tenant,
        adapter=frame.adapter,
    )


def _open(message: pb.Open) -> Open:
    prefix_len = bounded("prefix_len", message.prefix_len, 1)
    tokens = token_ids("token_ids", message.token_ids)
    num_entries("token_ids", len(tokens), 0, prefix_len)
    return Open(
        session=message.session,
        incarnation=message.incarnation,
        request_id=name("request_id", message.request_id),
        tokens=tokens,
        prefix_len=prefix_len,
        num_prompt=bounded("num_prompt_tokens", message.num_prompt_tokens, 1, prefix_len),
        sampling=sampling_from_proto(message.sampling),
        noise=noise_from_proto(message.noise),
        limits=_limits(message.limits, prefix_len),
        draft_until=bounded("draft_until", message.draft_until, 0),
        with_rows=message.with_rows,
        tenant=name("tenant", message.tenant),
        adapter=name("adapter", message.adapter),
    )


def _limits_to_proto(limits: DraftLimits) -> pb.DraftLimits:
    return pb.DraftLimits(
        max_len=limits.max_len,
        max_nodes=limits.max_nodes,
        tree_width=limits.tree_width,
        stop_below=limits.stop_below,
        svip_threshold=limits.svip_threshold,
        flush_nodes=limits.flush_nodes,
        hedge_nodes=limits.hedge_nodes,
    )


def _limits(message: pb.DraftLimits, prefix_len: int) -> DraftLimits:
    return DraftLimits(
        max_len=bounded("limits.max_len", message.max_len, prefix_len),
        max_nodes=bounded("limits.max_nodes", message.max_nodes, 1, MAX_TREE_NODES),
        tree_width=bounded("limits.tree_width", message.tree_width, 1, MAX_TREE_WIDTH),
        stop_below=finite("limits.stop_below", message.stop_below, 0.0, 1.0),
        svip_threshold=finite("limits.svip_threshold", message.svip_threshold, 0.0),
        flush_nodes=bounded("limits.flush_nodes", message.flush_nodes, 0),
        hedge_nodes=bounded("limits.hedge_nodes", message.hedge_nodes, 0, MAX_TREE_NODES),
    )


def _feedback_to_proto(frame: Feedback) -> pb.Feedback:
    assert frame.top_ids.ndim == 2, "top_ids is [positions, k]"
    return pb.Feedback(
        session=frame.session,
        incarnation=frame.incarnation,
        positions=frame.positions.tolist(),
        k=frame.top_ids.shape[1],
        top_token_ids=frame.top_ids.ravel().tolist(),
        top_logprobs=frame.top_logprobs.ravel().tolist(),
    )


def _feedback(message: pb.Feedback) -> Feedback:
    """Hidden states are left out: no value of ours carries them before a feature head asks for them."""
    positions = integers("positions", message.positions, 0)
    k = bounded("k", message.k, 0, MAX_FEEDBACK_K)
    num_entries = len(positions) * k
    same_len("top_token_ids", len(message.top_token_ids), "positions * k", num_entries)
    same_len("top_logprobs", len(message.top_logprobs), "positions * k", num_entries)
    return Feedback(
        session=message.session,
        incarnation=message.incarnation,
        positions=positions,
        top_ids=token_ids("top_token_ids", message.top_token_ids).reshape(len(positions), k),
        top_logprobs=numbers("top_logprobs", message.top_logprobs).reshape(len(positions), k),
    )
