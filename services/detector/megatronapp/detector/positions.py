"""How far a rank has come, as one of its heartbeats tells. Worked out only when somebody asks: of nearly all heartbeats
it is enough to know whether they tell the same as the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from megatronapp.detector.assemble import Member
from megatronapp.detector.signals.frontier import Message, Position
from megatronapp.v1 import trace_pb2

Ranks = tuple[int, ...]


class Positions:
    """Of one rank, in the communicators that it has named until now."""

    __slots__ = ("_frontiers", "_groups", "_known", "_rank")

    def __init__(self, member: Member, heartbeat: trace_pb2.Heartbeat) -> None:
        self._rank, self._groups, self._frontiers = member.process.rank, member.groups, heartbeat.frontiers
        self._known: tuple[dict[str, Position], dict[str, Ranks]] | None = None

    @property
    def by_communicator(self) -> Mapping[str, Position]:
        """By the communicator's id."""
        return self._worked_out[0]

    @property
    def members(self) -> Mapping[str, Ranks]:
        """The ranks of these communicators."""
        return self._worked_out[1]

    def equal(self, other: Positions) -> bool:
        """Whether the rank stands where the other tells."""
        if self._groups is other._groups and self._frontiers == other._frontiers:
            return True
        return self.by_communicator == other.by_communicator

    @property
    def _worked_out(self) -> tuple[dict[str, Position], dict[str, Ranks]]:
        if self._known is None:
            self._known = {}, {}
            for name, ranks, position in self._named():
                self._known[0][name], self._known[1][name] = position, ranks
        return self._known

    def _named(self) -> Iterator[tuple[str, Ranks, Position]]:
        for f in self._frontiers:
            ranks: Ranks
            if f.peer >= 0 and (f.sending or f.peer != self._rank):
                ranks = (self._rank, f.peer) if f.sending else (f.peer, self._rank)
                name = f"p2p:{ranks[0]}-{ranks[1]}"
            elif f.communicator in self._groups:
                group = self._groups[f.communicator]
                name, ranks = group.id, group.ranks
            else:
                continue
            opened = _open(f.open)
            yield name, ranks, Position(f.enqueued, f.started, f.completed, f.operation, f.peer, f.sending, opened)


def _open(messages: Sequence[trace_pb2.OpenMessage]) -> tuple[Message, ...]:
    """None of them where one has no name: the others do not tell what is open."""
    if not messages:
        return ()
    return tuple((m.step, m.message) for m in messages) if all(m.message for m in messages) else ()
