"""NCCL's own times in a step's spans: of what a hook has called they stand in place of its marks, and what no hook has
seen becomes a span. Of each operation there is one.

Messages that are called in a group, as a pipeline's stage sends and receives, run in one kernel, and NCCL tells for all
of them the same end: when one of them is through. There the hooks' marks stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from megatronapp.core.trace.limits import MAX_COUNT, MAX_DURATION_NS, MAX_TIME_NS
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.nccl_calls import Calls, Groups, sits_in, size_of
from megatronapp.trainer.agent.nccl_frontiers import span_name
from megatronapp.trainer.agent.nccl_times import GpuClock, Recorded
from megatronapp.trainer.agent.operations import Direction, Lane
from megatronapp.trainer.agent.span_table import Ints
from megatronapp.trainer.agent.spans import SpanNames

NCCL_STREAM = 5
"""Of what no hook has seen."""
_AT = {name: at for at, name in enumerate(layout.COLUMNS)}
_NONE = {"microbatch": -1, "chunk": -1, "layer": -1, "peer": -1, "stream": NCCL_STREAM}


class _Span(NamedTuple):
    """On the GPU's clock."""

    start_ns: int
    end_ns: int


class NcclSpans:
    """Of one rank."""

    def __init__(self, rank: int, names: SpanNames) -> None:
        self._rank = rank
        self._names = names
        self._numbers = {name: number for number, name in enumerate(names.names)}
        self._clock = GpuClock()
        self._joined: dict[int, int] = {}
        """Number of the rank's communicator by NCCL's hash, where its calls have shown it."""

    def detail(
        self, table: Ints, operations: Sequence[Recorded], lanes: Mapping[int, Lane], groups: Groups
    ) -> Ints | None:
        """A step's rows with what NCCL has told of it; None where it has told nothing, or the rows can't be true."""
        name = table[_AT["name"]]
        if not operations or ((name < 0) | (name >= len(self._names.names))).any():
            return None
        calls = Calls(table, self._names, groups, self._rank)
        in_groups = _in_groups(operations, lanes)
        made: dict[int, list[Recorded]] = {}
        unseen: list[tuple[Recorded, Lane]] = []
        for each in operations:
            if (lane := lanes.get(each.called.lane)) is None:
                continue
            if (at := calls.take(each.called, lane)) is None:
                unseen.append((each, lane))
            else:
                made.setdefault(int(calls.rows[at]), []).append(each)
                self._joined.setdefault(lane.communicator, calls.communicator(at))
        placed = {row: span for row, each in made.items() if (span := _whole(each, in_groups)) is not None}
        self._tell_clock(operations, table, placed)
        if (offset := self._clock.offset_ns) is None:
            return None
        found = [self._row(each, lane, offset, groups) for each, lane in unseen]
        return np.concatenate([_replaced(table, placed, offset), *(row for row in found if row is not None)], axis=1)

    def _tell_clock(self, operations: Sequence[Recorded], table: Ints, placed: Mapping[int, _Span]) -> None:
        for each in operations:
            if each.placeable and (ended := each.ended) is not None:
                seen = min(ended.start_seen_ns - ended.start_ns, ended.end_seen_ns - ended.end_ns)
                self._clock.note(each.called.at_ns - ended.start_ns, seen, ended.end_seen_ns)
        for row, span in placed.items():
            issue, end, enqueue, stream = (int(table[_AT[key], row]) for key in ("issue", "end", "enqueue", "stream"))
            if enqueue > 0 and not stream:  # the stream waits for it between these marks of its own
                self._clock.note(issue - span.start_ns, end - span.end_ns, end)

    def _row(self, each: Recorded, lane: Lane, offset: int, groups: Groups) -> Ints | None:
        """Of what no hook has seen. Its place among the communicator's operations is not that of the hooks: it has no
        sequence."""
        function = span_name(each.called.operation)
        number = self._numbers.get(function)
        ended = each.ended
        if number is None or not each.placeable or ended is None:
            return None
        start, end = ended.start_ns + offset, ended.end_ns + offset
        if not 0 <= start <= MAX_TIME_NS or end - start > MAX_DURATION_NS:
            return None
        communicator = self._communicator(lane, groups)
        ranks = groups.get(communicator, ())
        message = lane.direction is not Direction.NONE and 0 <= lane.peer < len(ranks)
        values = {
            **_NONE,
            "name": number,
            "communicator": communicator,
            "peer": ranks[lane.peer] if message else -1,
            "bytes": min(size_of(each.called, lane), MAX_COUNT),
            "enqueue": each.called.at_ns,
            **dict.fromkeys(("issue", "begin"), start),
            "end": end,
        }
        return np.array([[values.get(column, 0)] for column in layout.COLUMNS], np.int64)

    def _communicator(self, lane: Lane, groups: Groups) -> int:
        """0 where its members do not tell which it is."""
        joined = self._joined.get(lane.communicator)
        fitting = [joined] if joined else [at for at, ranks in groups.items() if sits_in(lane, ranks, self._rank)]
        return fitting[0] if len(fitting) == 1 else 0


def _in_groups(operations: Sequence[Recorded], lanes: Mapping[int, Lane]) -> frozenset[_Span]:
    """Times that several messages have in common."""
    messages = (each for each in operations if (lane := lanes.get(each.called.lane)) and lane.direction)
    times = Counter(span for each in messages if (span := _span(each)) is not None)
    return frozenset(span for span, count in times.items() if count > 1)


def _span(recorded: Recorded) -> _Span | None:
    ended = recorded.ended
    return None if ended is None or not recorded.placeable else _Span(ended.start_ns, ended.end_ns)


def _whole(made: Sequence[Recorded], in_groups: frozenset[_Span]) -> _Span | None:
    """From the first begin to the last end of what one call has made; None where one of them is not known."""
    spans = [span for each in made if (span := _span(each)) is not None and span not in in_groups]
    if len(spans) < len(made):
        return None
    return _Span(min(span.start_ns for span in spans), max(span.end_ns for span in spans))


def _replaced(table: Ints, placed: Mapping[int, _Span], offset: int) -> Ints:
    """No earlier than the call's own mark on its stream and, where the stream waits for it, no later."""
    table = table.copy()
    table[_AT["first"]] = 0  # rows are no longer in the order in which they ended
    for row, (start, end) in placed.items():
        issue, last, stream = (int(table[_AT[key], row]) for key in ("issue", "end", "stream"))
        begin = max(start + offset, issue)
        until = max(end + offset, begin)
        if not stream:
            begin, until = min(begin, last), min(until, last)
        if until <= MAX_TIME_NS:
            table[_AT["issue"], row] = table[_AT["begin"], row] = begin
            table[_AT["end"], row] = until
    return table
