"""How much room a text has at first in a KV cache, and by how much that grows.

An answer may become as long as its request or the model's context allows, and hardly any does: blocks for all of it, held from the
beginning, would let a few requests fill a cache that has room for many. Pure numbers; must not know engines or sessions.
"""

from __future__ import annotations

FIRST_ROOM = 512  # tokens behind what is there at first: most answers end within, and never ask for more
ROOM_STEP = 384  # and behind what is there by then, whenever less than LEAST_ROOM is left
LEAST_ROOM = 128  # more than a round adds


def first_len(prefix_len: int, max_len: int) -> int:
    """Committed tokens that a sequence which begins with so many has room for at first."""
    return min(max_len, prefix_len + FIRST_ROOM)


def next_len(committed_len: int, max_len: int) -> int:
    """The same once it has so many, and wants more."""
    return min(max_len, committed_len + ROOM_STEP)


def wants_room(committed_len: int, held_len: int, max_len: int) -> bool:
    """Whether it had better have more before its next round. held_len: committed tokens that it has room for."""
    return held_len - committed_len < LEAST_ROOM and held_len < max_len


def blocks_of_step(block_len: int) -> int:
    """KV blocks that a text takes when it grows by one step."""
    return -(-ROOM_STEP // block_len)
