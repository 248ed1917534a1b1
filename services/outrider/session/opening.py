"""How a session is described, and the frames that open it at a drafter: the prefix in chunks, so that no message grows without bound.

Knows frames and the committed prefix. Must not know rounds, trees or when to open.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.session.answer_ends import NO_ENDS, AnswerEnds
from outrider.session.lookup_odds import FIRST_RIGHTS
from outrider.session.prefix import CommittedPrefix
from outrider.session.shared_lookup import FIRST_SHARED_RIGHTS
from outrider.session.statistics import FIRST_PRIORS, DraftPriors
from outrider.types.frames import Commit, DraftLimits, Open
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import IntArray, extend_hash

OPEN_CHUNK_LEN = 4096


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """What a verifier's session is told when it begins.

    prefix: int32, at least one token, num_prompt of which are prompt. max_len: committed tokens the answer may reach with its prompt.
    stop_token_ids: ids that end it. max_draft_len: levels of a verified tree, 0 turns drafts off. max_nodes: nodes of a verified tree.
    with_rows: rejection acceptance (drafters send the distributions they drew from).
    draft_priors: what to expect of drafts until the session has estimates of its own. answer_ends: of earlier answers.
    lookup: guesses may be taken from the session's own text, where its policy does that; not with rows. lookup_priors: the same estimate
    for these, by class (lookup_odds.CLASS_LENS); shared_priors: of guesses from other answers. has_stop_strings: whoever asks may end the
    answer before its last committed token. kind: sessions whose prompts began alike are of one, 0 = like no earlier prompt;
    shorter_kind: that of prompts which have only a part of that beginning.
    """

    session: int
    incarnation: int
    request_id: str
    prefix: IntArray
    num_prompt: int
    max_len: int
    stop_token_ids: frozenset[int]
    vocab_size: int
    sampling: SamplingParams
    noise: NoiseAddress
    limits: DraftLimits
    max_draft_len: int
    max_nodes: int
    with_rows: bool = False
    tenant: str = ""
    adapter: str = ""
    draft_priors: DraftPriors = FIRST_PRIORS
    answer_ends: AnswerEnds = NO_ENDS
    lookup: bool = False
    lookup_priors: tuple[float, ...] = FIRST_RIGHTS
    shared_priors: tuple[float, ...] = FIRST_SHARED_RIGHTS
    has_stop_strings: bool = False
    kind: int = 0
    shorter_kind: int = 0


def opening_frames(spec: VerifierSpec, limits: DraftLimits, prefix: CommittedPrefix, incarnation: int, credit: int) -> list[Open | Commit]:
    """Open with the first chunk of the present prefix, then Commits with the rest; credit: draft_until of all of them."""
    chunk = prefix.slice(0, min(OPEN_CHUNK_LEN, len(prefix)))
    opening = Open(
        session=spec.session,
        incarnation=incarnation,
        request_id=spec.request_id,
        tokens=chunk,
        prefix_len=len(prefix),
        num_prompt=spec.num_prompt,
        sampling=spec.sampling,
        noise=spec.noise,
        limits=limits,
        draft_until=credit,
        with_rows=spec.with_rows,
        tenant=spec.tenant,
        adapter=spec.adapter,
    )
    frames: list[Open | Commit] = [opening]
    running = extend_hash(0, chunk) if len(prefix) > OPEN_CHUNK_LEN else 0
    for begin in range(OPEN_CHUNK_LEN, len(prefix), OPEN_CHUNK_LEN):
        chunk = prefix.slice(begin, min(begin + OPEN_CHUNK_LEN, len(prefix)))
        running = extend_hash(running, chunk)
        frames.append(Commit(spec.session, incarnation, begin, chunk, running, 0, 0, credit))
    return frames
