"""Perfetto's own format (.pftrace), written with its protobuf messages alone. Times are job time in ns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from megatronapp.collector.export.counters import CAP, HELD, SLOTS, Count, counts
from megatronapp.collector.export.timeline import Slice, Track, process_name, steps, track_name
from megatronapp.collector.rank_spans import RankSpans
from megatronapp.v1 import trace_pb2

_SEQUENCE = 1
_MAX_STREAMS = 1 << 10
_COUNTERS = {HELD: _MAX_STREAMS - 3, CAP: _MAX_STREAMS - 2, SLOTS: _MAX_STREAMS - 1}
"""Their tracks stand where no stream does."""


def write(spans: Iterable[RankSpans], placements: Mapping[int, trace_pb2.Placement]) -> Iterator[bytes]:
    """The file in pieces: a trace is the concatenation of its packets."""
    writer = _Writer()
    yield writer.processes(placements)
    for tracks in steps(spans):
        for track in tracks:
            yield writer.track(track)


class _Writer:
    """Names and argument names are written once and referred to by number afterwards."""

    def __init__(self) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        self._pb: Any = perfetto_trace_pb2
        self._named: set[int] = set()
        self._names: dict[str, int] = {}
        self._arguments: dict[str, int] = {}
        self._begun = False

    def processes(self, placements: Mapping[int, trace_pb2.Placement]) -> bytes:
        trace = self._pb.Trace()
        for rank, placement in sorted(placements.items()):
            self._describe_process(trace, rank, placement)
        return _bytes(trace)

    def track(self, track: Track) -> bytes:
        trace = self._pb.Trace()
        uuid = _track_uuid(track.rank, track.stream)
        if _process_uuid(track.rank) not in self._named:
            self._describe_process(trace, track.rank, None)
        if uuid not in self._named:
            self._describe_track(trace, track, uuid)
        ends: list[int] = []
        for slice_ in track.slices:
            while ends and ends[-1] <= slice_.start_ns:
                self._end(trace, uuid, ends.pop())
            self._begin(trace, uuid, slice_)
            ends.append(slice_.end_ns)
        while ends:
            self._end(trace, uuid, ends.pop())
        for count in counts(track):
            self._count(trace, track.rank, count)
        return _bytes(trace)

    def _describe_process(self, trace: Any, rank: int, placement: trace_pb2.Placement | None) -> None:
        self._named.add(_process_uuid(rank))
        descriptor = trace.packet.add().track_descriptor
        descriptor.uuid = _process_uuid(rank)
        # Number 0 is the idle process to Perfetto.
        descriptor.process.pid = rank + 1
        descriptor.process.process_name = f"{process_name(placement)} (rank {rank})"

    def _describe_track(self, trace: Any, track: Track, uuid: int) -> None:
        self._named.add(uuid)
        descriptor = trace.packet.add().track_descriptor
        descriptor.uuid = uuid
        descriptor.parent_uuid = _process_uuid(track.rank)
        descriptor.name = track_name(track.stream)

    def _count(self, trace: Any, rank: int, count: Count) -> None:
        uuid = _process_uuid(rank) + _COUNTERS[count.name]
        if uuid not in self._named:
            self._named.add(uuid)
            descriptor = trace.packet.add().track_descriptor
            descriptor.uuid, descriptor.parent_uuid, descriptor.name = uuid, _process_uuid(rank), count.name
            descriptor.counter.SetInParent()
        event = self._packet(trace, count.at_ns).track_event
        event.type = self._pb.TrackEvent.TYPE_COUNTER
        event.track_uuid = uuid
        event.counter_value = count.value

    def _begin(self, trace: Any, uuid: int, slice_: Slice) -> None:
        packet = self._packet(trace, slice_.start_ns)
        event = packet.track_event
        event.type = self._pb.TrackEvent.TYPE_SLICE_BEGIN
        event.track_uuid = uuid
        event.name_iid = self._intern(self._names, slice_.name, packet.interned_data.event_names)
        if slice_.flow:
            event.flow_ids.append(slice_.flow)
        for name, value in slice_.arguments.items():
            argument = event.debug_annotations.add()
            argument.name_iid = self._intern(self._arguments, name, packet.interned_data.debug_annotation_names)
            if isinstance(value, str):
                argument.string_value = value
            else:
                argument.int_value = value
        if not packet.interned_data.ByteSize():
            packet.ClearField("interned_data")

    def _end(self, trace: Any, uuid: int, at_ns: int) -> None:
        event = self._packet(trace, at_ns).track_event
        event.type = self._pb.TrackEvent.TYPE_SLICE_END
        event.track_uuid = uuid

    def _packet(self, trace: Any, at_ns: int) -> Any:
        packet = trace.packet.add()
        packet.timestamp = at_ns
        packet.trusted_packet_sequence_id = _SEQUENCE
        kind = self._pb.TracePacket
        packet.sequence_flags = kind.SEQ_NEEDS_INCREMENTAL_STATE
        if not self._begun:
            packet.sequence_flags |= kind.SEQ_INCREMENTAL_STATE_CLEARED
            self._begun = True
        return packet

    @staticmethod
    def _intern(known: dict[str, int], text: str, table: Any) -> int:
        if text not in known:
            known[text] = len(known) + 1
            table.add(iid=known[text], name=text)
        return known[text]


def _process_uuid(rank: int) -> int:
    return (rank + 1) * _MAX_STREAMS


def _track_uuid(rank: int, stream: int) -> int:
    return _process_uuid(rank) + stream + 1


def _bytes(trace: Any) -> bytes:
    data: bytes = trace.SerializeToString()
    return data
