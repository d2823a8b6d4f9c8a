"""What a rank does with its shard, where it lies: `core.scope.reduce` in torch, with results equal to those.

Where cells lie is known on the host, from the axes alone; only values are tensors. Nothing waits for the device: what
comes out is copied by who takes it, and `finish` makes the result of the copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
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
from megatronapp.trainer.plugins.scope.cells import Cells, Chosen, Groups, chosen, grouped, of_axes, sliced
from megatronapp.trainer.plugins.scope.saes import Sae

MAX_RESULTS = 1 << 24
Arrays = Sequence[Any]
"""NumPy arrays of `Reduced.tensors`, in their order."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """A result that is still on its device."""

    tensors: tuple[torch.Tensor, ...]
    finish: Callable[[Arrays], Result]
    counted: patterns.Counted | None = None
    """In place of tensors: how often each pattern came, of which `completed` makes one."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors) if self.counted is None else self.counted.nbytes

    def on_host(self) -> Result:
        """Waits for the device."""
        done = completed([self])
        [arrays] = done.of([tensor.cpu().numpy() for tensor in done.tensors])
        return self.finish(arrays)


@dataclass(frozen=True, slots=True)
class Completed:
    """Results in as few tensors as there can be, still on the device."""

    tensors: list[torch.Tensor]
    places: list[list[tuple[int, int | None]]]
    """Of each result's tensors: which one it is, or in which row of one."""

    def of(self, arrays: Sequence[npt.NDArray[Any]]) -> list[list[npt.NDArray[Any]]]:
        """What each `finish` takes; `arrays` are those of the tensors."""
        return [
            [arrays[number] if row is None else arrays[number][row, ...] for number, row in places]
            for places in self.places
        ]


def completed(several: Sequence[Reduced]) -> Completed:
    """Statistics are made of all that was counted, at once."""
    tensors: list[torch.Tensor] = []
    tallies: dict[patterns.Wanted, dict[patterns.Tally, int]] = {}
    for each in several:
        if each.counted is not None:
            tallies.setdefault(each.counted.tally.wanted, {})[each.counted.tally] = 0
    numbers = {}
    for wanted, firsts in tallies.items():
        counts = [tally.counts() for tally in firsts]
        for tally, first in zip(firsts, accumulate(map(len, counts), initial=0), strict=False):
            firsts[tally] = first
        numbers[wanted] = len(tensors)
        tensors.append(patterns.made(wanted, counts[0] if len(counts) == 1 else torch.cat(counts)))
    places: list[list[tuple[int, int | None]]] = []
    for each in several:
        if (counted := each.counted) is not None:
            wanted = counted.tally.wanted
            places.append([(numbers[wanted], tallies[wanted][counted.tally] + counted.row)])
        else:
            places.append([(len(tensors) + at, None) for at in range(len(each.tensors))])
            tensors += each.tensors
    return Completed(tensors, places)


@dataclass(frozen=True, slots=True)
class _Shard:
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
    shard = _Shard(values, held, None if masked is None else masked.expand(values.shape))
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
    batch, head, rows, columns = of_axes(tuple(axes))
    inner = of_axes((Axis("chan", query.shape[-1]),))
    entries, heads, queries = np.arange(query.shape[0]), np.arange(query.shape[1]), rows.positions
    asked, left = _Shard(query, (batch, head, rows, *inner)), list(operations)
    while left and isinstance(take := left[0], Take) and take.axis in {"batch", "head", "query"}:
        left.pop(0)
        index = sliced(asked.axes[asked.index(take.axis)], take)[0].indexes
        entries = entries[index] if take.axis == "batch" else entries
        heads = heads[index] if take.axis == "head" else heads
        queries = queries[index] if take.axis == "query" else queries
        asked = _take(asked, take)
    if not asked.array.numel():
        return None
    groups = heads // (query.shape[1] // key.shape[1])
    keys = chosen(tuple(groups)).take(chosen(tuple(entries)).take(key, 0), 1)
    scores = asked.array.float() @ keys.float().transpose(-1, -2) * scale
    first = key.shape[2] - rows.size  # with a cache the keys begin before the queries
    last_seen = chosen(tuple(queries)).numbers(query.device).unsqueeze(-1) + first
    future = torch.arange(key.shape[2], device=query.device) > last_seen
    values = scores.masked_fill(future, -math.inf).softmax(-1) if softmax else scores
    return _reduced(_Shard(values, (*asked.axes[:3], columns), future.expand(values.shape)), left, partial=partial)


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
    batch, token, head, hidden = of_axes(tuple(axes))
    inner = of_axes((Axis("inner", context.shape[-1]),))
    asked = _Shard(context, (batch, token, head, *inner))
    left, heads = list(operations), np.arange(context.shape[2])
    while left and isinstance(take := left[0], Take) and take.axis in {"batch", "token", "head"}:
        left.pop(0)
        if take.axis == "head":
            heads = heads[sliced(asked.axes[asked.index("head")], take)[0].indexes]
        asked = _take(asked, take)
    values = asked.array.shape[:3].numel() * weight.shape[0]
    if not values:
        return None
    if values > MAX_RESULTS:
        raise DataError(f"{values} values of heads; at most {MAX_RESULTS}: take fewer rows, such as last(1)")
    result = torch.einsum("bthc,dhc->bthd", asked.array.float(), chosen(tuple(heads)).take(weight, 1).float())
    return _reduced(_Shard(result, (*asked.axes[:3], hidden), own=True), left, partial=partial)


def reduce_features(
    rows: torch.Tensor,
    sae: Sae,
    axes: Sequence[Axis],
    operations: Sequence[Operation],
    *,
    partial: bool = False,
) -> Reduced | None:
    """As `reduce_shard` of what an SAE makes of rows [batch, token, hidden], of no more rows and features than the
    first slices leave; `axes` are the site's: batch, token, chan (features)."""
    batch, token, features = of_axes(tuple(axes))
    asked = _Shard(rows, (batch, token, *of_axes((Axis("hidden", rows.shape[-1]),))))
    left, columns = list(operations), Chosen.of(np.arange(sae.features))
    while left and isinstance(take := left[0], Take):
        left.pop(0)
        if take.axis == "chan":
            kept, features = sliced(features, take)
            columns = chosen(tuple(columns.indexes[kept.indexes]))
        else:
            asked = _take(asked, take)
    values = asked.array.shape[:2].numel() * (sae.features if sae.k else len(columns.indexes))
    if not values:
        return None
    if values > MAX_RESULTS:
        raise DataError(f"{values} values of features; at most {MAX_RESULTS}: take fewer rows, such as last(8)")
    result = sae.encode(asked.array, columns.take)
    return _reduced(_Shard(result, (*asked.axes[:2], features), own=True), left, partial=partial)


def _reduced(shard: _Shard, operations: Sequence[Operation], *, partial: bool) -> Reduced | None:
    for at, operation in enumerate(operations):
        if not shard.array.numel():
            return None
        merges = partial and at == len(operations) - 1
        if counts_patterns(operation, shard.array, shard.masked):
            return reduce_by_patterns(shard.array, operation, partial=merges)
        step = _step(shard, operation, partial=merges)
        if not isinstance(step, _Shard):
            return step
        shard = step
    return _values(shard) if shard.array.numel() else None


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


def _values(shard: _Shard) -> Reduced:
    if shard.masked is None:  # a copy: the model's own tensor is soon another one
        array = shard.squeezed(shard.array.to(torch.float32, copy=not shard.own))
        return Reduced((array,), _finish_values)
    array = shard.squeezed(shard.array.float().masked_fill(shard.masked, math.nan))

    def finish(arrays: Arrays) -> Values:
        absent = arrays[1]
        return Values(arrays[0], absent if absent.any() else None)

    return Reduced((array, shard.squeezed(shard.masked)), finish)


def _step(shard: _Shard, operation: Operation, *, partial: bool) -> _Shard | Reduced:
    match operation:
        case Take():
            return _take(shard, operation)
        case Elementwise(name="abs"):
            return replace(shard, array=shard.array.abs(), own=True)
        case Elementwise():
            array = shard.array.double()
            return replace(shard, array=torch.copysign(array.abs().sqrt(), array), own=True)
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
    picked, cells = sliced(shard.axes[at], take)
    masked = None if shard.masked is None else picked.take(shard.masked, at)
    return _Shard(picked.take(shard.array, at), shard.with_axis(at, cells), masked, shard.own)


def _pool(shard: _Shard, name: str, bins: int, how: Reducer, *, partial: bool, drop: bool = False) -> _Shard | Reduced:
    at = shard.index(name)
    bins = min(bins, shard.axes[at].size)
    if bins == shard.axes[at].size and not (drop or partial) and how in (*_LINEAR, Reducer.MAX, Reducer.MIN):
        return shard
    groups = grouped(shard.axes[at], bins, drop=drop)
    axes = shard.with_axis(at, groups.cells)
    array = groups.order.take(shard.array, at)
    if shard.masked is None and how in _OF_WHOLE:
        found = _of_whole(how, array, groups, at, partial=partial)
        if not partial:
            return _Shard(found, axes, own=True)
    else:
        found = _components(how, array.double(), groups.order.take(shard.valid, at), groups, at)
    if partial:
        parts = _Shard(found, axes).squeezed(found, 1)
        return Reduced((parts,), _finish_partial)
    result, empty = _finished(how, found)
    return _Shard(result, axes, empty, own=True)


_LINEAR = (Reducer.MEAN, Reducer.SUM)
_OF_WHOLE = (*_LINEAR, Reducer.MIN, Reducer.MAX, Reducer.ABSMAX)


def _of_whole(how: Reducer, array: torch.Tensor, groups: Groups, dim: int, *, partial: bool) -> torch.Tensor:
    """Where every cell is valid values are read as they are, and counts are known. `partial`: with them, as
    `_components`."""
    if how is Reducer.ABSMAX and groups.equal:
        parts, dtype = array.unflatten(dim, (-1, groups.equal)), torch.promote_types(array.dtype, torch.float32)
        found = torch.linalg.vector_norm(parts, math.inf, dim + 1, dtype=dtype)
    elif how is Reducer.ABSMAX:
        found = _reduced_groups(array.abs(), groups, dim, "amax")
    else:
        found = _reduced_groups(array, groups, dim, {Reducer.MIN: "amin", Reducer.MAX: "amax"}.get(how, "sum"))
    if how is not Reducer.MEAN and not partial:
        return found
    counts: torch.Tensor | int = groups.equal
    if partial or not groups.equal:
        counts = groups.counts(found.device).view([-1 if at == dim else 1 for at in range(found.dim())])
    if isinstance(counts, torch.Tensor) and partial:
        return torch.stack([found.double(), counts.expand_as(found).double()])
    return found / counts


def _reduced_groups(values: torch.Tensor, groups: Groups, dim: int, how: str) -> torch.Tensor:
    """how: sum (in float64), amax, amin."""
    if groups.equal:
        parts = values.unflatten(dim, (-1, groups.equal))
        if how == "sum":
            return parts.sum(dim + 1, dtype=torch.float64)
        reduced: torch.Tensor = getattr(parts, how)(dim + 1)
        return reduced
    values = values.double() if how == "sum" else values
    shape = [len(groups.sizes) if at == dim else size for at, size in enumerate(values.shape)]
    numbers = groups.numbers(values.device).view([-1 if at == dim else 1 for at in range(values.dim())])
    return values.new_zeros(shape).scatter_reduce(dim, numbers.expand_as(values), values, how, include_self=False)


def _components(how: Reducer, array: torch.Tensor, valid: torch.Tensor, groups: Groups, dim: int) -> torch.Tensor:
    def reduced(values: torch.Tensor, how: str) -> torch.Tensor:
        return _reduced_groups(values, groups, dim, how)

    counts = reduced(valid.double(), "sum")
    no = ~valid
    known = array.masked_fill(no, 0.0)
    match how:
        case Reducer.MEAN | Reducer.SUM:
            found = reduced(known, "sum")
        case Reducer.L2:
            found = reduced(known * known, "sum")
        case Reducer.ENTROPY:
            nothing = known <= 0  # not of a NaN
            terms = -known * torch.log(known.masked_fill(nothing, 1.0))
            found = reduced(terms.masked_fill_(nothing, 0.0), "sum")
        case Reducer.MIN:
            found = reduced(array.masked_fill(no, math.inf), "amin")
        case Reducer.MAX:
            found = reduced(array.masked_fill(no, -math.inf), "amax")
        case Reducer.ABSMAX:
            found = reduced(array.abs().masked_fill(no, -math.inf), "amax")
        case Reducer.STD:
            means = reduced(known, "sum") / counts.clamp(min=1)
            away = (array - means.index_select(dim, groups.numbers(means.device))).masked_fill_(no, 0.0)
            return torch.stack([means, reduced(away * away, "sum"), counts])
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
        return _finish_partial
    return lambda arrays: finished_statistics(stats, arrays[0])


def _rows(shard: _Shard, array: torch.Tensor, over: str) -> torch.Tensor:
    if not over:
        return array.reshape(-1)
    at = shard.index(over)
    kept = replace(shard, axes=shard.axes[:at] + shard.axes[at + 1 :])
    return kept.squeezed(array.movedim(at, -1))


def _top(shard: _Shard, k: int) -> Reduced:
    last = shard.axes[-1]
    rows = shard.squeezed(shard.array.double().masked_fill(~shard.valid, -math.inf))
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
