"""How a collective is called, beside its operation: what all members of a communicator have to agree on.

It is packed into the slot in which the frontier of a pair tells which message is open (layout.OPEN_MESSAGE)."""

from __future__ import annotations

from typing import NamedTuple

DATA_TYPES = (
    "",
    *("uint8", "int8", "int16", "int32", "int64", "bool"),
    *("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"),
    *("complex64", "complex128", "uint16", "uint32", "uint64"),
)
"""torch's, by number; "": not known, or of several types."""
_TYPE_BITS = 8


class Call(NamedTuple):
    data_type: str = ""
    root: int = -1
    """Global rank of the one that all receive from; -1: none."""

    def pack(self) -> int:
        known = DATA_TYPES.index(self.data_type) if self.data_type in DATA_TYPES else 0
        return self.root + 1 << _TYPE_BITS | known

    @classmethod
    def unpack(cls, packed: int) -> Call:
        """Of whatever a rank has written."""
        known = packed & (1 << _TYPE_BITS) - 1
        return cls(DATA_TYPES[known] if known < len(DATA_TYPES) else "", (packed >> _TYPE_BITS) - 1)
