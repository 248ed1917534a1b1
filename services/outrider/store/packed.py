"""An entry as bytes for a store outside: the key, so that a slot that another text has taken since is told apart, and the token ids.

Whatever comes back is untrusted: anybody may have written there. Must not know where the bytes are kept.
"""

from __future__ import annotations

import struct

from outrider.store.contract import CONTINUATION_LEN, Continuation
from outrider.store.ngram_keys import KEY_LEN

TOKEN_BYTES = 4  # int32, little-endian
MAX_PACKED_LEN = KEY_LEN + CONTINUATION_LEN * TOKEN_BYTES  # bytes


class BadEntry(ValueError):
    """Bytes that nobody of ours wrote."""


def pack(key: bytes, followed: Continuation) -> bytes:
    """The entry's bytes; followed: 1 to CONTINUATION_LEN ids."""
    return key + struct.pack(f"<{len(followed)}i", *followed)


def unpack(key: bytes, packed: object) -> Continuation | None:
    """The token ids, each at least 0; None: another key's entry, or none. Raises BadEntry for what no entry looks like."""
    if not isinstance(packed, bytes):
        raise BadEntry(f"an entry is bytes, not {type(packed).__name__}")
    if not packed:
        return None
    num_tokens, rest = divmod(len(packed) - KEY_LEN, TOKEN_BYTES)
    if rest or not 1 <= num_tokens <= CONTINUATION_LEN:
        raise BadEntry(f"an entry of {len(packed)} bytes")
    if packed[:KEY_LEN] != key:
        return None
    followed: Continuation = struct.unpack(f"<{num_tokens}i", packed[KEY_LEN:])
    if min(followed) < 0:
        raise BadEntry("a negative token id")
    return followed
