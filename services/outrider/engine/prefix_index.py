"""Which KV block holds which text: keys of full blocks, each chained to the key of the block before it.

A key stands for everything its block's KV depends on: all tokens from position 0 to the block's end, who may see them (tenant) and the
adapter they went through; one index serves one engine, hence one model, dtype and numerics. Nothing but keys is compared, so they are
blake2b digests under a secret of this process: nobody can look for two texts with one key. At most one key a block, so the index is never
larger than the pool. Must not know references, sequences or tensors. Source: the hash chain of vLLM's automatic prefix caching.
"""

from __future__ import annotations

import secrets
from hashlib import blake2b

from outrider.types.step import SequenceSpec
from outrider.types.tree import IntArray

KEY_LEN = 16  # bytes
_SECRET_LEN = 32


class PrefixIndex:
    """Keys to blocks and back."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(_SECRET_LEN)
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def root_key(self, spec: SequenceSpec) -> bytes:
        """The key of the empty text, where a sequence's chain begins: apart for every tenant and adapter."""
        names = [name.encode() for name in (spec.tenant, spec.adapter)]
        return self._digest(b"".join(len(name).to_bytes(8, "little") + name for name in names))

    def block_key(self, before: bytes, tokens: IntArray) -> bytes:
        """The key of a full block. before: the key of the block before it, or the root's. tokens: int32 [block_len]."""
        return self._digest(before + tokens.astype("<i4", copy=False).tobytes())

    def find(self, key: bytes) -> int | None:
        """The block that holds it."""
        return self._blocks.get(key)

    def add(self, key: bytes, block: int) -> None:
        """This block, which had no key, holds the text of `key` from now on. The first block of a text stays its only one."""
        if key not in self._blocks:
            assert block not in self._keys, f"block {block} holds another text"
            self._blocks[key] = block
            self._keys[block] = key

    def holds(self, block: int) -> bool:
        """Whether the block can be found."""
        return block in self._keys

    def forget(self, block: int) -> None:
        """The block will be written, or has another use; one that could not be found is fine too."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self._blocks[key]

    def _digest(self, data: bytes) -> bytes:
        return blake2b(data, digest_size=KEY_LEN, key=self._secret).digest()
