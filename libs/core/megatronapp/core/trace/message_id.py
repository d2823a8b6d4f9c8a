"""Which point-to-point message is meant: a message of a step between two ranks is named by its direction, microbatch,
chunk and part, packed into one number.

Both ends derive it from the schedule that they run, so that they are matched by what they are and never by the order in
which they were posted. `chunk` is the model chunk (virtual stage) on the rank whose forward pass made the tensor, or
whose forward output the gradient belongs to: the upstream rank's, for both directions. `part` counts the pieces of a
tensor that is sent in several.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

PART_BITS, CHUNK_BITS, MICROBATCH_BITS = 8, 10, 20
NO_MESSAGE = 0
"""Packed: no message, or one whose identity is not known."""


class Direction(IntEnum):
    """FORWARD goes downstream with activations, BACKWARD upstream with gradients."""

    FORWARD = 1
    BACKWARD = 2


class MessageId(NamedTuple):
    direction: Direction
    microbatch: int
    chunk: int = 0
    part: int = 0

    def pack(self) -> int:
        """A number from 1, of 40 bits: direction 2 | microbatch 20 | chunk 10 | part 8. Raises ValueError."""
        for name, value, bits in (
            ("microbatch", self.microbatch, MICROBATCH_BITS),
            ("chunk", self.chunk, CHUNK_BITS),
            ("part", self.part, PART_BITS),
        ):
            if not 0 <= value < 1 << bits:
                raise ValueError(f"{name} {value} of a message; it must be from 0 to {(1 << bits) - 1}")
        high = self.direction << MICROBATCH_BITS | self.microbatch
        return (high << CHUNK_BITS | self.chunk) << PART_BITS | self.part

    @classmethod
    def unpack(cls, packed: int) -> MessageId:
        """Raises ValueError for a number that names no message."""
        part, rest = packed & (1 << PART_BITS) - 1, packed >> PART_BITS
        chunk, rest = rest & (1 << CHUNK_BITS) - 1, rest >> CHUNK_BITS
        microbatch, direction = rest & (1 << MICROBATCH_BITS) - 1, rest >> MICROBATCH_BITS
        return cls(Direction(direction), microbatch, chunk, part)


MAX_PACKED = (Direction.BACKWARD + 1 << MICROBATCH_BITS + CHUNK_BITS + PART_BITS) - 1


def describe(packed: int) -> str:
    """A packed message in words; a number that names none as it is."""
    try:
        message = MessageId.unpack(packed)
    except ValueError:
        return f"message {packed}"
    chunk = f", chunk {message.chunk}" if message.chunk else ""
    part = f", part {message.part}" if message.part else ""
    return f"{message.direction.name.lower()} of microbatch {message.microbatch}{chunk}{part}"
