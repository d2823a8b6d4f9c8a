"""Which part of a result each rank has: positions along each axis, followed through slices and pools.

Rank and gateway compute the same from the same axes, so that a frame needs to carry no positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError
from megatronapp.core.scope.operations import Slice, Take
from megatronapp.core.scope.sites import Axis, Rule, Split

Positions = npt.NDArray[np.int64]


def pieces(axis: Axis) -> tuple[Positions, ...]:
    """For each part, in the order of `piece_index`: the indexes of the whole axis that it holds, as they lie there."""
    return _pieces(axis.size, tuple((split.rule, split.parts) for split in axis.splits))


def piece_index(axis: Axis) -> int:
    """Of this rank's part among `pieces`."""
    index = 0
    for split in axis.splits:
        index = index * split.parts + split.part
    return index


@lru_cache(maxsize=1024)
def _pieces(size: int, splits: tuple[tuple[Rule, int], ...]) -> tuple[Positions, ...]:
    found = []
    for parts in product(*(range(parts) for _, parts in splits)):
        held: Positions = np.arange(size)
        for (rule, count), part in zip(splits, parts, strict=True):
            held = held[_stretches(len(held), Split(rule, part, count))]
        held.setflags(write=False)
        found.append(held)
    return tuple(found)


def _stretches(size: int, split: Split) -> Positions:
    part, parts = split.part, split.parts
    if split.rule is Rule.TENSOR_PAIRS:
        half = size // 2
        first = _stretch(half, part, parts, shared=False)
        return np.concatenate((first, half + first))
    if split.rule is Rule.CONTEXT:
        return np.concatenate([_stretch(size, each, 2 * parts, shared=False) for each in (part, 2 * parts - 1 - part)])
    return _stretch(size, part, parts, shared=split.rule is Rule.TENSOR)


def _stretch(size: int, part: int, parts: int, *, shared: bool) -> Positions:
    first, end = part * size // parts, (part + 1) * size // parts
    return np.arange(first, max(end, first + 1) if shared and size else end)


@dataclass(frozen=True, slots=True)
class Track:
    """One axis of a result on its way: its size, and where each part's cells lie in it."""

    name: str
    size: int
    pieces: tuple[Positions, ...]
    dropped: bool = False
    """An index was taken: the axis has one cell, and goes at the end."""

    @classmethod
    def of(cls, axis: Axis) -> Track:
        return cls(axis.name, axis.size, pieces(axis))

    @property
    def split(self) -> bool:
        """Whether some part has not all of it."""
        return any(len(piece) != self.size for piece in self.pieces)

    def take(self, take: Take) -> Track:
        """Raises DataError for an index that is not there."""
        if isinstance(take.pick, Slice):
            chosen = take.pick.of(self.size)
        elif -self.size <= take.pick < self.size:
            index = take.pick % self.size
            chosen = range(index, index + 1)
        else:
            raise DataError(f"{self.name}({take.pick}) is not there; the model has {self.size}")
        if not chosen:
            raise DataError(f"{take} is empty; {self.name} has {self.size}")
        taken_pieces = tuple(_picked(piece, chosen)[1] for piece in self.pieces)
        return replace(self, size=len(chosen), pieces=taken_pieces, dropped=not isinstance(take.pick, Slice))

    def pool(self, bins: int) -> Track:
        """Positions become bins; a part's are ascending and each once."""
        bins = min(bins, self.size)
        if bins == self.size:
            return self
        pooled = tuple(np.unique(bins_of(piece, self.size, bins)) for piece in self.pieces)
        return replace(self, size=bins, pieces=pooled)

    def pools_across(self, bins: int) -> bool:
        """Whether some bin has cells of different parts, so that it is to be merged. Parts that hold the same count as
        one."""
        owner = np.full(min(bins, self.size), -1)
        for index, piece in distinct(self.pieces):
            of_piece = np.unique(bins_of(piece, self.size, len(owner)))
            if (owner[of_piece] >= 0).any():
                return True
            owner[of_piece] = index
        return False


def picked(piece: Positions, size: int, take: Take) -> tuple[Positions, Positions]:
    """Of a part's positions in an axis of `size`: the indexes that `take` leaves, and their new positions. Nothing is
    left where an index is not there."""
    pick = take.pick
    if isinstance(pick, Slice):
        return _picked(piece, pick.of(size))
    return _picked(piece, range(pick % size, pick % size + 1) if -size <= pick < size else range(0))


def _picked(piece: Positions, chosen: range) -> tuple[Positions, Positions]:
    inside = (piece >= chosen.start) & (piece < chosen.stop) & ((piece - chosen.start) % chosen.step == 0)
    left = np.flatnonzero(inside)
    return left, (piece[left] - chosen.start) // chosen.step


def bins_of(positions: Positions, size: int, bins: int) -> Positions:
    """Bin b has the positions from ⌊b·size/bins⌋ up to ⌊(b+1)·size/bins⌋."""
    return ((positions + 1) * bins - 1) // size


def distinct(parts: Sequence[Positions]) -> list[tuple[int, Positions]]:
    """Parts that have something, without those that hold the same as one before, with their indexes."""
    found: dict[bytes, tuple[int, Positions]] = {}
    for index, piece in enumerate(parts):
        if len(piece):
            found.setdefault(piece.tobytes(), (index, piece))
    return list(found.values())


def shape(tracks: Sequence[Track]) -> tuple[int, ...]:
    return tuple(track.size for track in tracks if not track.dropped)


def cells(tracks: Sequence[Track]) -> int:
    return math.prod(track.size for track in tracks)
