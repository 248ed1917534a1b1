"""From a DecodeStart to a session request: every field checked, what is unset filled in, what we do not support refused by name.

Knows the message and the deployment's bounds. Must not know live sessions or the engine beyond its identity: what does not fit the cache
is refused when the engine opens the sequence.
"""

from __future__ import annotations

from outrider.errors import DoesNotFit, InvalidRequest, UnsupportedParameter
from outrider.rpc.address import MAX_ADDRESS_LEN
from outrider.rpc.convert.bounds import bounded, finite, name, num_entries, token_ids
from outrider.rpc.convert.sampling import REJECTION, acceptance_name, noise_from_proto, sampling_from_proto
from outrider.session.opening import VerifierSpec
from outrider.session.pacing.registry import PACINGS, make_pacing
from outrider.types.frames import MAX_SVIP_THRESHOLD, DraftLimits
from outrider.types.identity import ModelIdentity
from outrider.types.tree import IntArray
from outrider.v1 import generation_pb2
from outrider.v1 import verifier_pb2 as pb
from verifier_service.answer import SessionRequest
from verifier_service.settings import DraftDefaults

MAX_ID_LEN = 160
MAX_STOP_TOKENS = 256
MAX_TOP_LOGPROBS = 20
MAX_REQUEST_DRAFT_LEN = 64
MAX_TREE_WIDTH = 8
MAX_NAMED_DRAFTERS = 8
MAX_INCARNATION = 1 << 62


class Admission:
    """Checks starts against one target and one deployment."""

    def __init__(self, identity: ModelIdentity, defaults: DraftDefaults, max_prompt_len: int) -> None:
        self._identity = identity
        self._defaults = defaults
        self._max_prompt_len = max_prompt_len or identity.max_context

    def check(self, start: pb.DecodeStart, drafters: frozenset[str]) -> SessionRequest:
        """The request as values; raises InvalidRequest (or a subclass) naming the field."""
        if not start.session_id:
            raise InvalidRequest("session_id", "must not be empty")
        name("session_id", start.session_id, MAX_ID_LEN)
        _refuse_unsupported(start)
        prefix = self._prefix(start)
        sampling = sampling_from_proto(start.sampling)
        sampling.check(self._identity.vocab_size)
        acceptance = acceptance_name(start.acceptance)
        max_len = start.num_prompt_tokens + start.max_tokens
        stop_ids = self._stop_ids(start, prefix)
        limits, max_draft_len, pacing = self._drafting(start.draft, max_len)
        spec = VerifierSpec(
            session=0,
            incarnation=bounded("incarnation", start.incarnation, 0, MAX_INCARNATION),
            request_id=start.session_id,
            prefix=prefix,
            num_prompt=start.num_prompt_tokens,
            max_len=max_len,
            stop_token_ids=stop_ids,
            vocab_size=self._identity.vocab_size,
            sampling=sampling,
            noise=noise_from_proto(start.noise),
            limits=limits,
            max_draft_len=max_draft_len,
            max_nodes=self._defaults.max_nodes,
            with_rows=acceptance == REJECTION,
            tenant=name("tenant", start.tenant),
            has_stop_strings=start.has_stop_strings,
            lookup=self._defaults.lookup and not start.draft.no_lookup and acceptance != REJECTION,
        )
        return SessionRequest(spec, pacing, acceptance, _top_logprobs(start), drafters, start.takes_end)

    def _prefix(self, start: pb.DecodeStart) -> IntArray:
        if not start.prefix:
            raise InvalidRequest("prefix", "must hold at least one token id")
        prefix = token_ids("prefix", start.prefix, self._identity.vocab_size)
        bounded("num_prompt_tokens", start.num_prompt_tokens, 1, len(prefix))
        bounded("max_tokens", start.max_tokens, 1)
        context = self._identity.max_context
        if len(prefix) >= context:
            raise DoesNotFit("prefix", f"has {len(prefix)} tokens, but the model's context holds {context} with the answer")
        if start.num_prompt_tokens + start.max_tokens > context:  # to cut it would be another answer than that of a longer context
            left = context - start.num_prompt_tokens
            raise DoesNotFit("max_tokens", f"is {start.max_tokens}, but {start.num_prompt_tokens} prompt tokens leave {left} of {context}")
        if start.num_prompt_tokens > self._max_prompt_len:
            raise DoesNotFit("prefix", f"has {start.num_prompt_tokens} prompt tokens, at most {self._max_prompt_len} here")
        if len(prefix) >= start.num_prompt_tokens + start.max_tokens:
            raise InvalidRequest("max_tokens", f"{start.max_tokens} tokens of the answer are in the prefix already")
        return prefix

    def _stop_ids(self, start: pb.DecodeStart, prefix: IntArray) -> frozenset[int]:
        num_entries("stop_token_ids", len(start.stop_token_ids), 0, MAX_STOP_TOKENS)
        stop_ids = frozenset(token_ids("stop_token_ids", start.stop_token_ids).tolist())
        if stop_ids and not stop_ids.isdisjoint(prefix[start.num_prompt_tokens :].tolist()):
            raise InvalidRequest("prefix", "the answer in it has ended already: it holds a stop token")
        return stop_ids

    def _drafting(self, draft: generation_pb2.DraftOptions, max_len: int) -> tuple[DraftLimits, int, str]:
        """Limits for drafters, levels of a verified tree (0: no drafts), and the policy's name."""
        defaults = self._defaults
        wished = bounded("draft.max_len", draft.max_len, 1, MAX_REQUEST_DRAFT_LEN) if draft.HasField("max_len") else defaults.max_len
        width = bounded("draft.tree_width", draft.tree_width, 1, MAX_TREE_WIDTH) if draft.HasField("tree_width") else defaults.tree_width
        stop_below = draft.stop_below if draft.HasField("stop_below") else defaults.stop_below
        if not 0.0 <= stop_below < 1.0:
            raise InvalidRequest("draft.stop_below", f"must be in [0, 1), got {stop_below}")
        svip = draft.svip_threshold if draft.HasField("svip_threshold") else defaults.svip_threshold
        finite("draft.svip_threshold", svip, 0.0, MAX_SVIP_THRESHOLD)
        pacing = draft.pacing or defaults.pacing
        if pacing not in PACINGS:
            make_pacing(pacing)  # raises; a known one is made when the session is admitted
        limits = DraftLimits(max_len, defaults.max_nodes, width, stop_below, svip)
        return limits, 0 if draft.off else min(wished, defaults.max_len), pacing


def _refuse_unsupported(start: pb.DecodeStart) -> None:
    if start.paused:
        raise UnsupportedParameter("paused", "routed modes are not served by this verifier")
    if start.adapter:
        raise UnsupportedParameter("adapter", f"no adapters are served here, so not {start.adapter!r}")
    if start.no_drafters and start.drafters:
        raise InvalidRequest("no_drafters", f"is set, and drafters names {len(start.drafters)}")
    if len(start.drafters) > MAX_NAMED_DRAFTERS:
        raise InvalidRequest("drafters", f"names {len(start.drafters)} drafters, at most {MAX_NAMED_DRAFTERS}")
    for endpoint in start.drafters:
        name("drafters", endpoint, MAX_ADDRESS_LEN)  # it will be in this verifier's heartbeats, which coordinators must take


def _top_logprobs(start: pb.DecodeStart) -> int | None:
    return bounded("top_logprobs", start.top_logprobs, 0, MAX_TOP_LOGPROBS) if start.HasField("top_logprobs") else None
