"""Families: the rows of a job's summaries. A family is a row that many ranks have: an operation of a chunk, within a
kind of group or to a neighbour. A step's numbers are arrays of (ranks, families).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.scale.layout import DP, EP, MP, TP, Layout
from megatronapp.core.trace.span_names import SpanName, kind_of
from megatronapp.detector.steps import Ints

NAMES: tuple[str, ...] = (
    "step", "forward", "backward", "forward_send", "forward_recv", "backward_send", "backward_recv", "all_reduce",
    "reduce_scatter", "all_gather", "all_to_all", "optimizer", "data", "grad_sync", "gc", "checkpoint",
    "checkpoint_write",
)  # fmt: skip
KINDS = np.array([kind_of(SpanName(name)) for name in NAMES], np.int64)
TENSOR_OPERATIONS = 2
"""Collectives of a tensor group in a pass, of each layer and direction; here of the pass."""


@dataclass(frozen=True)
class Family:
    name: str
    chunk: int
    group: str
    """Kind of its communicator, empty: none."""
    count: Ints
    """Operations of each rank; 0: the rank has no such row."""
    peer: Ints
    """Of each rank, −1: none."""
    bytes: int = 0
    """Of an operation."""
    seldom: bool = False
    """In steps alone in which it took any time."""


class Families:
    """Those of a layout, and where each stands among them."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.all = tuple(self._families())
        self._place = {(f.name, f.chunk, f.group): index for index, f in enumerate(self.all)}
        self.count = np.stack([family.count for family in self.all], axis=1)
        self.peer = np.stack([family.peer for family in self.all], axis=1)

    def __len__(self) -> int:
        return len(self.all)

    def of(self, name: str, chunk: int = -1, group: str = "") -> int:
        """The column of a family; −1: the layout has none."""
        return self._place.get((name, chunk, group), -1)

    def _families(self) -> Iterator[Family]:
        layout, world = self.layout, self.layout.world
        nobody, m = np.full(world, -1), layout.microbatches

        def everybody(name: str, count: int, chunk: int = -1, group: str = "", size: int = 0) -> Family:
            return Family(name, chunk, group, np.full(world, count), nobody, size)

        for chunk in range(layout.vpp):
            yield everybody("forward", m, chunk)
            yield everybody("backward", m, chunk)
            if layout.tp > 1:
                yield everybody("all_reduce", 2 * TENSOR_OPERATIONS * m, chunk, TP, 1 << 24)
            if layout.ep > 1:
                yield everybody("all_to_all", 4 * m, chunk, EP)
            if layout.pp > 1:
                yield from self._messages(chunk)
        edge = np.isin(layout.pipeline, (0, layout.pp - 1))
        yield Family("data", -1, "", np.where(edge, m, 0), nobody)
        yield everybody("grad_sync", 1)
        if layout.dp > 1:
            yield everybody("reduce_scatter", 1, group=DP, size=1 << 30)
        if layout.pp * layout.tp > 1:
            yield everybody("all_reduce", 1, group=MP, size=8)
        yield everybody("optimizer", 1)
        if layout.dp > 1:
            yield everybody("all_gather", 1, group=DP, size=1 << 30)
        for name in ("gc", "checkpoint", "checkpoint_write"):
            yield Family(name, -1, "", np.full(world, 1), nobody, seldom=True)

    def _messages(self, chunk: int) -> Iterator[Family]:
        layout, ranks = self.layout, np.arange(self.layout.world)
        stage, ring, row = layout.pipeline, layout.dp * layout.tp, ranks % (layout.dp * layout.tp)
        part = chunk * layout.pp + stage
        following, before = (stage + 1) % layout.pp * ring + row, (stage - 1) % layout.pp * ring + row
        last, first = part == layout.pp * layout.vpp - 1, part == 0
        for name, none, peer in (
            ("forward_send", last, following),
            ("forward_recv", first, before),
            ("backward_send", first, before),
            ("backward_recv", last, following),
        ):
            count = np.where(none, 0, layout.microbatches)
            yield Family(name, chunk, "", count, np.where(none, -1, peer), bytes=1 << 23)
