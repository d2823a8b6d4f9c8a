"""Shards to the whole: each goes where its part of the axes lies, and what overlaps is merged.

No rank asks another one. A shard that did not come leaves cells that say so, and is counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError
from megatronapp.core.scope import reducers
from megatronapp.core.scope.layout import piece_index
from megatronapp.core.scope.operations import Hist, LogitLens, Operation, Pool, Reduce, Reducer, Stats, TopK
from megatronapp.core.scope.plan import Plan
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.reduce import finished_statistics, padded, reduce_shard
from megatronapp.core.scope.replicas import of_one_replica
from megatronapp.core.scope.results import Counts, Partial, Result, Top, dims
from megatronapp.core.scope.sites import Axis

Piece = tuple[int, ...]
"""For each axis of the site, which part of it."""


def piece_of(axes: Sequence[Axis]) -> Piece:
    """Of the rank that has these axes."""
    return tuple(piece_index(axis) for axis in axes)


def place_of(plan: Plan, axes: Sequence[Axis], replica: int) -> Piece | None:
    """Where what a rank of this replica has of these axes belongs; None: nothing of it is in the picture."""
    if not plan.replicas:
        return canonical(plan, piece_of(axes))
    within = canonical(plan, piece_of([of_one_replica(axis) for axis in axes]))
    return None if within is None else (replica, *within)


def canonical(plan: Plan, piece: Piece) -> Piece | None:
    """The first piece that holds the same cells: of the ranks that hold them one is asked. None: nothing of it is in
    the picture."""
    found = tuple(axis[index] for axis, index in zip(plan.representatives, piece, strict=True))
    return None if -1 in found else found


def needed(plan: Plan) -> set[Piece]:
    """The canonical pieces that make the whole; of replicas apart each begins with its replica."""
    apart = [set(range(plan.replicas))] if plan.replicas else []
    return set(product(*apart, *({each for each in axis if each >= 0} for axis in plan.representatives)))


def stitch(plan: Plan, shards: Mapping[Piece, Result]) -> tuple[Result, int]:
    """The whole of one layer, step and microbatch, with the gateway's reductions done, and how many shards are missing.

    `plan` is made with the sizes of this forward; `shards` are by canonical piece. Raises DataError for shards of
    another kind or shape than planned, or none.
    """
    if plan.replicas:
        return _apart(plan, shards)
    wanted = needed(plan)
    used = {piece: shards[piece] for piece in sorted(wanted & shards.keys())}
    if not used:
        raise DataError("no shard of this has come")
    result = _merged(plan, used)
    if plan.gateway:
        if not isinstance(result, Values):
            raise DataError(f"shards of {plan.site} are of another kind than planned")
        whole = [Axis(track.name, track.size) for track in plan.held if not track.dropped]
        reduced = reduce_shard(result, whole, plan.gateway)
        if reduced is None:
            raise DataError(f"nothing is left of {plan.site}")
        result = reduced
    return result, len(wanted) - len(used)


def _apart(plan: Plan, shards: Mapping[Piece, Result]) -> tuple[Values, int]:
    """Each replica's picture, one after the other; of one that nothing has come of all is missing."""
    one = replace(plan, replicas=0)
    own = [{at[1:]: shard for at, shard in shards.items() if at[0] == replica} for replica in range(plan.replicas)]
    whole = [stitch(one, each) if each else None for each in own]
    pictures = [None if each is None else each[0] for each in whole]
    like = next((each for each in pictures if isinstance(each, Values)), None)
    if like is None:
        raise DataError("no shard of this has come")
    absent = Values(np.full_like(like.array, np.nan), missing=np.ones(like.array.shape, bool))
    stacked = [each if isinstance(each, Values) else absent for each in pictures]
    if {each.array.shape for each in stacked} != {like.array.shape}:
        raise DataError(f"replicas of {plan.site} are of different shapes")
    array = np.stack([each.array for each in stacked])
    masked, missing = (_stacked([getattr(each, state) for each in stacked], like) for state in ("masked", "missing"))
    return _with_states(array, masked, missing), sum(len(needed(one)) if each is None else each[1] for each in whole)


def _stacked(states: Sequence[npt.NDArray[Any] | None], like: Values) -> npt.NDArray[Any]:
    return np.stack([np.zeros(like.array.shape, bool) if each is None else each for each in states])


class _Place:
    """Where a shard lies in the whole, along the axes that are left."""

    def __init__(self, plan: Plan) -> None:
        last = plan.rank[-1] if plan.rank else None
        self._held = plan.held
        self._kept = [at for at, track in enumerate(plan.held) if not (track.dropped or _goes(last, plan, at))]
        self.shape = tuple(plan.held[at].size for at in self._kept)

    def of(self, piece: Piece, width: tuple[int, ...], result: Result) -> tuple[Any, ...]:
        """An index; `width` are axes that every shard has whole, behind the others. Raises DataError."""
        positions = [self._held[at].pieces[piece[at]] for at in self._kept]
        wanted = (*(len(each) for each in positions), *width)
        if dims(result) != wanted:
            raise DataError(f"a shard of {dims(result)}; expected {wanted}")
        return np.ix_(*positions) if positions else ()


def _goes(last: Operation | None, plan: Plan, at: int) -> bool:
    """Whether the last operation leaves nothing of an axis."""
    match last:
        case Stats(over=over) if over:
            return plan.held[at].name == over
        case Stats() | Hist():
            return True
        case TopK() | LogitLens():
            return at == len(plan.held) - 1
        case _:
            return False


def _merged(plan: Plan, shards: Mapping[Piece, Result]) -> Result:
    place = _Place(plan)
    last = plan.rank[-1] if plan.rank else None
    kinds = {type(result) for result in shards.values()}
    expected = _expected(last, partial=plan.partial)
    if kinds != {expected}:
        raise DataError(f"shards of {plan.site} are of another kind than planned")
    match last:
        case Hist(bins=bins):
            return _counts(shards, place, bins)
        case TopK(k=k) | LogitLens(k=k):
            return _tops(shards, place, k)
        case Stats() if plan.partial:
            return _statistics(last, shards, place)
        case Pool(how=how) | Reduce(how=how) if plan.partial:
            return _reductions(how, shards, place)
        case Stats():
            return _values(shards, place, (len(last.names),))
        case _:
            return _values(shards, place, ())


def _expected(last: Operation | None, *, partial: bool) -> type[Result]:
    match last:
        case Hist():
            return Counts
        case TopK() | LogitLens():
            return Top
        case _:
            return Partial if partial else Values


def _values(shards: Mapping[Piece, Any], place: _Place, width: tuple[int, ...]) -> Values:
    shape = (*place.shape, *width)
    array = np.full(shape, np.nan, np.float32)
    masked, missing = np.zeros(shape, bool), np.ones(shape, bool)
    for piece, values in shards.items():
        at = place.of(piece, width, values)
        array[at], missing[at] = values.array, False
        if values.masked is not None:
            masked[at] = values.masked
        if values.missing is not None:
            missing[at] = values.missing
    return _with_states(array, masked, missing)


def _with_states(array: npt.NDArray[np.float32], masked: npt.NDArray[Any], missing: npt.NDArray[Any]) -> Values:
    return Values(array, masked if masked.any() else None, missing if missing.any() else None)


def _reductions(how: Reducer, shards: Mapping[Piece, Any], place: _Place) -> Values:
    merged = reducers.identity(how, place.shape)
    came = np.zeros(place.shape, bool)
    for piece, partial in shards.items():
        at = (slice(None), *place.of(piece, (), partial))
        _check_components(partial, len(merged))
        merged[at] = reducers.merge(how, merged[at], partial.components)
        came[at[1:]] = True
    result, empty = reducers.finish(how, merged)
    with np.errstate(over="ignore"):
        array = np.where(empty, np.nan, result).astype(np.float32)
    return _with_states(array, empty & came, ~came)


def _statistics(stats: Stats, shards: Mapping[Piece, Any], place: _Place) -> Values:
    merged = reducers.statistics_identity(stats, place.shape)
    came = np.zeros(place.shape, bool)
    for piece, partial in shards.items():
        at = (slice(None), *place.of(piece, (), partial))
        _check_components(partial, len(merged))
        merged[at] = reducers.merge_statistics(merged[at], partial.components)
        came[at[1:]] = True
    values = finished_statistics(stats, merged)
    missing = np.broadcast_to(~came[..., None], values.array.shape)
    return _with_states(values.array, np.zeros(values.array.shape, bool), missing)


def _check_components(partial: Partial, count: int) -> None:
    if len(partial.components) != count:
        raise DataError(f"a partial of {len(partial.components)} components; expected {count}")


def _counts(shards: Mapping[Piece, Any], place: _Place, bins: int) -> Counts:
    merged = np.zeros((*place.shape, bins), np.uint64)
    for piece, counts in shards.items():
        merged[place.of(piece, (bins,), counts)] += counts.counts
    return Counts(np.minimum(merged, 0xFFFFFFFF).astype(np.uint32))


def _tops(shards: Mapping[Piece, Any], place: _Place, k: int) -> Top:
    """The best of all shards' best; their log-sum-exps make that of the whole."""
    rows = (*place.shape, k)
    indexes = np.zeros((*rows, len(shards)), np.uint32)
    values = np.full((*rows, len(shards)), -np.inf)
    sums = np.full((*place.shape, len(shards)), -np.inf)
    for number, (piece, top) in enumerate(shards.items()):
        at = place.of(piece, (k,), top)
        indexes[(*at, ..., number)] = top.indexes
        values[(*at, ..., number)] = np.where(np.isnan(top.values), -np.inf, top.values)
        sums[(*at, ..., number)] = top.log_sum_exp
    flat = math.prod(rows[:-1])
    indexes = indexes.reshape(*place.shape, k * len(shards))
    values = values.reshape(*place.shape, k * len(shards))
    # Equal values in the order of their indexes, whatever the layout.
    order = np.lexsort((indexes, -values), -1)[..., :k] if flat else np.zeros((*place.shape, k), int)
    return padded(
        np.take_along_axis(indexes, order, -1),
        np.take_along_axis(values, order, -1),
        reducers.log_sum_exp(sums),
        k,
    )
