"""Which message is meant. A tag is used once a round and direction; some rounds may be open at once.

A round is whatever the program repeats with the same tags: in pipeline training one run of the schedule, of which a
step has one and an evaluation several.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from megatronapp.rdma import _native


class Kind(IntEnum):
    """What a message holds. Numbers up to 15 that have no name here are the program's own."""

    FORWARD = 1
    BACKWARD = 2
    SHAPE = 3
    CONTROL = 4


class Tag(NamedTuple):
    """Fields and their ranges: kind 0-15, chunk 0-255, microbatch 0-1048575, slot 0-15; round counts modulo 4096."""

    kind: int
    chunk: int = 0
    microbatch: int = 0
    round: int = 0
    slot: int = 0

    def pack(self, source: int) -> int:
        """64 bits: kind 4 | round 12 | chunk 8 | microbatch 20 | slot 4 | source rank 16. Raises ValueError."""
        try:
            return _native.pack_tag(self, source)
        except ValueError:
            raise ValueError(f"{self} of rank {source} does not fit: {Tag.__doc__}") from None

    @classmethod
    def unpack(cls, packed: int) -> Tag:
        return cls(
            kind=packed >> 60, chunk=packed >> 40 & 0xFF, microbatch=packed >> 20 & 0xFFFFF,
            round=packed >> 48 & 0xFFF, slot=packed >> 16 & 0xF,
        )  # fmt: skip


def tag_filter(kind: int | None, chunk: int | None, in_round: int | None) -> tuple[int, int]:
    """Which bits of a packed tag are to be what: mask and value. Fields that are None may be anything."""
    mask = value = 0
    for wanted, shift, bits in ((kind, 60, 0xF), (in_round, 48, 0xFFF), (chunk, 40, 0xFF)):
        if wanted is not None:
            mask |= bits << shift
            value |= (wanted & bits) << shift
    return mask, value
