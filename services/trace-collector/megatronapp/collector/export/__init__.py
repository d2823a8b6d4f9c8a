"""Timelines for people: one process per rank, a track per stream, arrows between matched operations.

A writer takes spans in job time, ordered by step, and yields the file in pieces; memory holds one step at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from megatronapp.collector.export import chrome, perfetto
from megatronapp.collector.rank_spans import RankSpans
from megatronapp.v1 import trace_pb2

Writer = Callable[[Iterable[RankSpans], Mapping[int, trace_pb2.Placement]], Iterator[bytes]]

WRITERS: Mapping[int, Writer] = {
    trace_pb2.EXPORT_FORMAT_CHROME_JSON: chrome.write,
    trace_pb2.EXPORT_FORMAT_PERFETTO: perfetto.write,
}
"""By ExportFormat."""

SUFFIXES: Mapping[str, Writer] = {".json": chrome.write, ".pftrace": perfetto.write}
"""By the file's suffix."""
