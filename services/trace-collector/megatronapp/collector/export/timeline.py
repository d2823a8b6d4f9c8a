"""Steps as both writers want them: spans nested on tracks, and which of them belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.collector.depend import match_collectives, match_messages
from megatronapp.core.trace.columns import Column, span_columns
from megatronapp.core.trace.message_id import describe
from megatronapp.core.trace.span_names import RECEIVES, SENDS
from megatronapp.v1 import trace_pb2

Ints = npt.NDArray[np.int64]

HOST_STREAM, COMPUTE_STREAM = 0, 1
_ARGUMENTS = ("microbatch", "chunk", "layer", "peer", "sequence", "bytes", "tokens", "length_squares")
_ABSENT = {"microbatch": -1, "chunk": -1, "layer": -1, "peer": -1}


@dataclass(frozen=True, slots=True)
class Slice:
    """One span. `flow` is the number of the operation it is a part of, 0: none."""

    name: str
    start_ns: int
    end_ns: int
    flow: int
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Track:
    """The slices of one stream of one rank in one step, ordered so that a slice comes after the one around it; two
    slices either nest or are apart."""

    rank: int
    stream: int
    slices: list[Slice]


def process_name(placement: trace_pb2.Placement | None) -> str:
    """DP{d}-PP{p}-TP{t}, as MegaScan names a rank's process."""
    place = placement or trace_pb2.Placement()
    return f"DP{place.data}-PP{place.pipeline}-TP{place.tensor}"


def track_name(stream: int) -> str:
    return {HOST_STREAM: "host", COMPUTE_STREAM: "compute"}.get(stream, f"stream {stream}")


def steps(spans: Iterable[trace_pb2.RankSpans]) -> Iterator[list[Track]]:
    """The tracks of each step. Flow numbers go on over steps."""
    flows = 0
    for _, group in groupby(spans, key=lambda item: item.batch.step):
        ranks = list(group)
        columns = [span_columns(item.batch) for item in ranks]
        flow = _flows(ranks, columns)
        flow[flow > 0] += flows
        flows = max(flows, int(flow.max(initial=0)))
        begin = 0
        tracks: list[Track] = []
        for item, table in zip(ranks, columns, strict=True):
            tracks += _tracks(item, table, flow[begin : begin + item.batch.count])
            begin += item.batch.count
        yield tracks


def _flows(ranks: list[trace_pb2.RankSpans], columns: Sequence[Mapping[str, Column]]) -> Ints:
    """Number of the matched operation of each row of all ranks, from 1; 0: none."""
    operation, communicator = _common_tables(ranks, columns)
    rank = np.concatenate([np.full(item.batch.count, item.rank, np.int64) for item in ranks])
    sequence = _column(columns, "sequence")
    names = [name for item, table in zip(ranks, columns, strict=True) for name in _row_names(item, table)]
    flow = np.zeros(len(rank), np.int64)
    in_group = np.flatnonzero((communicator > 0) & (_column(columns, "kind") == trace_pb2.SPAN_KIND_COLLECTIVE))
    groups = match_collectives(communicator[in_group], sequence[in_group], operation[in_group], rank[in_group])
    flow[in_group[groups.rows]] = groups.group + 1
    sends = np.array([SENDS.get(name, -1) for name in names], np.int64)
    receives = np.array([RECEIVES.get(name, -1) for name in names], np.int64)
    direction = np.maximum(sends, receives)
    peer = _column(columns, "peer")
    message = np.flatnonzero(direction >= 0)
    is_send = (sends >= 0)[message]
    edges = match_messages(
        direction[message],
        np.where(is_send, rank[message], peer[message]),
        np.where(is_send, peer[message], rank[message]),
        sequence[message],
        is_send,
        _column(columns, "message")[message],
    )
    numbers = groups.count + 1 + np.arange(len(edges.source))
    flow[message[edges.source]] = numbers
    flow[message[edges.target]] = numbers
    return flow


def _common_tables(ranks: list[trace_pb2.RankSpans], columns: Sequence[Mapping[str, Column]]) -> tuple[Ints, Ints]:
    """Name and communicator of each row as numbers that mean the same on all ranks; communicators from 1, 0: none."""
    names: dict[str, int] = {}
    ids: dict[str, int] = {}
    operation, communicator = [], []
    for item, table in zip(ranks, columns, strict=True):
        batch = item.batch
        own = np.array([names.setdefault(name, len(names)) for name in batch.names] or [0], np.int64)
        operation.append(own[table["name"]])
        known = {c.index: ids.setdefault(c.id, len(ids) + 1) for c in batch.communicators}
        used, inverse = np.unique(table["communicator"], return_inverse=True)
        communicator.append(np.array([known.get(int(index), 0) for index in used] or [0], np.int64)[inverse])
    return np.concatenate(operation), np.concatenate(communicator)


def _column(columns: Sequence[Mapping[str, Column]], name: str) -> Ints:
    return np.concatenate([table[name] for table in columns]).astype(np.int64)


def _row_names(item: trace_pb2.RankSpans, table: Mapping[str, Column]) -> list[str]:
    names = list(item.batch.names)
    return [names[index] for index in table["name"].tolist()]


def _tracks(item: trace_pb2.RankSpans, columns: Mapping[str, Column], flow: Ints) -> Iterator[Track]:
    rows = _row_names(item, columns)
    ids = {communicator.index: communicator.id for communicator in item.batch.communicators}
    arguments = _arguments(item.batch.step, columns, ids)
    start = columns["start_ns"].astype(np.int64)
    end = start + np.maximum(columns["duration_ns"].astype(np.int64), 0)
    for stream in np.unique(columns["stream"]).tolist():
        mine = np.flatnonzero(columns["stream"] == stream)
        order = mine[np.lexsort((-end[mine], start[mine]))]
        ends = _nested(start[order], end[order])
        slices = [
            Slice(rows[row], int(start[row]), until, int(flow[row]), arguments[row])
            for row, until in zip(order.tolist(), ends, strict=True)
        ]
        yield Track(item.rank, int(stream), slices)


def _arguments(step: int, columns: Mapping[str, Column], ids: Mapping[int, str]) -> list[dict[str, Any]]:
    """Per row what is known of it, and nothing of what is not."""
    found: list[dict[str, Any]] = [{"step": step} for _ in range(len(columns["name"]))]
    for name in _ARGUMENTS:
        column = columns[name]
        for row in np.flatnonzero(column != _ABSENT.get(name, 0)).tolist():
            found[row][name] = int(column[row])
    for row in np.flatnonzero(columns["communicator"] != 0).tolist():
        found[row]["communicator"] = ids.get(int(columns["communicator"][row]), "")
    for row in np.flatnonzero(columns["message"] != 0).tolist():
        found[row]["message"] = describe(int(columns["message"][row]))
    return found


def _nested(start: Ints, end: Ints) -> list[int]:
    """Ends cut to that of the slice around, since two clocks' rounding may let a part outlast the whole."""
    around: list[int] = []
    cut = []
    for begin, until in zip(start.tolist(), end.tolist(), strict=True):
        while around and around[-1] <= begin:
            around.pop()
        limited = min(until, around[-1]) if around else until
        around.append(limited)
        cut.append(limited)
    return cut
