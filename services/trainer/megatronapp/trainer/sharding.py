"""How a parameter is split over tensor-parallel ranks, and what of one rank's part another split's rank holds. Pure.

One rule for all: along one axis a parameter is one block or several (a gated fc1 is two, gate and up), and each block
is dealt out evenly in the order of tensor ranks. QKV rows stand query group by query group, so that an even split is
one by groups; a padded vocabulary is split as padded. What is not split, each tensor rank holds whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Piece(NamedTuple):
    """`length` rows along the axis, at `source` in the one shard and at `target` in the other."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One tensor rank's part of a parameter. `size` 1 is all of it."""

    length: int
    """Along the axis, of this part."""
    axis: int = 0
    blocks: int = 1
    rank: int = 0
    size: int = 1

    @property
    def whole(self) -> int:
        """Along the axis, of the parameter that is not split."""
        return self.length * self.size

    def resized(self, size: int, rank: int) -> Shard:
        """The part of one of `size` ranks. Raises ValueError where blocks can't be dealt out evenly."""
        if self.whole % (self.blocks * size):
            raise ValueError(f"{self.blocks} blocks of {self.whole // self.blocks} can't be split over {size} ranks")
        return Shard(length=self.whole // size, axis=self.axis, blocks=self.blocks, rank=rank, size=size)

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """(start here, start in the whole, length) of each block's part."""
        block, part = self.whole // self.blocks, self.length // self.blocks
        for index in range(self.blocks):
            yield index * part, index * block + self.rank * part, part


def pieces(source: Shard, target: Shard) -> list[Piece]:
    """What of the `source` shard belongs to the `target` shard of the same parameter, in the order of its rows."""
    found = []
    for here, begin, length in source.spans():
        for there, wanted, most in target.spans():
            first, last = max(begin, wanted), min(begin + length, wanted + most)
            if first < last:
                found.append(Piece(here + first - begin, there + first - wanted, last - first))
    return found
