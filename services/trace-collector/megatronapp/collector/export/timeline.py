"""Steps as both writers want them: spans nested on tracks, and which of them belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.collector.depend import match_collectives, match_messages
from megatronapp.collector.rank_spans import RankSpans
from megatronapp.core.trace.message_id import describe
from megatronapp.core.trace.span_names import RECEIVES, SENDS
from megatronapp.v1 import trace_pb2

Ints = npt.NDArray[np.int64]

HOST_STREAM, COMPUTE_STREAM, NCCL_STREAM = 0, 1, 5
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
    return {HOST_STREAM: "host", COMPUTE_STREAM: "compute", NCCL_STREAM: "nccl"}.get(stream, f"stream {stream}")


def steps(spans: Iterable[RankSpans]) -> Iterator[list[Track]]:
    """The tracks of each step. Flow numbers go on over steps."""
    flows = 0
    for _, group in groupby(spans, key=lambda item: item.step):
        ranks = list(group)
        flow = _flows(ranks)
        flow[flow > 0] += flows
        flows = max(flows, int(flow.max(initial=0)))
        begin = 0
        tracks: list[Track] = []
        for item in ranks:
            tracks += _tracks(item, flow[begin : begin + item.rows])
            begin += item.rows
        yield tracks


def _flows(ranks: Sequence[RankSpans]) -> Ints:
    """Number of the matched operation of each row of all ranks, from 1; 0: none."""
    operation, communicator = _common_tables(ranks)
    rank = np.concatenate([np.full(item.rows, item.rank, np.int64) for item in ranks])
    sequence = _column(ranks, "sequence")
    flow = np.zeros(len(rank), np.int64)
    in_group = np.flatnonzero((communicator > 0) & (_column(ranks, "kind") == trace_pb2.SPAN_KIND_COLLECTIVE))
    groups = match_collectives(communicator[in_group], sequence[in_group], operation[in_group], rank[in_group])
    flow[in_group[groups.rows]] = groups.group + 1
    sends, receives = _by_name(ranks, SENDS), _by_name(ranks, RECEIVES)
    direction = np.maximum(sends, receives)
    peer = _column(ranks, "peer")
    message = np.flatnonzero(direction >= 0)
    is_send = (sends >= 0)[message]
    edges = match_messages(
        direction[message],
        np.where(is_send, rank[message], peer[message]),
        np.where(is_send, peer[message], rank[message]),
        sequence[message],
        is_send,
        _column(ranks, "message")[message],
    )
    numbers = groups.count + 1 + np.arange(len(edges.source))
    flow[message[edges.source]] = numbers
    flow[message[edges.target]] = numbers
    return flow


def _common_tables(ranks: Sequence[RankSpans]) -> tuple[Ints, Ints]:
    """Name and communicator of each row as numbers that mean the same on all ranks; communicators from 1, 0: none."""
    names = {name: number for number, name in enumerate(dict.fromkeys(n for item in ranks for n in item.names))}
    ids: dict[str, int] = {}
    communicator = []
    for item in ranks:
        known = {c.index: ids.setdefault(c.id, len(ids) + 1) for c in item.communicators}
        used, inverse = np.unique(item.columns["communicator"], return_inverse=True)
        communicator.append(np.array([known.get(int(index), 0) for index in used] or [0], np.int64)[inverse])
    return _by_name(ranks, names), np.concatenate(communicator)


def _by_name(ranks: Sequence[RankSpans], values: Mapping[str, int]) -> Ints:
    """The value of each row's name, -1: none."""
    return np.concatenate(
        [np.array([values.get(n, -1) for n in item.names] or [-1], np.int64)[item.columns["name"]] for item in ranks]
    )


def _column(ranks: Sequence[RankSpans], name: str) -> Ints:
    return np.concatenate([item.columns[name] for item in ranks]).astype(np.int64)


def _tracks(item: RankSpans, flow: Ints) -> Iterator[Track]:
    columns = item.columns
    name, arguments = columns["name"].tolist(), _arguments(item)
    start = columns["start_ns"].astype(np.int64)
    end = start + np.maximum(columns["duration_ns"].astype(np.int64), 0)
    for stream in np.unique(columns["stream"]).tolist():
        mine = np.flatnonzero(columns["stream"] == stream)
        order = mine[np.lexsort((-end[mine], start[mine]))]
        ends = _nested(start[order], end[order])
        slices = [
            Slice(item.names[name[row]], int(start[row]), until, int(flow[row]), arguments[row])
            for row, until in zip(order.tolist(), ends, strict=True)
        ]
        yield Track(item.rank, int(stream), slices)


def _arguments(item: RankSpans) -> list[dict[str, Any]]:
    """Per row what is known of it, and nothing of what is not."""
    columns = item.columns
    ids = {communicator.index: communicator.id for communicator in item.communicators}
    found: list[dict[str, Any]] = [{"step": item.step} for _ in range(item.rows)]
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
