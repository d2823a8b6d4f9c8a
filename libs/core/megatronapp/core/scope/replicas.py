"""Data-parallel replicas apart: each is put together by itself, from the ranks that it consists of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from megatronapp.core.scope.operations import SHARD, Operation, Pool, Take
from megatronapp.core.scope.sites import Axis, Rule


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
