"""Where a shard's cells lie along each axis, followed through slices and pools, on the host.

A training reduces the same sites alike in each step. So what depends on axes and operations alone is worked out once;
also index tensors stay on the device: to bring one there makes the host wait for all that the device has to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch

from megatronapp.core.scope.layout import Positions, bins_of, picked, piece_index, pieces
from megatronapp.core.scope.operations import Slice, Take
from megatronapp.core.scope.sites import Axis

KEPT = 512
"""Answers of each kind, the newest ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Of one axis. Alike ones are the same object, as long as they are kept."""

    name: str
    size: int
    positions: Positions
    """Where its cells lie in the whole axis."""
    dropped: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Entries along a dimension."""

    indexes: Positions
    stretch: bool
    """They lie one behind the other: taking them is a view, and nothing is read."""
    _on_device: dict[torch.device, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, indexes: Positions) -> Chosen:
        return cls(indexes, bool(len(indexes) and (np.diff(indexes) == 1).all()))

    def take(self, values: torch.Tensor, at: int) -> torch.Tensor:
        if self.stretch:
            first, count = int(self.indexes[0]), len(self.indexes)
            return values if count == values.shape[at] else values.narrow(at, first, count)
        return values.index_select(at, self.numbers(values.device))

    def numbers(self, device: torch.device) -> torch.Tensor:
        return on_device(self._on_device, self.indexes, device)


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Stretches of an axis, each of which becomes one cell."""

    order: Chosen
    """The axis' entries, group after group."""
    cells: Cells
    sizes: Positions
    """Entries of each."""
    equal: int
    """The same, where they are alike; else 0."""
    _numbers: dict[torch.device, torch.Tensor] = field(default_factory=dict)
    _counts: dict[torch.device, torch.Tensor] = field(default_factory=dict)

    def numbers(self, device: torch.device) -> torch.Tensor:
        """Of the group, for each entry."""
        return on_device(self._numbers, np.repeat(np.arange(len(self.sizes)), self.sizes), device)

    def counts(self, device: torch.device) -> torch.Tensor:
        return on_device(self._counts, self.sizes, device)


def on_device(kept: dict[torch.device, torch.Tensor], values: Positions, device: torch.device) -> torch.Tensor:
    found = kept.get(device)
    if found is None:
        found = kept[device] = torch.from_numpy(values).to(device)
    return found


def of_axes(axes: tuple[Axis, ...]) -> tuple[Cells, ...]:
    """This rank's part of each."""
    return tuple(map(_of_axis, axes))


@lru_cache(maxsize=KEPT)
def _of_axis(axis: Axis) -> Cells:
    """By itself: of a generation one axis grows with each token, and the others stay."""
    return Cells(axis.name, axis.size, pieces(axis)[piece_index(axis)])


@lru_cache(maxsize=KEPT)
def chosen(indexes: tuple[int, ...]) -> Chosen:
    return Chosen.of(np.array(indexes, np.int64))


@lru_cache(maxsize=KEPT)
def sliced(cells: Cells, take: Take) -> tuple[Chosen, Cells]:
    left, positions = picked(cells.positions, cells.size, take)
    ranged = isinstance(take.pick, Slice)
    size = len(take.pick.of(cells.size)) if isinstance(take.pick, Slice) else 1
    return Chosen.of(left), Cells(cells.name, size, positions, dropped=not ranged)


@lru_cache(maxsize=KEPT)
def grouped(cells: Cells, bins: int, *, drop: bool) -> Groups:
    order = np.argsort(cells.positions, kind="stable")
    kept, sizes = np.unique(bins_of(cells.positions[order], cells.size, bins), return_counts=True)
    equal = int(sizes[0]) if (sizes == sizes[0]).all() else 0
    return Groups(Chosen.of(order), Cells(cells.name, bins, kept, drop), sizes.astype(np.int64), equal)
