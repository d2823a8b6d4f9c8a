"""Where an expression puts the parts of an axis of shards together, whose cells lie wherever a rank has them."""

from __future__ import annotations

from collections.abc import Sequence

from megatronapp.core.scope.operations import (
    SHARD,
    Elementwise,
    Every,
    Hist,
    Operation,
    Pool,
    Reduce,
    Reducer,
    Stats,
    Take,
    When,
)
from megatronapp.core.scope.sites import Axis

_IN_ANY_ORDER = (Reducer.MIN, Reducer.MAX, Reducer.ABSMAX, Reducer.FARTHEST, Reducer.SUM)


def joined(operations: Sequence[Operation], axes: Sequence[Axis]) -> tuple[Operation, ...]:
    """The operations with that among them, unless shards are asked for by name. It comes before the first operation
    that needs all cells of one place: what each rank can do with its own goes before it."""
    given = tuple(operations)
    if all(axis.name != SHARD for axis in axes) or any(_axis_of(each) == SHARD for each in given):
        return given
    how: Reducer | None = None
    for at, operation in enumerate(given):
        match operation:
            case Stats(over="") | Hist() if how is None:
                return given  # of all cells, in any order
            case Pool(how=each) | Reduce(how=each) if each in _IN_ANY_ORDER and how in (None, each):
                how = each
            case Take() | Every() | When():
                pass
            case Elementwise() if how is None:
                pass
            case _:
                return (*given[:at], Reduce(how or Reducer.SUM, SHARD), *given[at:])
    return (*given, Reduce(how or Reducer.SUM, SHARD))


def _axis_of(operation: Operation) -> str:
    match operation:
        case Take(axis=axis) | Pool(axis=axis) | Reduce(axis=axis) | Stats(over=axis):
            return axis
        case _:
            return ""
