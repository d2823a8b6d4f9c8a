"""What a rank does with its shard, where it lies: `core.scope.reduce` in torch, with results equal to those.

Where cells lie is known on the host, from the axes alone; only values are tensors. Nothing waits for the device: what
comes out is copied by who takes it, and `finish` makes the result of the copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from megatronapp.core.errors import DataError
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
from megatronapp.core.scope.reduce import finished_statistics, padded
from megatronapp.core.scope.results import Counts, Partial, Result
from megatronapp.core.scope.sites import Axis
from megatronapp.trainer.plugins.scope import distributions, patterns

MAX_RESULTS = 1 << 24
Arrays = Sequence[Any]
"""NumPy arrays of `Reduced.tensors`, in their order."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """A result that is still on its device."""

    tensors: tuple[torch.Tensor, ...]
    finish: Callable[[Arrays], Result]
    counted: patterns.Wanted | None = None
    """The tensor is how often each pattern came, of which `completed` makes this."""

    def on_host(self) -> Result:
        """Waits for the device."""
        [tensors] = completed([self])
        return self.finish([tensor.cpu().numpy() for tensor in tensors])


def completed(several: Sequence[Reduced]) -> list[tuple[torch.Tensor, ...]]:
    """What each `finish` takes, still on the device. Statistics are made of all that was counted, at once."""
    found = [each.tensors for each in several]
    for wanted in {each.counted for each in several if each.counted is not None}:
        places = [place for place, each in enumerate(several) if each.counted == wanted]
        rows = patterns.made(wanted, torch.stack([several[place].tensors[0] for place in places]))
        for place, row in zip(places, rows.unbind(), strict=True):
            found[place] = (row,)
    return found


@dataclass(frozen=True, slots=True)
class _Local:
    name: str
    size: int
    positions: Positions
    """Where its cells lie in the whole axis."""
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class _Shard:
    array: torch.Tensor
    valid: torch.Tensor
    axes: tuple[_Local, ...]
    whole: bool = False
    """Every cell is valid: nobody needs to look."""

    def index(self, name: str) -> int:
        for index, axis in enumerate(self.axes):
            if axis.name == name:
                return index
        raise DataError(f"there is no axis {name} here")

    def with_axis(self, at: int, axis: _Local) -> tuple[_Local, ...]:
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
    local = tuple(_Local(axis.name, axis.size, pieces(axis)[piece_index(axis)]) for axis in axes)
    if tuple(values.shape) != tuple(len(axis.positions) for axis in local):
        raise DataError(f"values of {tuple(values.shape)}; this part has {[len(axis.positions) for axis in local]}")
    valid = torch.ones((), dtype=torch.bool, device=values.device) if masked is None else ~masked
    shard = _Shard(values, valid.expand(values.shape), local, whole=masked is None)
    return _reduced(shard, operations, partial=partial)


def reduce_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    axes: Sequence[Axis],
    operations: Sequence[Operation],
    *,
    scale: float,
    softmax: bool,
    partial: bool = False,
) -> Reduced | None:
    """As `reduce_shard` of scores or, with softmax, probabilities, which are made of no more batch entries, heads and
    queries than the first slices leave. Causal. query: [batch, head, query, chan], key: [batch, group, key, chan] of
    this rank; `axes` are the site's: batch, head, query, key."""
    batch, head, rows, columns = (_Local(axis.name, axis.size, pieces(axis)[piece_index(axis)]) for axis in axes)
    channels = np.arange(query.shape[-1])
    valid = torch.ones((), dtype=torch.bool, device=query.device)
    asked = _Shard(query, valid.expand(query.shape), (batch, head, rows, _Local("chan", len(channels), channels)))
    group = torch.arange(query.shape[1], device=query.device) // (query.shape[1] // key.shape[1])
    left = list(operations)
    entries, heads = np.arange(query.shape[0]), np.arange(query.shape[1])
    queries = rows.positions.copy()
    while left and isinstance(take := left[0], Take) and take.axis in {"batch", "head", "query"}:
        left.pop(0)
        axis = asked.axes[asked.index(take.axis)]
        index, _ = picked(axis.positions, axis.size, take)
        entries = entries[index] if take.axis == "batch" else entries
        heads = heads[index] if take.axis == "head" else heads
        queries = queries[index] if take.axis == "query" else queries
        asked = _take(asked, take)
    if not asked.array.numel():
        return None
    chosen = _selected(_selected(key, 0, entries), 1, group.cpu().numpy()[heads])
    scores = asked.array.float() @ chosen.float().transpose(-1, -2) * scale
    first = key.shape[2] - rows.size  # with a cache the keys begin before the queries
    last_seen = torch.from_numpy(queries + first).to(query.device)
    future = torch.arange(key.shape[2], device=query.device) > last_seen.unsqueeze(-1)
    values = scores.masked_fill(future, -math.inf).softmax(-1) if softmax else scores
    shard = _Shard(values, (~future).expand(values.shape), (*asked.axes[:3], columns))
    return _reduced(shard, left, partial=partial)


def reduce_head_results(
    context: torch.Tensor,
    weight: torch.Tensor,
    axes: Sequence[Axis],
    operations: Sequence[Operation],
    *,
    partial: bool = False,
) -> Reduced | None:
    """As `reduce_shard` of what each head adds to the residual stream, context · weight, without the bias, made of no
    more batch entries, tokens and heads than the first slices leave. context: [batch, token, head, chan], weight:
    [hidden, head, chan] of this rank; `axes` are the site's: batch, token, head, chan (hidden)."""
    batch, token, head, hidden = (_Local(axis.name, axis.size, pieces(axis)[piece_index(axis)]) for axis in axes)
    inner = _Local("inner", context.shape[-1], np.arange(context.shape[-1]))
    valid = torch.ones((), dtype=torch.bool, device=context.device)
    asked = _Shard(context, valid.expand(context.shape), (batch, token, head, inner), whole=True)
    left, heads = list(operations), np.arange(context.shape[2])
    while left and isinstance(take := left[0], Take) and take.axis in {"batch", "token", "head"}:
        left.pop(0)
        if take.axis == "head":
            axis = asked.axes[asked.index("head")]
            heads = heads[picked(axis.positions, axis.size, take)[0]]
        asked = _take(asked, take)
    values = asked.array.shape[:3].numel() * weight.shape[0]
    if not values:
        return None
    if values > MAX_RESULTS:
        raise DataError(f"{values} values of heads; at most {MAX_RESULTS}: take fewer rows, such as last(1)")
    result = torch.einsum("bthc,dhc->bthd", asked.array.float(), _selected(weight, 1, heads).float())
    valid = torch.ones((), dtype=torch.bool, device=result.device).expand(result.shape)
    return _reduced(_Shard(result, valid, (*asked.axes[:3], hidden), whole=True), left, partial=partial)


def _reduced(shard: _Shard, operations: Sequence[Operation], *, partial: bool) -> Reduced | None:
    for at, operation in enumerate(operations):
        if not shard.array.numel():
            return None
        merges = partial and at == len(operations) - 1
        if isinstance(operation, Stats) and not operation.over and shard.whole and shard.array.dtype is torch.bfloat16:
            return _counted_patterns(shard.array, operation, partial=merges)
        step = _step(shard, operation, partial=merges)
        if not isinstance(step, _Shard):
            return step
        shard = step
    return _values(shard) if shard.array.numel() else None


def _counted_patterns(values: torch.Tensor, stats: Stats, *, partial: bool) -> Reduced:
    def finish(arrays: Arrays) -> Result:
        return Partial(arrays[0]) if partial else Values(arrays[0])

    return Reduced((patterns.counted(values),), finish, patterns.Wanted(stats, partial))


def _values(shard: _Shard) -> Reduced:
    if shard.whole:  # a copy: the model's own tensor is soon another one
        return Reduced((shard.squeezed(shard.array.to(torch.float32, copy=True)),), lambda arrays: Values(arrays[0]))
    array = shard.squeezed(torch.where(shard.valid, shard.array, math.nan).float())

    def finish(arrays: Arrays) -> Values:
        absent = arrays[1]
        return Values(arrays[0], absent if absent.any() else None)

    return Reduced((array, shard.squeezed(~shard.valid)), finish)


def _step(shard: _Shard, operation: Operation, *, partial: bool) -> _Shard | Reduced:
    match operation:
        case Take():
            return _take(shard, operation)
        case Elementwise(name="abs"):
            return replace(shard, array=shard.array.abs())
        case Elementwise():
            array = shard.array.double()
            return replace(shard, array=torch.copysign(array.abs().sqrt(), array))
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
    array = _selected(shard.array, at, left)
    valid = shard.valid[(0,) * shard.valid.dim()].expand(array.shape) if shard.whole and array.numel() else None
    if valid is None:
        valid = _selected(shard.valid, at, left)
    return _Shard(array, valid, shard.with_axis(at, local), shard.whole)


def _selected(values: torch.Tensor, at: int, indexes: Positions) -> torch.Tensor:
    """A view where the indexes are a stretch: nothing is read then."""
    if len(indexes) and (np.diff(indexes) == 1).all():
        return values.narrow(at, int(indexes[0]), len(indexes))
    return values.index_select(at, torch.from_numpy(indexes).to(values.device))


def _pool(shard: _Shard, name: str, bins: int, how: Reducer, *, partial: bool, drop: bool = False) -> _Shard | Reduced:
    at = shard.index(name)
    axis = shard.axes[at]
    bins = min(bins, axis.size)
    if bins == axis.size and not (drop or partial) and how in (Reducer.MEAN, Reducer.MAX, Reducer.MIN, Reducer.SUM):
        return shard
    order = np.argsort(axis.positions, kind="stable")
    kept, sizes = np.unique(bins_of(axis.positions[order], axis.size, bins), return_counts=True)
    array = _selected(shard.array, at, order)
    groups = _Groups.of(sizes, at, array.device)
    if shard.whole and how in _OF_WHOLE:
        found = _components_of_whole(how, array, groups, sizes)
    else:
        found = _components(how, array.double(), _selected(shard.valid, at, order), groups)
    pooled = replace(shard, axes=shard.with_axis(at, _Local(name, bins, kept, drop)))
    if partial:
        return Reduced((pooled.squeezed(found, 1),), lambda arrays: Partial(arrays[0]))
    result, empty = _finished(how, found)
    return replace(pooled, array=result, valid=~empty)


@dataclass(frozen=True, slots=True)
class _Groups:
    """Consecutive stretches along a dimension."""

    dim: int
    count: int
    equal: int
    """Entries of each, where they are alike; else 0."""
    number: torch.Tensor
    """Of the group, for each entry."""

    @classmethod
    def of(cls, sizes: Positions, dim: int, device: torch.device) -> _Groups:
        alike = int(sizes[0]) if (sizes == sizes[0]).all() else 0
        number = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)).to(device)
        return cls(dim, len(sizes), alike, number)

    def reduced(self, values: torch.Tensor, how: str) -> torch.Tensor:
        """how: sum (in float64), amax, amin."""
        if self.equal:
            grouped = values.unflatten(self.dim, (self.count, self.equal))
            if how == "sum":
                return grouped.sum(self.dim + 1, dtype=torch.float64)
            reduced: torch.Tensor = getattr(grouped, how)(self.dim + 1)
            return reduced
        values = values.double() if how == "sum" else values
        shape = [self.count if dim == self.dim else size for dim, size in enumerate(values.shape)]
        index = self.number.view([-1 if dim == self.dim else 1 for dim in range(values.dim())]).expand_as(values)
        return values.new_zeros(shape).scatter_reduce(self.dim, index, values, how, include_self=False)

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """To each entry its group's."""
        return values.index_select(self.dim, self.number)


_OF_WHOLE = (Reducer.MEAN, Reducer.SUM, Reducer.MIN, Reducer.MAX, Reducer.ABSMAX)


def _components_of_whole(how: Reducer, array: torch.Tensor, groups: _Groups, sizes: Positions) -> torch.Tensor:
    """As `_components` where every cell is valid: values are read as they are, and counts are known."""
    match how:
        case Reducer.MIN:
            found = groups.reduced(array, "amin").double()
        case Reducer.MAX:
            found = groups.reduced(array, "amax").double()
        case Reducer.ABSMAX:
            found = torch.maximum(groups.reduced(array, "amax"), -groups.reduced(array, "amin")).double()
        case _:
            found = groups.reduced(array, "sum")
    counts = torch.from_numpy(sizes).to(found).view([-1 if dim == groups.dim else 1 for dim in range(found.dim())])
    return torch.stack([found, counts.expand_as(found)])


def _components(how: Reducer, array: torch.Tensor, valid: torch.Tensor, groups: _Groups) -> torch.Tensor:
    counts = groups.reduced(valid.double(), "sum")
    known = torch.where(valid, array, 0.0)
    match how:
        case Reducer.MEAN | Reducer.SUM:
            found = groups.reduced(known, "sum")
        case Reducer.L2:
            found = groups.reduced(known * known, "sum")
        case Reducer.ENTROPY:
            terms = -known * torch.log(torch.where(known > 0, known, 1.0))
            found = groups.reduced(torch.where((known > 0) | known.isnan(), terms, 0.0), "sum")
        case Reducer.MIN:
            found = groups.reduced(torch.where(valid, array, math.inf), "amin")
        case Reducer.MAX:
            found = groups.reduced(torch.where(valid, array, -math.inf), "amax")
        case Reducer.ABSMAX:
            found = groups.reduced(torch.where(valid, array.abs(), -math.inf), "amax")
        case Reducer.STD:
            means = groups.reduced(known, "sum") / counts.clamp(min=1)
            away = torch.where(valid, array - groups.spread(means), 0.0)
            return torch.stack([means, groups.reduced(away * away, "sum"), counts])
    return torch.stack([found, counts])


def _finished(how: Reducer, merged: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    counts = merged[-1]
    match how:
        case Reducer.MEAN:
            result = merged[0] / counts.clamp(min=1)
        case Reducer.STD:
            result = torch.sqrt(merged[1] / counts.clamp(min=1))
        case Reducer.L2:
            result = torch.sqrt(merged[0])
        case _:
            result = merged[0]
    return result, counts == 0


def _distribution(shard: _Shard, operation: Stats | Hist, *, partial: bool) -> Reduced:
    over = operation.over if isinstance(operation, Stats) else ""
    rows, valid = _rows(shard, shard.array, over), _rows(shard, shard.valid, over)
    if isinstance(operation, Hist):
        counts = distributions.histogram(operation, rows.double(), valid)
        return Reduced((counts,), lambda arrays: Counts(arrays[0].astype(np.uint32)))
    return Reduced((distributions.statistics(operation, rows, valid),), _finish_statistics(operation, partial=partial))


def _finish_statistics(stats: Stats, *, partial: bool) -> Callable[[Arrays], Result]:
    if partial:
        return lambda arrays: Partial(arrays[0])
    return lambda arrays: finished_statistics(stats, arrays[0])


def _rows(shard: _Shard, array: torch.Tensor, over: str) -> torch.Tensor:
    if not over:
        return array.reshape(-1)
    at = shard.index(over)
    kept = replace(shard, axes=shard.axes[:at] + shard.axes[at + 1 :])
    return kept.squeezed(array.movedim(at, -1))


def _top(shard: _Shard, k: int) -> Reduced:
    last = shard.axes[-1]
    rows = shard.squeezed(torch.where(shard.valid, shard.array.double(), -math.inf))
    # As NumPy's: a row that holds NaN or +Inf has NaN or +Inf, one without values −Inf.
    sums = torch.where(rows.isnan().any(-1), math.nan, torch.logsumexp(rows, -1))
    ranked = torch.where(rows.isnan(), -math.inf, rows)
    count = min(k, rows.shape[-1])
    order = ranked.sort(stable=True, dim=-1, descending=True)[1][..., :count]
    chosen = ranked.gather(-1, order)
    positions = last.positions
    return Reduced(
        (order, chosen, sums),
        lambda arrays: padded(positions[arrays[0]].astype(np.uint32), arrays[1], np.asarray(arrays[2]), k),
    )
