"""Data-parallel replicas apart: each is put together by itself, from the ranks that it consists of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from megatronapp.core.scope.operations import SHARD, Operation, Pool, Take
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.sites import STATE, WEIGHT, Axis, Rule


def of_one_replica(axis: Axis) -> Axis:
    """The axis as if there were no other replica."""
    parts = math.prod(split.parts for split in axis.splits if split.rule is Rule.DATA)
    kept = tuple(split for split in axis.splits if split.rule is not Rule.DATA)
    return replace(axis, size=axis.size // parts, splits=kept)


def why_not_apart(operations: Sequence[Operation], site: str, axes: Sequence[Axis], replicas: int) -> str:
    """Why there are no replicas to be shown by themselves; empty: there are."""
    if replicas < 2:
        return "there is one data-parallel replica alone; leave out replicas"
    if any(axis.name == SHARD for axis in axes):
        return f"each data-parallel rank keeps a part of {site} of its own; leave out replicas"
    if ".experts." in site or any(split.rule is Rule.EXPERT for axis in axes for split in axis.splits):
        return f"data-parallel ranks have different experts in {site}; leave out replicas"
    if any(isinstance(each, Take | Pool) and each.axis == "batch" for each in operations):
        return "batch(…) and pool(batch,…) count over all replicas; leave them out, or reduce it: mean(batch)"
    return ""


def must_agree(site: str) -> bool:
    """Parameters, and what the optimizer keeps of them, are bitwise the same on all replicas."""
    return site.startswith((WEIGHT, STATE))


def difference(values: Values) -> str:
    """Which replicas [replica, …] hold something else; empty: none. One of which cells are missing says nothing."""
    there = [number for number, gone in enumerate(values.absent) if not gone.any()]
    held = {number: (values.array[number] + np.float32(0)).tobytes() for number in there}
    alike = Counter(held.values()).most_common()
    if len(alike) < 2:
        return ""
    if alike[0][1] == alike[1][1]:
        return f"replicas {', '.join(map(str, there))} hold different values"
    others = [str(number) for number in there if held[number] != alike[0][0]]
    return f"replica {', '.join(others)} holds other values than the {alike[0][1]} that agree"
