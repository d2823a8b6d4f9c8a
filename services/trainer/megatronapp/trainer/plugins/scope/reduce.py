"""What a rank does with its part, where it lies: `core.scope.reduce` in torch, with results equal to those.

Where cells lie is known on the host, from the axes alone; only values are tensors. Nothing waits for the device: what
comes out is copied by who takes it, and `finish` makes the result of the copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np
import torch

from megatronapp.core.errors import DataError
from megatronapp.core.scope.operations import (
    Elementwise,
    Every,
    Hist,
    Operation,
    Pool,
    Reduce,
    Reducer,
    Slice,
    Stats,
    Take,
    TopK,
    When,
)
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.reduce import finished_statistics, padded
from megatronapp.core.scope.reducers import OF_ONE_ITSELF
from megatronapp.core.scope.results import Counts, Partial, Result
from megatronapp.core.scope.sites import Axis
from megatronapp.trainer.plugins.scope import distributions, patterns, pools
from megatronapp.trainer.plugins.scope.cells import Cells, grouped, of_axes, sliced
from megatronapp.trainer.plugins.scope.reduced import Arrays, Reduced


@dataclass(frozen=True, slots=True)
class Part:
    array: torch.Tensor
    axes: tuple[Cells, ...]
    masked: torch.Tensor | None = None
    """Of the array's shape; None: every cell is valid, nobody needs to look."""
    own: bool = False
    """The array is nobody else's: it needs no copy."""

    @property
    def valid(self) -> torch.Tensor:
        if self.masked is None:
            return torch.ones((), dtype=torch.bool, device=self.array.device).expand(self.array.shape)
        return ~self.masked

    def index(self, name: str) -> int:
        for index, axis in enumerate(self.axes):
            if axis.name == name:
                return index
        raise DataError(f"there is no axis {name} here")

    def with_axis(self, at: int, axis: Cells) -> tuple[Cells, ...]:
        return (*self.axes[:at], axis, *self.axes[at + 1 :])

    def squeezed(self, array: torch.Tensor, before: int = 0) -> torch.Tensor:
        """Without axes of which an index was taken, in a tensor that has `before` others in front."""
        return array.squeeze(tuple(before + at for at, axis in enumerate(self.axes) if axis.dropped))


def reduce_shard(
    values: torch.Tensor,
    masked: torch.Tensor | None,
    axes: Sequence[Axis],
    operations: Sequence[Operation],
    *,
    partial: bool = False,
) -> Reduced | None:
    """See `core.scope.reduce.reduce_shard`. `masked`: bool, broadcasts against the values; None: no cell is."""
    held = of_axes(tuple(axes))
    if tuple(values.shape) != tuple(len(cells.positions) for cells in held):
        raise DataError(f"values of {tuple(values.shape)}; this part has {[len(cells.positions) for cells in held]}")
    part = Part(values, held, None if masked is None else masked.expand(values.shape))
    return reduce_part(part, operations, partial=partial)


def reduce_entries(values: torch.Tensor, axes: Sequence[Axis], operations: Sequence[Operation]) -> Reduced | None:
    """As `reduce_shard` where nothing is masked and operations do no more than take single entries of axes that are not
    split: what a generation shows of each token, without the ways of all others. None: it is not so."""
    names = [axis.name for axis in axes]
    splits = {axis.name for axis in axes if any(split.parts > 1 for split in axis.splits)}
    for take in operations:
        if not isinstance(take, Take) or isinstance(take.pick, Slice) or take.axis in splits or take.axis not in names:
            return None
        at = names.index(take.axis)
        if not -values.shape[at] <= take.pick < values.shape[at]:
            return None
        values = values.select(at, take.pick)
        del names[at]
    return Reduced((_copied(values, own=False),), _finish_values) if values.numel() else None


def reduce_part(part: Part, operations: Sequence[Operation], *, partial: bool) -> Reduced | None:
    for at, operation in enumerate(operations):
        if not part.array.numel():
            return None
        merges = partial and at == len(operations) - 1
        if counts_patterns(operation, part.array, part.masked):
            return reduce_by_patterns(part.array, operation, partial=merges)
        step = _step(part, operation, partial=merges)
        if not isinstance(step, Part):
            return step
        part = step
    return _values(part) if part.array.numel() else None


def counts_patterns(operation: Operation, values: torch.Tensor, masked: torch.Tensor | None) -> TypeGuard[Stats]:
    """Whether `reduce_by_patterns` does this."""
    return isinstance(operation, Stats) and not operation.over and masked is None and values.dtype is torch.bfloat16


def reduce_by_patterns(values: torch.Tensor, stats: Stats, *, partial: bool) -> Reduced:
    """Values in any order."""
    finish = _finish_partial if partial else _finish_values
    return Reduced((), finish, patterns.counted(values, patterns.Wanted(stats, partial)))


def _finish_partial(arrays: Arrays) -> Result:
    return Partial(arrays[0])


def _finish_values(arrays: Arrays) -> Result:
    return Values(arrays[0])


def _values(part: Part) -> Reduced:
    if part.masked is None:
        return Reduced((part.squeezed(_copied(part.array, own=part.own)),), _finish_values)
    array = part.squeezed(part.array.float().masked_fill(part.masked, math.nan))

    def finish(arrays: Arrays) -> Values:
        absent = arrays[1]
        return Values(arrays[0], absent if absent.any() else None)

    return Reduced((array, part.squeezed(part.masked)), finish)


def _copied(array: torch.Tensor, *, own: bool) -> torch.Tensor:
    """As the model's own tensor is soon another one; in the order of its axes, so that it leaves the host as it is."""
    return array.to(torch.float32, copy=not own, memory_format=torch.contiguous_format)


def _step(part: Part, operation: Operation, *, partial: bool) -> Part | Reduced:
    match operation:
        case Take():
            return take_of(part, operation)
        case Elementwise(name="abs"):
            return replace(part, array=part.array.abs(), own=True)
        case Elementwise():
            array = part.array.double()
            return replace(part, array=torch.copysign(array.abs().sqrt(), array), own=True)
        case Pool(axis=axis, bins=bins, how=how):
            return _pool(part, axis, bins, how, partial=partial)
        case Reduce(axis=axis, how=how):
            return _pool(part, axis, 1, how, partial=partial, drop=True)
        case Stats() | Hist():
            return _distribution(part, operation, partial=partial)
        case TopK(k=k):
            return _top(part, k)
        case Every() | When():
            return part
        case _:
            raise DataError(f"{operation} is no reduction of one shard")


def take_of(part: Part, take: Take) -> Part:
    at = part.index(take.axis)
    picked, cells = sliced(part.axes[at], take)
    masked = None if part.masked is None else picked.take(part.masked, at)
    return Part(picked.take(part.array, at), part.with_axis(at, cells), masked, part.own)


def _pool(part: Part, name: str, bins: int, how: Reducer, *, partial: bool, drop: bool = False) -> Part | Reduced:
    at = part.index(name)
    bins = min(bins, part.axes[at].size)
    if bins == part.axes[at].size and not (drop or partial):  # each cell by itself
        if how in OF_ONE_ITSELF:
            return part
        if how is Reducer.ABSMAX:
            return replace(part, array=part.array.abs(), own=True)
    groups = grouped(part.axes[at], bins, drop=drop)
    axes = part.with_axis(at, groups.cells)
    array = groups.order.take(part.array, at)
    if part.masked is None and how in pools.OF_WHOLE:
        found = pools.of_whole(how, array, groups, at, partial=partial)
        if not partial:
            return Part(found, axes, own=True)
    else:
        found = pools.components(how, array.double(), groups.order.take(part.valid, at), groups, at)
    if partial:
        parts = Part(found, axes).squeezed(found, 1)
        return Reduced((parts,), _finish_partial)
    result, empty = pools.finished(how, found)
    return Part(result, axes, empty, own=True)


def _distribution(part: Part, operation: Stats | Hist, *, partial: bool) -> Reduced:
    over = operation.over if isinstance(operation, Stats) else ""
    rows, valid = _rows(part, part.array, over), _rows(part, part.valid, over)
    if isinstance(operation, Hist):
        counts = distributions.histogram(operation, rows.double(), valid)
        return Reduced((counts,), lambda arrays: Counts(arrays[0].astype(np.uint32)))
    return Reduced((distributions.statistics(operation, rows, valid),), _finish_statistics(operation, partial=partial))


def _finish_statistics(stats: Stats, *, partial: bool) -> Callable[[Arrays], Result]:
    if partial:
        return _finish_partial
    return lambda arrays: finished_statistics(stats, arrays[0])


def _rows(part: Part, array: torch.Tensor, over: str) -> torch.Tensor:
    if not over:
        return array.reshape(-1)
    at = part.index(over)
    kept = replace(part, axes=part.axes[:at] + part.axes[at + 1 :])
    return kept.squeezed(array.movedim(at, -1))


def _top(part: Part, k: int) -> Reduced:
    last = part.axes[-1]
    rows = part.squeezed(part.array.double().masked_fill(~part.valid, -math.inf))
    # As NumPy's: a row that holds NaN or +Inf has NaN or +Inf, one without values −Inf.
    wrong = rows.isnan()
    sums = torch.logsumexp(rows, -1).masked_fill_(wrong.any(-1), math.nan)
    ranked = rows.masked_fill(wrong, -math.inf)
    count = min(k, rows.shape[-1])
    order = ranked.sort(stable=True, dim=-1, descending=True)[1][..., :count]
    best = ranked.gather(-1, order)
    positions = last.positions
    return Reduced(
        (order, best, sums),
        lambda arrays: padded(positions[arrays[0]].astype(np.uint32), arrays[1], np.asarray(arrays[2]), k),
    )
