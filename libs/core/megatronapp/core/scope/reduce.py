"""What a rank does with its shard, in NumPy: the reference of the rank's own, which works on tensors of the device; and
what the gateway does with the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError
from megatronapp.core.scope import reducers
from megatronapp.core.scope.layout import Positions, bins_of, picked, piece_index, pieces
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
from megatronapp.core.scope.results import NO_INDEX, Counts, Partial, Result, Top
from megatronapp.core.scope.sites import Axis


@dataclass(frozen=True, slots=True)
class _Local:
    """One axis of the array: where its cells lie in the whole of it."""

    name: str
    size: int
    positions: Positions
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class _Shard:
    array: npt.NDArray[np.float64]
    valid: npt.NDArray[np.bool_]
    axes: tuple[_Local, ...]

    def index(self, name: str) -> int:
        return next(index for index, axis in enumerate(self.axes) if axis.name == name)

    def with_axis(self, at: int, axis: _Local) -> tuple[_Local, ...]:
        return (*self.axes[:at], axis, *self.axes[at + 1 :])

    def squeezed(self, array: npt.NDArray[np.generic], before: int = 0) -> npt.NDArray[np.generic]:
        """Without axes of which an index was taken, in an array that has `before` others in front."""
        return array.squeeze(tuple(before + at for at, axis in enumerate(self.axes) if axis.dropped))


def reduce_shard(
    values: Values, axes: Sequence[Axis], operations: Sequence[Operation], *, partial: bool = False
) -> Result | None:
    """`values` are a rank's part of a site with `axes`, whose sizes are those of this forward. `operations` are a
    plan's (`plan.Plan.rank`); `partial`: the last one leaves what is to be merged. None: no cell of this part is asked
    for. Raises DataError for values of another shape.
    """
    local = tuple(_Local(axis.name, axis.size, pieces(axis)[piece_index(axis)]) for axis in axes)
    if values.array.shape != tuple(len(axis.positions) for axis in local):
        raise DataError(f"values of {values.array.shape}; this part has {[len(axis.positions) for axis in local]}")
    shard = _Shard(values.array.astype(np.float64), ~values.absent, local)
    for at, operation in enumerate(operations):
        if not shard.array.size:
            return None
        step = _step(shard, operation, partial=partial and at == len(operations) - 1)
        if not isinstance(step, _Shard):
            return step
        shard = step
    return _values(shard) if shard.array.size else None


def _values(shard: _Shard) -> Values:
    masked = ~shard.valid
    with np.errstate(over="ignore"):
        array = np.where(masked, np.nan, shard.array).astype(np.float32)
    array = shard.squeezed(array).astype(np.float32)
    return Values(array, shard.squeezed(masked).astype(bool) if masked.any() else None)


def _step(shard: _Shard, operation: Operation, *, partial: bool) -> _Shard | Result:
    match operation:
        case Take():
            return _take(shard, operation)
        case Elementwise(name="abs"):
            return replace(shard, array=np.abs(shard.array))
        case Elementwise():
            return replace(shard, array=np.copysign(np.sqrt(np.abs(shard.array)), shard.array))
        case Pool(axis=axis, bins=bins, how=how):
            return _pool(shard, axis, bins, how, partial=partial)
        case Reduce(axis=axis, how=how):
            return _pool(shard, axis, 1, how, partial=partial, drop=True)
        case Stats() | Hist():
            return _distribution(shard, operation, partial=partial)
        case TopK(k=k):
            return _top(shard, k)
        case Every() | When():
            return shard
        case _:
            raise DataError(f"{operation} is no reduction of one shard")


def _take(shard: _Shard, take: Take) -> _Shard:
    at = shard.index(take.axis)
    axis = shard.axes[at]
    left, positions = picked(axis.positions, axis.size, take)
    size = len(take.pick.of(axis.size)) if isinstance(take.pick, Slice) else 1
    local = _Local(axis.name, size, positions, not isinstance(take.pick, Slice))
    return _Shard(shard.array.take(left, at), shard.valid.take(left, at), shard.with_axis(at, local))


def _pool(shard: _Shard, name: str, bins: int, how: Reducer, *, partial: bool, drop: bool = False) -> _Shard | Partial:
    at = shard.index(name)
    axis = shard.axes[at]
    bins = min(bins, axis.size)
    if bins == axis.size and not (drop or partial) and how in reducers.OF_ONE_ITSELF:
        return shard
    order = np.argsort(axis.positions, kind="stable")
    numbers = bins_of(axis.positions[order], axis.size, bins)
    kept, starts = np.unique(numbers, return_index=True)
    found = reducers.components(
        how, shard.array.take(order, at), shard.valid.take(order, at), [int(start) for start in starts], at
    )
    pooled = replace(shard, axes=shard.with_axis(at, _Local(name, bins, kept, drop)))
    if partial:
        return Partial(pooled.squeezed(found, 1).astype(np.float64))
    result, empty = reducers.finish(how, found)
    return replace(pooled, array=result, valid=~empty)


def _distribution(shard: _Shard, operation: Stats | Hist, *, partial: bool) -> Result:
    over = operation.over if isinstance(operation, Stats) else ""
    rows, valid = (_rows(shard, part, over) for part in (shard.array, shard.valid))
    if isinstance(operation, Hist):
        return Counts(reducers.histogram(operation, rows.astype(np.float64), valid.astype(bool)))
    found = reducers.statistics(operation, rows.astype(np.float64), valid.astype(bool))
    return Partial(found) if partial else finished_statistics(operation, found)


def finished_statistics(stats: Stats, merged: npt.NDArray[np.float64]) -> Values:
    with np.errstate(over="ignore"):
        return Values(reducers.finish_statistics(stats, merged).astype(np.float32))


def _rows(shard: _Shard, array: npt.NDArray[np.generic], over: str) -> npt.NDArray[np.generic]:
    """[*kept, values]: the axis `over` is last, or all axes are flat."""
    if not over:
        return array.reshape(-1)
    at = shard.index(over)
    kept = replace(shard, axes=shard.axes[:at] + shard.axes[at + 1 :])
    return kept.squeezed(np.moveaxis(array, at, -1))


def _top(shard: _Shard, k: int) -> Top:
    last = shard.axes[-1]
    usable = np.where(shard.valid, shard.array, -np.inf)
    rows = shard.squeezed(usable)
    sums = reducers.log_sum_exp(rows.astype(np.float64))
    ranked = np.where(np.isnan(rows.astype(np.float64)), -np.inf, rows).astype(np.float64)
    order = np.argsort(-ranked, -1, kind="stable")[..., :k]
    indexes = last.positions[order].astype(np.uint32)
    return padded(indexes, np.take_along_axis(ranked, order, -1), sums, k)


def padded(
    indexes: npt.NDArray[np.uint32], values: npt.NDArray[np.float64], sums: npt.NDArray[np.float64], k: int
) -> Top:
    """Exactly k columns; where there is no value, NO_INDEX and NaN."""
    short = [(0, 0)] * (indexes.ndim - 1) + [(0, k - indexes.shape[-1])]
    indexes = np.pad(indexes, short, constant_values=NO_INDEX)
    values = np.pad(values, short, constant_values=-np.inf)
    nothing = values == -np.inf
    with np.errstate(over="ignore"):
        return Top(
            np.where(nothing, NO_INDEX, indexes).astype(np.uint32),
            np.where(nothing, np.nan, values).astype(np.float32),
            sums.astype(np.float32),
        )
