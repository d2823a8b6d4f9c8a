"""How far a rank has come, as its newest heartbeat tells. Worked out only when somebody asks: of nearly all heartbeats
it is enough to know whether they tell the same, byte for byte, as the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.message import DecodeError

from megatronapp.core.errors import DataError
from megatronapp.core.trace.heartbeat import read_frontiers
from megatronapp.detector.signals.called import Called
from megatronapp.detector.signals.frontier import Message, Position
from megatronapp.detector.signals.nccl import Seat
from megatronapp.detector.steps import Group
from megatronapp.v1 import trace_pb2

Ranks = tuple[int, ...]


class OfNccl(NamedTuple):
    """How far a rank has come in a communicator, or with one of its members, as NCCL tells it."""

    seat: Seat
    position: Position
    """The root that it names is a place in the communicator."""
    peer: int
    """The place of a message's other end; -1: a collective's."""


@dataclass(slots=True)
class Positions:
    """Of one rank, in the communicators that it had named by then."""

    rank: int
    groups: Mapping[int, Group]
    """Its communicators by its own indices."""
    frontiers: list[bytes] = field(default_factory=list)
    """As they were sent. Where one can't be understood, none of them tells anything."""
    _known: tuple[dict[str, Position], dict[str, Ranks], list[OfNccl]] | None = None
    """Kept for as long as the rank tells the same: a stall is looked at once a second."""

    def update(self, groups: Mapping[int, Group], frontiers: Sequence[bytes]) -> None:
        """What the rank's next heartbeat tells."""
        self.groups, self.frontiers, self._known = groups, list(frontiers), None

    def by_communicator(self) -> Mapping[str, Position]:
        """By the communicator's id."""
        return self._worked_out()[0]

    def members(self) -> Mapping[str, Ranks]:
        """The ranks of these communicators."""
        return self._worked_out()[1]

    def of_nccl(self) -> list[OfNccl]:
        """What NCCL tells of communicators whose members no rank knows by itself."""
        return self._worked_out()[2]

    def opened_ns(self) -> Iterator[int]:
        """When each operation was handed over that is not through, by the rank's clock; 0: not known."""
        for f in self._read():
            if f.open:
                yield from (message.posted_at_ns for message in f.open)
            elif f.enqueued > f.completed:
                yield f.enqueued_at_ns if f.enqueued == f.completed + 1 else 0

    def completed(self) -> dict[str, int]:
        """By the communicator's id: operations that are complete."""
        if self._known is not None:
            return {name: position.completed for name, position in self._known[0].items()}
        return {name: f.completed for name, _, f in self._placed()}

    def _worked_out(self) -> tuple[dict[str, Position], dict[str, Ranks], list[OfNccl]]:
        if self._known is None:
            self._known = {}, {}, [_of_nccl(f) for f in self._read() if f.HasField("nccl")]
            for name, ranks, f in self._placed():
                self._known[0][name], self._known[1][name] = _position(f), ranks
        return self._known

    def _placed(self) -> Iterator[tuple[str, Ranks, trace_pb2.Frontier]]:
        """Each frontier with its communicator's id and ranks, without those of communicators that have no name."""
        for f in self._read():
            peer = f.peer
            if f.HasField("nccl"):
                continue
            if peer >= 0 and (f.sending or peer != self.rank):
                sender, receiver = (self.rank, peer) if f.sending else (peer, self.rank)
                yield f"p2p:{sender}-{receiver}", (sender, receiver), f
            elif group := self.groups.get(f.communicator):
                yield group.id, group.ranks, f

    def _read(self) -> list[trace_pb2.Frontier]:
        try:
            return read_frontiers(self.frontiers)
        except (DecodeError, DataError):
            return []


def _position(f: trace_pb2.Frontier) -> Position:
    named, called = _open(f.open), _called(f)
    counts = f.enqueued, f.started, f.completed
    return Position(*counts, f.operation, f.peer, f.sending, named, called, f.open_count, f.enqueued_at_ns)


def _of_nccl(f: trace_pb2.Frontier) -> OfNccl:
    place = f.nccl
    seat = Seat(place.hash, place.size, place.place, place.timed)
    return OfNccl(seat, _position(f), place.peer if place.HasField("peer") else -1)


def _open(messages: Sequence[trace_pb2.OpenMessage]) -> tuple[Message, ...]:
    """None of them where one has no name: the others do not tell what is open."""
    if not messages:
        return ()
    opened = tuple([(m.step, m.message) for m in messages])
    return opened if all(message for _, message in opened) else ()


def _called(f: trace_pb2.Frontier) -> Called | None:
    """None of a pair, and of a rank that does not tell."""
    if f.peer >= 0 or not f.operation or not (f.elements or f.data_type):
        return None
    return Called(f.operation, f.elements or None, f.data_type, f.root if f.HasField("root") else None)
