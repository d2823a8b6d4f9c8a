"""Rows in memory, as they came: one block per message, turned into tables when they are stored or read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from megatronapp.core.trace.columns import Column
from megatronapp.v1 import trace_pb2

if TYPE_CHECKING:
    from megatronapp.collector.clocks import Reading


@dataclass(frozen=True, slots=True)
class SpanBlock:
    rank: int
    batch: trace_pb2.TraceBatch
    columns: Mapping[str, Column]
    communicators: Mapping[int, str]
    clock: Reading

    @property
    def step(self) -> int:
        return self.batch.step


@dataclass(frozen=True, slots=True)
class SummaryBlock:
    rank: int
    summary: trace_pb2.StepSummary
    columns: Mapping[str, Column]
    communicators: Mapping[int, str]
    clock: Reading
    on_cpu: bool
    """Compute is measured by thread CPU time."""

    @property
    def step(self) -> int:
        return self.summary.step


@dataclass(slots=True)
class Buffer:
    spans: list[SpanBlock] = field(default_factory=list)
    summaries: list[SummaryBlock] = field(default_factory=list)
    bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.spans or self.summaries)

    def add_spans(self, block: SpanBlock) -> None:
        self.spans.append(block)
        self.bytes += sum(column.nbytes for column in block.columns.values())

    def add_summary(self, block: SummaryBlock) -> None:
        self.summaries.append(block)
        self.bytes += sum(column.nbytes for column in block.columns.values()) + 200

    def join(self, later: Buffer) -> Buffer:
        return Buffer(self.spans + later.spans, self.summaries + later.summaries, self.bytes + later.bytes)

    @property
    def steps(self) -> int:
        """How many steps the summaries span."""
        if not self.summaries:
            return 0
        steps = [block.step for block in self.summaries]
        return max(steps) - min(steps) + 1
