"""Ranges that are written out refuse what those that are looked up do, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from google.protobuf.message import Message

from megatronapp.core.trace import heartbeat, limits, validate
from megatronapp.core.trace.ranges import ImplausibleError, Ranges
from megatronapp.v1 import trace_pb2

WRITTEN_OUT: dict[type[Message], Ranges] = {
    trace_pb2.RankMessage: validate._RANK_MESSAGE,
    trace_pb2.Heartbeat: heartbeat._HEARTBEAT,
    trace_pb2.Frontier: heartbeat._FRONTIER,
    trace_pb2.OpenMessage: heartbeat._OPEN,
    trace_pb2.StepSummary: validate._SUMMARY,
}


def at_the_borders(kind: type[Message], ranges: Ranges) -> Iterator[Message]:
    """Messages with one field at an end of its range, or one beyond it where the field can hold that."""
    for field, low, high in ranges._ranges:
        for value in (low - 1, low, high, high + 1):
            try:
                yield kind(**{field: value})
            except ValueError:
                continue


@pytest.mark.parametrize("kind", WRITTEN_OUT, ids=lambda kind: kind.DESCRIPTOR.name)
def test_what_is_written_out_is_what_the_ranges_say(kind: type[Message]) -> None:
    ranges = WRITTEN_OUT[kind]
    messages = list(at_the_borders(kind, ranges))

    assert ranges.hold != ranges.looked_up
    assert [ranges.hold(message) for message in messages] == [ranges.looked_up(message) for message in messages]
    assert {ranges.hold(message) for message in messages} == {True, False}


def refused(check: Callable[[trace_pb2.Heartbeat], None], beat: trace_pb2.Heartbeat) -> bool:
    try:
        check(beat)
    except ImplausibleError:
        return True
    return False


def test_a_heartbeat_that_counts_as_ordinary_is_one_that_every_check_lets_pass() -> None:
    beats = [trace_pb2.Heartbeat(gpu=part) for part in at_the_borders(trace_pb2.GpuTelemetry, heartbeat._GPU)]
    beats += [trace_pb2.Heartbeat(phase=phase) for phase in (-1, 0, limits.MAX_PHASE, limits.MAX_PHASE + 1)]
    beats += [trace_pb2.Heartbeat(frontiers=[trace_pb2.Frontier()] * n) for n in (1, limits.MAX_FRONTIERS + 1)]
    beats += at_the_borders(trace_pb2.Heartbeat, heartbeat._HEARTBEAT)

    ordinary = [heartbeat._is_ordinary(beat) for beat in beats]

    assert ordinary == [not refused(heartbeat._check_fields, beat) for beat in beats]
    assert set(ordinary) == {True, False}


def test_so_is_what_the_detector_does_not_read_of_it() -> None:
    parts = {"memory": trace_pb2.Memory, "control": trace_pb2.TraceControl}
    beats = [
        trace_pb2.Heartbeat(**{name: part})
        for name, kind in parts.items()
        for part in at_the_borders(kind, heartbeat._PARTS[name])
    ]
    beats += at_the_borders(trace_pb2.Heartbeat, heartbeat._REST)

    ordinary = [heartbeat._rest_is_ordinary(beat) for beat in beats]

    assert ordinary == [not refused(heartbeat._check_rest, beat) for beat in beats]
    assert set(ordinary) == {True, False}


def test_the_first_message_that_does_not_hold_is_named() -> None:
    ranges = Ranges("frontier", ("peer", -1, 7))

    with pytest.raises(ImplausibleError, match="frontier: peer is 9; it must be from -1 to 7"):
        ranges.check_all([trace_pb2.Frontier(peer=3), trace_pb2.Frontier(peer=9)])
