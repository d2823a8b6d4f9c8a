"""Rows in memory, as they came: one block per message, turned into tables when they are stored or read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from megatronapp.core.trace.columns import Columns
from megatronapp.v1 import trace_pb2

if TYPE_CHECKING:
    from megatronapp.collector.clocks import Reading


SUMMARY_ROW_BYTES = 160
"""A summary's row with its keys, decoded."""
TOLERATED_GROWTH = 4
"""Honest summaries grow so much when decoded."""


@dataclass(frozen=True, slots=True)
class SpanBlock:
    """It holds nothing of the message but its columns, which are nearly all of it."""

    rank: int
    step: int
    names: tuple[str, ...]
    columns: Columns
    communicators: Mapping[int, str]
    clock: Reading

    @property
    def rows(self) -> int:
        return self.columns.rows


@dataclass(frozen=True, slots=True)
class SummaryBlock:
    rank: int
    summary: trace_pb2.StepSummary
    columns: Columns
    communicators: Mapping[int, str]
    clock: Reading
    on_cpu: bool
    """Compute is measured by thread CPU time."""

    @property
    def step(self) -> int:
        return self.summary.step

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.summary.names)

    @property
    def rows(self) -> int:
        return self.columns.rows


@dataclass(slots=True)
class Buffer:
    spans: list[SpanBlock] = field(default_factory=list)
    summaries: list[SummaryBlock] = field(default_factory=list)
    bytes: int = 0
    _steps: set[int] = field(default_factory=set)
    """Of the summaries."""

    def __bool__(self) -> bool:
        return bool(self.spans or self.summaries)

    def add_spans(self, block: SpanBlock, size: int) -> None:
        """`size` is that of the message in bytes."""
        self.spans.append(block)
        self.bytes += size

    def add_summary(self, block: SummaryBlock, size: int) -> None:
        """Rows of few bytes count as what they are when decoded, as far as that is much more."""
        self.summaries.append(block)
        self.bytes += max(size, block.rows * SUMMARY_ROW_BYTES // TOLERATED_GROWTH)
        self._steps.add(block.step)

    def join(self, later: Buffer) -> Buffer:
        """The rows of both, these first."""
        return Buffer(
            self.spans + later.spans,
            self.summaries + later.summaries,
            self.bytes + later.bytes,
            self._steps | later._steps,
        )

    @property
    def steps(self) -> int:
        """Of how many steps there are summaries."""
        return len(self._steps)
