"""Thin operations that always follow one another, as one call: a whole forward without the interpreter in between.

Must not know what the operations compute, nor models.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from outrider_kernels.thin_attention import ThinAttention, ThinStep
from outrider_kernels.thin_gate import ThinGate
from outrider_kernels.thin_product import ThinProduct
from outrider_kernels.thin_team import ThinTeam

ThinOperation = ThinProduct | ThinGate | tuple[ThinAttention, int]  # an attention with the place of its step

_PRODUCT, _ATTENTION, _GATE = range(3)  # as in thin/program.c


class _Operation(ctypes.Structure):
    """thin_operation of thin/thin.h."""

    _fields_ = (("operand", ctypes.c_void_p), ("kind", ctypes.c_int32), ("step", ctypes.c_int32))


class ThinProgram:
    """Operations in order, set up once. address: of `length` thin_operations of thin/thin.h. last_attention: its place among them, -1 where
    there is none."""

    def __init__(self, team: ThinTeam, operations: Sequence[ThinOperation]) -> None:
        """Keeps the operations."""
        self._operations = (_Operation * len(operations))(*map(_operation, operations))
        self._kept = (team, tuple(operations))  # the structures hold addresses only
        self._function, self._team = team.library.thin_program_once, team.handle
        self.address, self.length = ctypes.addressof(self._operations), len(operations)
        self.last_attention = max((place for place, operation in enumerate(operations) if isinstance(operation, tuple)), default=-1)

    @property
    def read_bytes(self) -> int:
        """Of matrices, what a run reads at least once."""
        return sum(operation.read_bytes for operation in self._kept[1] if isinstance(operation, ThinProduct))

    def stream(self) -> None:
        """See ThinProduct, of all of its products."""
        for operation in self._kept[1]:
            if isinstance(operation, ThinProduct):
                operation.stream()

    def run(self, num_rows: int, steps: Sequence[ThinStep]) -> None:
        """Every operation for the first num_rows rows; steps: by the places that the attentions were given."""
        addresses = (ctypes.c_void_p * len(steps))(*(step.address for step in steps))
        self._function(self._team, self.address, self.length, num_rows, ctypes.addressof(addresses))


def _operation(operation: ThinOperation) -> _Operation:
    match operation:
        case ThinProduct():
            return _Operation(operation.address, _PRODUCT, 0)
        case ThinGate():
            return _Operation(operation.address, _GATE, 0)
        case (attention, step):
            return _Operation(attention.address, _ATTENTION, step)
