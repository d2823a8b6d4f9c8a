"""What is read back: a rank's spans of one step as columns, from which answers and timelines are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from megatronapp.core.trace.columns import Column, fill_spans, span_columns
from megatronapp.v1 import trace_pb2


@dataclass(frozen=True, slots=True)
class RankSpans:
    rank: int
    step: int
    names: Sequence[str]
    communicators: Sequence[trace_pb2.Communicator]
    """All that the rank has named."""
    columns: Mapping[str, Column]
    """Those of a TraceBatch; times are job time."""

    @classmethod
    def of(
        cls,
        rank: int,
        batch: trace_pb2.TraceBatch,
        communicators: Iterable[trace_pb2.Communicator],
        offset_ns: int = 0,
    ) -> RankSpans:
        """A batch as it came; job time = its time + offset_ns. Raises DataError as span_columns does."""
        return cls(rank, batch.step, tuple(batch.names), tuple(communicators), span_columns(batch, offset_ns))

    @property
    def rows(self) -> int:
        return len(self.columns["name"])

    def to_proto(self) -> trace_pb2.RankSpans:
        batch = trace_pb2.TraceBatch(step=self.step, names=self.names, communicators=self.communicators, last=True)
        fill_spans(batch, self.columns)
        return trace_pb2.RankSpans(rank=self.rank, batch=batch)
