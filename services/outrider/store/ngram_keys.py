"""Keys of n-grams: digests of a text's last tokens under a root that stands for who may see it.

The root holds tenant, adapter and vocabulary, as the root of a prefix cache's chain does (engine/prefix_index.py), but has no secret of
the process: verifiers share these keys. So a tenant finds its own answers only, and token ids mean the same text wherever a key is found.
Must not know stores, sessions or what is done with a guess.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from outrider.store.contract import CONTINUATION_LEN, Entry

KEY_LEN = 16  # bytes
# The long one tells two questions apart though they end alike (chat templates do); the short one finds a text again after it differed.
NGRAM_LENS = (16, 6)
_LONGEST = max(NGRAM_LENS)
_ROOT_LEN = 32
_PACKERS = tuple(struct.Struct(f"<{length}i") for length in range(_LONGEST + 1))


class NgramKeys:
    """Of one tenant, adapter and vocabulary. vocab_hash, vocab_size: as in the pair's handshake (types/identity.py)."""

    def __init__(self, tenant: str, vocab_hash: str, vocab_size: int, adapter: str = "") -> None:
        self.vocab_size = vocab_size
        names = [name.encode() for name in (tenant, adapter, vocab_hash)]
        root = blake2b(b"".join(len(name).to_bytes(8, "little") + name for name in names), digest_size=_ROOT_LEN).digest()
        self._rooted = blake2b(root, digest_size=KEY_LEN)  # copied for each key, which is quicker than a keyed digest

    def at_end(self, tokens: Sequence[int]) -> list[tuple[int, bytes]]:
        """(length, key) of the text's ends, the longest first; a text that is shorter than a length counts whole, and once."""
        num_tokens = len(tokens)
        lengths: Iterable[int] = NGRAM_LENS
        if num_tokens < _LONGEST:
            lengths = dict.fromkeys(min(length, num_tokens) for length in NGRAM_LENS) if num_tokens else ()
        return [(length, self._key(tokens[num_tokens - length :])) for length in lengths]

    def entries(self, tokens: Sequence[int], begin: int, end: int) -> list[Entry]:
        """What followed at each position in [begin, end); the text must hold the longest n-gram before begin, or begin where it begins."""
        found: list[Entry] = []
        for at in range(begin, end):
            followed = tuple(tokens[at : at + CONTINUATION_LEN])
            found += [(key, followed) for _, key in self.at_end(tokens[max(0, at - _LONGEST) : at])]
        return found

    def _key(self, tokens: Sequence[int]) -> bytes:
        digest = self._rooted.copy()
        digest.update(_PACKERS[len(tokens)].pack(*tokens))
        return digest.digest()
