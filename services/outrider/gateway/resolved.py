"""A request in three stages: checked (fields are sound), tokenised, resolved (fits the context, seed and bounds in force).

Knows how a prompt's tokens, a context and max_tokens relate. Must not know streams or verifiers.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from outrider.errors import DoesNotFit, InvalidRequest
from outrider.gateway.limits import GatewayLimits, ServedModel
from outrider.gateway.route import ANYWHERE, Route
from outrider.gateway.tokenizer import ModelTokenizer
from outrider.rpc.convert import token_ids
from outrider.rpc.convert.sampling import COUPLED
from outrider.types.identity import ModelIdentity, Numerics
from outrider.types.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb

MAX_CHARACTER_BYTES = 4  # in UTF-8


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """The sound fields. seed, max_tokens: None where the client left the choice to us. stop_token_ids: the model's end tokens
    included unless ignored. draft: the client's wishes as the verifier gets them. resume_fingerprints: who made resume_ids, empty: unknown.
    takes_over: of a live request of its id."""

    request_id: str
    sampling: SamplingParams
    seed: int | None
    max_tokens: int | None
    stops: tuple[str, ...]
    stop_token_ids: frozenset[int]
    num_samples: int
    top_logprobs: int | None
    draft: pb.DraftOptions
    acceptance: str
    adapter: str
    resume_ids: tuple[int, ...]
    cache_salt: str = ""
    resume_fingerprints: frozenset[str] = frozenset()
    takes_over: bool = False


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """Ready to be decoded. request_id is never empty; max_tokens counts resumed tokens too. route: as it was placed."""

    request_id: str
    checked: CheckedRequest
    prompt_ids: tuple[int, ...]
    seed: int
    max_tokens: int
    route: Route = ANYWHERE

    @property
    def beginning_fingerprint(self) -> str:
        """Of whoever made all of the resumed tokens; empty where there are none, several made them, or it is unknown."""
        made_by = self.checked.resume_fingerprints
        return next(iter(made_by)) if self.checked.resume_ids and len(made_by) == 1 else ""

    def exact(self, verifier: ModelIdentity) -> bool:
        """Whether the whole answer, with a verifier of this identity, is exactly the target's text for this seed.

        Otherwise the answer is some sample of the target's distribution: which one depends on the drafts that arrived (rejection),
        or on what shared the batches (fast: a near tie may flip). Resumed tokens that another fingerprint made may be another sequence's
        beginning. So may those of which nobody says who made them: `exact` is a promise, and is not given on a guess.
        """
        if self.checked.acceptance != COUPLED or verifier.numerics is not Numerics.INVARIANT:
            return False
        return not self.checked.resume_ids or self.checked.resume_fingerprints == {verifier.fingerprint}


def prompt_ids(message: pb.GenerateRequest | pb.TokenizeRequest, tokenizer: ModelTokenizer, most: int | None = None) -> list[int]:
    """Ids of a checked input; token ids are taken as they are. Raises InvalidRequest (no template, the template refuses), and DoesNotFit
    for a text that must have more than most tokens: that is told from its length, and it is not tokenised."""
    kind = message.WhichOneof("input")
    if isinstance(message, pb.GenerateRequest) and kind == "token_ids":
        return list(message.token_ids.ids)
    if kind == "chat":
        if tokenizer.chat_template is None:
            raise InvalidRequest("chat", "this model has no chat template; send prompt or token_ids")
        turns = [(turn.role, turn.content) for turn in message.chat.messages]
        rendered = tokenizer.chat_template.render(turns)
        _check_room("chat", rendered, tokenizer, most)
        return tokenizer.encode_rendered(rendered)
    text = message.prompt if isinstance(message, pb.GenerateRequest) else message.text
    _check_room(str(kind), text, tokenizer, most)
    return tokenizer.encode(text)


def resolve(
    checked: CheckedRequest, request_id: str, kind: str, ids: Sequence[int], served: ServedModel, limits: GatewayLimits
) -> ResolvedRequest:
    """Fit a tokenised request into the context. kind: the input's field, named by what is raised: InvalidRequest or DoesNotFit."""
    num_prompt = len(ids)
    if num_prompt == 0:
        raise InvalidRequest(kind, "has no tokens")
    most = limits.prompt_tokens(served.max_context)
    if num_prompt > most:
        raise DoesNotFit(kind, f"has {num_prompt} tokens, at most {most} here")
    token_ids(kind, ids, served.identity.vocab_size)
    room = served.max_context - num_prompt
    max_tokens = checked.max_tokens
    if max_tokens is None:
        context = served.context_for(num_prompt + len(checked.resume_ids))
        max_tokens = min(context - num_prompt, limits.completion_tokens(context))
    elif max_tokens > room:
        raise DoesNotFit("max_tokens", f"is {max_tokens}, but {num_prompt} prompt tokens leave {room} of {served.max_context}")
    if len(checked.resume_ids) > max_tokens:
        raise InvalidRequest("resume_token_ids", f"has {len(checked.resume_ids)} ids, but no answer has more than max_tokens, {max_tokens}")
    seed = secrets.randbits(64) if checked.seed is None else checked.seed
    return ResolvedRequest(request_id, checked, tuple(ids), seed, max_tokens)


def _check_room(kind: str, text: str, tokenizer: ModelTokenizer, most: int | None) -> None:
    longest = tokenizer.max_token_bytes
    if most is None or longest is None or len(text) * MAX_CHARACTER_BYTES <= most * longest:
        return
    fewest = -(-len(text.encode()) // longest)
    if fewest > most:
        raise DoesNotFit(kind, f"has at least {fewest} tokens, at most {most} here")
