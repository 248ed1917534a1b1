"""What a client was sent, as far as an audit needs it, and which answers are audited.

Knows GenerateResponse messages. Holds token ids and no text; nothing of it is ever logged. Must not know verifiers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from outrider.v1 import generation_pb2 as pb

_HASH_BYTES = 8
_NUM_HASHES = 1 << 8 * _HASH_BYTES


def is_chosen(request_id: str, share: float) -> bool:
    """Whether a request is among this share of all. By its id alone, so that every gateway says the same, and says it again."""
    digest = hashlib.blake2b(request_id.encode(), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest) < share * _NUM_HASHES


@dataclass(slots=True)
class SentSample:
    """token_ids: of its deltas, resumed ones not among them. finish_reason: 0 while it goes on. exact: as its Finished says."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: int = 0
    exact: bool = False


class SentAnswer:
    """`add` every message of the answer. fingerprint: as Started says."""

    def __init__(self) -> None:
        self.fingerprint = ""
        self.samples: dict[int, SentSample] = {}

    @property
    def is_exact(self) -> bool:
        """Whether all of it was promised to be the target's text."""
        return bool(self.samples) and all(sample.exact for sample in self.samples.values())

    @property
    def num_tokens(self) -> int:
        """Of all samples."""
        return sum(len(sample.token_ids) for sample in self.samples.values())

    def add(self, response: pb.GenerateResponse) -> None:
        """A message on its way to the client."""
        match response.WhichOneof("event"):
            case "started":
                self.fingerprint = response.started.fingerprint
            case "delta":
                self._sample(response.delta.index).token_ids.extend(response.delta.token_ids)
            case "finished":
                sample = self._sample(response.finished.index)
                sample.finish_reason, sample.exact = response.finished.finish_reason, response.finished.exact

    def _sample(self, index: int) -> SentSample:
        return self.samples.setdefault(index, SentSample())
