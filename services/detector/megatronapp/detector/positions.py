"""How far a rank has come, as its newest heartbeat tells. Worked out only when somebody asks: of nearly all heartbeats
it is enough to know whether they tell the same, byte for byte, as the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from megatronapp.core.errors import DataError
from megatronapp.core.trace.heartbeat import read_frontiers
from megatronapp.detector.signals.called import Called
from megatronapp.detector.signals.frontier import Message, Position
from megatronapp.detector.steps import Group
from megatronapp.v1 import trace_pb2

Ranks = tuple[int, ...]


@dataclass(slots=True)
class Positions:
    """Of one rank, in the communicators that it had named by then."""

    rank: int
    groups: Mapping[int, Group]
    """Its communicators by its own indices."""
    frontiers: Sequence[bytes] = ()
    """As they were sent. Where one can't be understood, none of them tells anything."""
    _known: tuple[dict[str, Position], dict[str, Ranks]] | None = None
    """Kept for as long as the rank tells the same: a stall is looked at once a second."""

    def update(self, groups: Mapping[int, Group], frontiers: Sequence[bytes]) -> None:
        """What the rank's next heartbeat tells."""
        self.groups, self.frontiers, self._known = groups, frontiers, None

    def by_communicator(self) -> Mapping[str, Position]:
        """By the communicator's id."""
        return self._worked_out()[0]

    def members(self) -> Mapping[str, Ranks]:
        """The ranks of these communicators."""
        return self._worked_out()[1]

    def completed(self) -> dict[str, int]:
        """By the communicator's id: operations that are complete."""
        if self._known is not None:
            return {name: position.completed for name, position in self._known[0].items()}
        return {name: f.completed for name, _, f in self._placed()}

    def _worked_out(self) -> tuple[dict[str, Position], dict[str, Ranks]]:
        if self._known is None:
            self._known = {}, {}
            for name, ranks, f in self._placed():
                opened = _open(f.open)
                position = Position(
                    f.enqueued, f.started, f.completed, f.operation, f.peer, f.sending, opened, _called(f)
                )
                self._known[0][name], self._known[1][name] = position, ranks
        return self._known

    def _placed(self) -> Iterator[tuple[str, Ranks, trace_pb2.Frontier]]:
        """Each frontier with its communicator's id and ranks, without those of communicators that have no name."""
        try:
            frontiers = read_frontiers(self.frontiers)
        except (DecodeError, DataError):
            return
        for f in frontiers:
            peer = f.peer
            if peer >= 0 and (f.sending or peer != self.rank):
                sender, receiver = (self.rank, peer) if f.sending else (peer, self.rank)
                yield f"p2p:{sender}-{receiver}", (sender, receiver), f
            elif group := self.groups.get(f.communicator):
                yield group.id, group.ranks, f


def _open(messages: Sequence[trace_pb2.OpenMessage]) -> tuple[Message, ...]:
    """None of them where one has no name: the others do not tell what is open."""
    if not messages:
        return ()
    opened = tuple([(m.step, m.message) for m in messages])
    return opened if all(message for _, message in opened) else ()


def _called(f: trace_pb2.Frontier) -> Called | None:
    """None of a pair, and of a rank that does not tell."""
    if f.peer >= 0 or not (f.elements or f.data_type):
        return None
    return Called(f.operation, f.elements or None, f.data_type, f.root if f.HasField("root") else None)
