"""Chrome trace JSON, as chrome://tracing and Perfetto open it; pid is the global rank, times are in us."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from megatronapp.collector.export.counters import counts
from megatronapp.collector.export.timeline import Slice, Track, process_name, steps, track_name
from megatronapp.collector.rank_spans import RankSpans
from megatronapp.v1 import trace_pb2

_FLOW = {"cat": "match", "name": "match"}


def write(spans: Iterable[RankSpans], placements: Mapping[int, trace_pb2.Placement]) -> Iterator[bytes]:
    """The file in pieces, one step at a time. Times count from the first span."""
    yield b'{"displayTimeUnit":"ms","traceEvents":[\n'
    named: set[tuple[int, int]] = set()
    events: list[dict[str, Any]] = []
    for rank, placement in sorted(placements.items()):
        events += _process(rank, placement)
    origin: int | None = None
    separator = ""
    for tracks in steps(spans):
        if origin is None:
            origin = min(track.slices[0].start_ns for track in tracks)
        for track in tracks:
            if (track.rank, track.stream) not in named:
                named.add((track.rank, track.stream))
                events.append(_meta("thread_name", track.rank, track.stream, {"name": track_name(track.stream)}))
            events += [_slice(track, slice_, origin) for slice_ in track.slices]
            events += _counters(track, origin)
        events += _arrows(tracks, origin)
        yield (separator + ",\n".join(map(_dump, events))).encode()
        events, separator = [], ",\n"
    yield ",\n".join(map(_dump, events)).encode() + b"\n]}\n"


def _dump(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))


def _process(rank: int, placement: trace_pb2.Placement) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", rank, 0, {"name": process_name(placement)})
    yield _meta("process_labels", rank, 0, {"labels": f"rank {rank} {placement.node}".strip()})
    yield _meta("process_sort_index", rank, 0, {"sort_index": rank})


def _meta(name: str, rank: int, stream: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": rank, "tid": stream, "args": arguments}


def _slice(track: Track, slice_: Slice, origin: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": slice_.name,
        "pid": track.rank,
        "tid": track.stream,
        "ts": (slice_.start_ns - origin) / 1e3,
        "dur": (slice_.end_ns - slice_.start_ns) / 1e3,
        "args": slice_.arguments,
    }


def _counters(track: Track, origin: int) -> Iterator[dict[str, Any]]:
    for name, at_ns, value in counts(track):
        yield {"ph": "C", "name": name, "pid": track.rank, "ts": (at_ns - origin) / 1e3, "args": {"count": value}}


def _arrows(tracks: Iterable[Track], origin: int) -> Iterator[dict[str, Any]]:
    """A flow through the slices of each matched operation, in the order of their starts."""
    members: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for track in tracks:
        for slice_ in track.slices:
            if slice_.flow:
                members[slice_.flow].append((slice_.start_ns, track.rank, track.stream))
    for flow, points in members.items():
        points.sort()
        for index, (start, rank, stream) in enumerate(points):
            phase = "s" if index == 0 else "f" if index == len(points) - 1 else "t"
            event = {**_FLOW, "ph": phase, "id": flow, "pid": rank, "tid": stream, "ts": (start - origin) / 1e3}
            yield event | ({"bp": "e"} if phase == "f" else {})
