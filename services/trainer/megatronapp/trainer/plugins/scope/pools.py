"""Values along a dimension, in groups, each of which becomes one: as `core.scope.reducers`, in torch."""

from __future__ import annotations

import math

import torch

from megatronapp.core.scope.operations import Reducer
from megatronapp.trainer.plugins.scope.cells import Groups

LINEAR = (Reducer.MEAN, Reducer.SUM)
OF_WHOLE = (*LINEAR, Reducer.MIN, Reducer.MAX, Reducer.ABSMAX, Reducer.FARTHEST)


def of_whole(how: Reducer, array: torch.Tensor, groups: Groups, dim: int, *, partial: bool) -> torch.Tensor:
    """Where every cell is valid values are read as they are, and counts are known. `partial`: with them, as
    `components`."""
    if how is Reducer.FARTHEST:
        return _farthest(array, groups, dim, partial=partial)
    if how is Reducer.ABSMAX and groups.equal:
        parts, dtype = array.unflatten(dim, (-1, groups.equal)), torch.promote_types(array.dtype, torch.float32)
        found = torch.linalg.vector_norm(parts, math.inf, dim + 1, dtype=dtype)
    elif how is Reducer.ABSMAX:
        found = _reduced_groups(array.abs(), groups, dim, "amax")
    else:
        found = _reduced_groups(array, groups, dim, {Reducer.MIN: "amin", Reducer.MAX: "amax"}.get(how, "sum"))
    if how is not Reducer.MEAN and not partial:
        return found
    if partial:
        return torch.stack([found.double(), _counts(groups, found, dim)])
    return found / (groups.equal or _counts(groups, found, dim))


def _farthest(array: torch.Tensor, groups: Groups, dim: int, *, partial: bool) -> torch.Tensor:
    if groups.equal:
        least, largest = torch.aminmax(array.unflatten(dim, (-1, groups.equal)), dim=dim + 1)
    else:
        least, largest = (_reduced_groups(array, groups, dim, how) for how in ("amin", "amax"))
    if partial:
        return torch.stack([largest.double(), least.double(), _counts(groups, least, dim)])
    return torch.where(-least > largest, least, largest)


def _counts(groups: Groups, found: torch.Tensor, dim: int) -> torch.Tensor:
    """Of the values in each group, as `found` has them."""
    counts = groups.counts(found.device).view([-1 if at == dim else 1 for at in range(found.dim())])
    return counts.expand_as(found).double()


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


def components(how: Reducer, array: torch.Tensor, valid: torch.Tensor, groups: Groups, dim: int) -> torch.Tensor:
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
        case Reducer.FARTHEST:
            largest = reduced(array.masked_fill(no, -math.inf), "amax")
            return torch.stack([largest, reduced(array.masked_fill(no, math.inf), "amin"), counts])
        case Reducer.STD:
            means = reduced(known, "sum") / counts.clamp(min=1)
            away = (array - means.index_select(dim, groups.numbers(means.device))).masked_fill_(no, 0.0)
            return torch.stack([means, reduced(away * away, "sum"), counts])
    return torch.stack([found, counts])


def finished(how: Reducer, merged: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    counts = merged[-1]
    match how:
        case Reducer.MEAN:
            result = merged[0] / counts.clamp(min=1)
        case Reducer.STD:
            result = torch.sqrt(merged[1] / counts.clamp(min=1))
        case Reducer.L2:
            result = torch.sqrt(merged[0])
        case Reducer.FARTHEST:
            result = torch.where(-merged[1] > merged[0], merged[1], merged[0])
        case _:
            result = merged[0]
    return result, counts == 0
