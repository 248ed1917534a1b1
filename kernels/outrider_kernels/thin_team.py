"""The threads that thin operations share, and the library that holds those: thin/*.c.

Must not know what the operations compute.
"""

from __future__ import annotations

import ctypes
import weakref
from pathlib import Path

from outrider_kernels.native_library import NativeUnavailable, native_library

SOURCES = Path(__file__).parent / "thin"

_SHORT_VECTOR = 8  # floats

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
_PROTOTYPES = {
    "team_new": ([ctypes.c_int], _POINTER),
    "team_free": ([_POINTER], None),
    "team_hold": ([_POINTER, ctypes.c_int], None),
    "team_chunks": ([_POINTER, _SIZE], _SIZE),
    "thin_product_once": ([_POINTER, _POINTER, _SIZE], None),
    "thin_attention": ([_POINTER, _POINTER, _POINTER], None),
    "thin_gate": ([_POINTER, _POINTER, _SIZE], None),
    "thin_program_once": ([_POINTER, _POINTER, _SIZE, _SIZE, _POINTER], None),
    "thin_multiplies_pairs": ([], ctypes.c_int),
    "thin_multiplies_quads": ([], ctypes.c_int),
    "thin_multiplies_tiles": ([], ctypes.c_int),
    "thin_multiplies_float16": ([], ctypes.c_int),
    "thin_multiplies_fixed16": ([], ctypes.c_int),
    "thin_multiplies_fixed16_wide": ([], ctypes.c_int),
    "thin_vector_len": ([], ctypes.c_int),
    "thin_logprobs": ([_POINTER, _POINTER, _SIZE, _SIZE], None),
    "thin_touch": ([_POINTER], _POINTER),
    "thin_untouch": ([_POINTER, _POINTER], None),
    "thin_pick": ([_POINTER, _POINTER, _SIZE, _SIZE], None),
    "thin_chain_follow": ([_POINTER, _POINTER, _POINTER], None),
    "thin_ahead_new": ([_POINTER, _POINTER, _SIZE, _POINTER, _POINTER, _SIZE], _POINTER),
    "thin_ahead_follow": ([_POINTER, _SIZE, _POINTER], None),
    "thin_ahead_settle": ([_POINTER], None),
    "thin_ahead_counts": ([_POINTER, _POINTER], None),
    "thin_ahead_is_at_rest": ([_POINTER], ctypes.c_int),
    "thin_ahead_free": ([_POINTER], None),
}


def multiplies_bfloat16() -> bool:
    """Whether thin products of this machine take bfloat16 numbers two at a time: a compiler, and a processor with AVX512_BF16."""
    return _says("thin_multiplies_pairs") > 0


def multiplies_bytes() -> bool:
    """Whether they take bytes four at a time: a compiler, and a processor with AVX512_VNNI."""
    return _says("thin_multiplies_quads") > 0


def multiplies_tiles() -> bool:
    """Whether they multiply tiles of bfloat16 numbers: a compiler, a processor with AMX_BF16, and a kernel that lets us."""
    return _says("thin_multiplies_tiles") > 0


def multiplies_float16() -> bool:
    """Whether they multiply float16 numbers, 32 at a time: a compiler, and a processor with AVX512_FP16."""
    return _says("thin_multiplies_float16") > 0


def multiplies_fixed16() -> bool:
    """Whether they multiply whole numbers of 16 bits, 16 at a time or 32: a compiler, and a processor with AVX2."""
    return _says("thin_multiplies_fixed16") > 0


def prefers_fixed16() -> bool:
    """Whether those come quicker than floats do: where floats come eight at a time, not sixteen, or whole numbers 32 (AVX512_VNNI)."""
    return multiplies_fixed16() and (has_short_vectors() or _says("thin_multiplies_fixed16_wide") > 0)


def has_short_vectors() -> bool:
    """Whether floats come eight at a time: a compiler, and a processor without AVX512."""
    return _says("thin_vector_len") == _SHORT_VECTOR


def takes_bfloat16() -> bool:
    """Whether bfloat16 models have products here that are quicker than those of float32 rows, and as near to the model as bfloat16."""
    return multiplies_bfloat16() or prefers_fixed16()


def _says(name: str) -> int:
    try:
        return int(getattr(native_library(SOURCES), name)())
    except NativeUnavailable:
        return 0


class ThinTeam:
    """Threads for thin operations; the caller's own is one of them. Used by one thread at a time; those that wait sleep after a while."""

    def __init__(self, num_threads: int) -> None:
        """Raises NativeUnavailable where there is no compiler, or no room for threads."""
        self.library = native_library(SOURCES)
        for name, (arguments, result) in _PROTOTYPES.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = arguments, result
        self.handle: int | None = self.library.team_new(num_threads)
        if not self.handle:
            raise NativeUnavailable(f"{num_threads} threads could not be started")
        self.num_threads = self.num_active = max(1, num_threads)
        self.build = Path(self.library._name).stem  # source, compiler and processor: equal names give equal bits
        self._ahead: int | None = None
        weakref.finalize(self, self.library.team_free, self.handle).atexit = False  # a thread that is a daemon may be in it to the last

    def settle(self) -> None:
        """Before its threads are used for anything but a chain, or what chains lie in is changed or freed: nothing is being computed ahead
        then (thin_ahead.py)."""
        if self._ahead is not None:
            self.library.thin_ahead_settle(self._ahead)

    @property
    def computes_ahead(self) -> bool:
        """Whether it does so for some pair."""
        return self._ahead is not None

    def belong_to(self, ahead: int | None) -> None:
        """From now on its threads compute ahead for this thin_ahead; None: for none."""
        self._ahead = ahead

    def hold(self, num_threads: int) -> None:
        """This many threads take part from now on, at least one and at most all; the others sleep. Results have the same bits."""
        wanted = max(1, min(num_threads, self.num_threads))
        if wanted != self.num_active:
            self.settle()
            self.library.team_hold(self.handle, wanted)
            self.num_active = wanted
