"""What NCCL tells of a rank's operations, added up by kind from summary to summary. Pure.

Of some collectives each member tells its own time, so that who began last is known of each. All members choose
the same ones without asking each other: those whose number is a multiple of a power of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from megatronapp.core.trace.limits import MAX_COUNT, MAX_DURATION_NS, MAX_SAMPLED, MAX_TALLIES, MAX_WORLD
from megatronapp.core.trace.span_names import SYMMETRIC
from megatronapp.trainer.agent.nccl_calls import size_of
from megatronapp.trainer.agent.nccl_frontiers import span_name
from megatronapp.trainer.agent.operations import Completed, Direction, Enqueued, Lane
from megatronapp.v1 import trace_pb2

MOST_CALLED = 1 << 14
"""Operations that have not ended; the oldest give way."""
MOST_NUMBERS = 1 << 12
"""Of a kind, between two summaries."""


class Kind(NamedTuple):
    lane: int
    operation: str
    algorithm: str
    protocol: str
    size_log2: int


@dataclass(slots=True)
class _Tally:
    lane: Lane
    count: int = 0
    fastest_bytes: int = 0
    fastest_ns: int = 0
    waits: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    sent_bytes: int = 0
    durations: dict[int, int] = field(default_factory=dict)

    def add(self, ended: Completed, size: int) -> None:
        self.count += 1
        waited = (
            ended.waited_for_gpu_ns,
            ended.waited_for_peer_ns,
            ended.waited_for_network_ns,
            ended.waited_for_data_ns,
        )
        self.waits = [before + own for before, own in zip(self.waits, waited, strict=True)]
        self.sent_bytes += ended.sent_bytes
        took = ended.end_ns - ended.start_ns
        if not (ended.start_ns > 0 and 0 < took <= MAX_DURATION_NS and size <= MAX_COUNT):
            return
        if not self.fastest_ns or size * self.fastest_ns > self.fastest_bytes * took:
            self.fastest_bytes, self.fastest_ns = size, took
        if len(self.durations) < MOST_NUMBERS and ended.number <= MAX_COUNT:
            self.durations[ended.number] = took


class NcclTallies:
    """Of one rank. Of a summary's kinds the first MAX_TALLIES are told."""

    def __init__(self, lanes: Callable[[], Mapping[int, Lane]]) -> None:
        """lanes: asked where an operation's is not known, since an entry is never used for another."""
        self._read_lanes = lanes
        self._lanes: Mapping[int, Lane] = {}
        self._called: dict[tuple[int, int], Enqueued] = {}
        self._tallies: dict[Kind, _Tally] = {}

    def note(self, records: Iterable[Enqueued | Completed]) -> None:
        for record in records:
            key = record.lane, record.number
            if isinstance(record, Enqueued):
                self._called[key] = record
                if len(self._called) > MOST_CALLED:
                    del self._called[next(iter(self._called))]
            elif (called := self._called.pop(key, None)) is not None and (lane := self._lane(record.lane)) is not None:
                self._add(called, record, lane)

    def take(self) -> list[trace_pb2.NcclTally]:
        """What has ended since the last call."""
        tallies, self._tallies = self._tallies, {}
        return [_message(kind, tally) for kind, tally in tallies.items()]

    def _lane(self, index: int) -> Lane | None:
        """None: not known, or of nobody else."""
        if index not in self._lanes:
            self._lanes = self._read_lanes()
        lane = self._lanes.get(index)
        return lane if lane is not None and _plausible(lane) else None

    def _add(self, called: Enqueued, ended: Completed, lane: Lane) -> None:
        size = size_of(called, lane)
        kind = Kind(called.lane, span_name(called.operation), called.algorithm, called.protocol, _log2(size))
        if kind not in self._tallies:
            if len(self._tallies) >= MAX_TALLIES:
                return
            self._tallies[kind] = _Tally(lane)
        self._tallies[kind].add(ended, size)


def _plausible(lane: Lane) -> bool:
    known = lane.direction is Direction.NONE or 0 <= lane.peer < lane.ranks
    return known and 2 <= lane.ranks <= MAX_WORLD and 0 <= lane.rank < lane.ranks


def _log2(size: int) -> int:
    return min(max(size.bit_length() - 1, 0), 63)


def _message(kind: Kind, tally: _Tally) -> trace_pb2.NcclTally:
    lane, collective = tally.lane, tally.lane.direction is Direction.NONE
    numbers = _sampled(tally.durations) if collective and kind.operation in SYMMETRIC else []
    gpu, peer, network, data = (min(wait, MAX_DURATION_NS) for wait in tally.waits)
    return trace_pb2.NcclTally(
        seat=trace_pb2.NcclSeat(
            hash=lane.communicator,
            size=lane.ranks,
            place=lane.rank,
            timed=tally.fastest_ns > 0,
            peer=None if collective else lane.peer,
        ),
        sending=lane.direction is Direction.SENDS,
        operation=kind.operation,
        algorithm=kind.algorithm,
        protocol=kind.protocol,
        size_log2=kind.size_log2,
        count=tally.count,
        fastest_bytes=tally.fastest_bytes,
        fastest_ns=tally.fastest_ns,
        gpu_ns=gpu,
        peer_ns=peer,
        network_ns=network,
        data_ns=data,
        sent_bytes=min(tally.sent_bytes, MAX_COUNT),
        numbers=numbers,
        durations_ns=[tally.durations[number] for number in numbers],
    )


def _sampled(durations: Mapping[int, int]) -> list[int]:
    """At most MAX_SAMPLED, the multiples of the least power of two that leaves so few."""
    numbers, every = sorted(durations), 1
    while len(numbers) > MAX_SAMPLED:
        every *= 2
        numbers = [number for number in numbers if number % every == 0]
    return numbers
