"""How far a rank has come, as one of its heartbeats tells. Worked out only when somebody asks: of nearly all heartbeats
it is enough to know whether they tell the same as the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from megatronapp.core.trace.heartbeat import same_frontiers
from megatronapp.detector.members import Member
from megatronapp.detector.signals.frontier import Message, Position
from megatronapp.v1 import trace_pb2

Ranks = tuple[int, ...]
_NAME, _NUMBERS = attrgetter("communicator", "peer", "sending"), attrgetter("enqueued", "started", "completed")


class Positions:
    """Of one rank, in the communicators that it has named until now."""

    __slots__ = ("_groups", "_heartbeat", "_known", "_rank")

    def __init__(self, member: Member, heartbeat: trace_pb2.Heartbeat) -> None:
        self._rank, self._groups, self._heartbeat = member.process.rank, member.groups, heartbeat
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
        if self._groups is other._groups:
            if self._last_differs(other):
                return False
            if same_frontiers(self._heartbeat, other._heartbeat):
                return True
        return self.by_communicator == other.by_communicator

    def _last_differs(self, other: Positions) -> bool:
        """Whether the last frontier, which stands in no other's shadow, is of the same name and has other numbers:
        spares most of what moves the working out."""
        if not self._frontiers or not other._frontiers:
            return False
        own, its = self._frontiers[-1], other._frontiers[-1]
        return _NAME(own) == _NAME(its) and _NUMBERS(own) != _NUMBERS(its) and self._place(own) is not None

    def told_again(
        self, member: Member, heartbeat: trace_pb2.Heartbeat, repeated: trace_pb2.Heartbeat | None = None
    ) -> bool:
        """Whether the rank's next heartbeat tells the same word for word; it takes this one's place then. repeated: one
        whose frontiers it is known to have."""
        if self._groups is not member.groups:
            return False
        if self._heartbeat is not repeated and not same_frontiers(self._heartbeat, heartbeat):
            return False
        self._heartbeat = heartbeat
        return True

    def completed(self) -> Mapping[str, int]:
        """By the communicator's id: operations that are complete."""
        if self._known is not None:
            return {name: position.completed for name, position in self._known[0].items()}
        placed = ((self._place(f), f.completed) for f in self._frontiers)
        return {place[0]: completed for place, completed in placed if place is not None}

    @property
    def _frontiers(self) -> Sequence[trace_pb2.Frontier]:
        return self._heartbeat.frontiers

    @property
    def _worked_out(self) -> tuple[dict[str, Position], dict[str, Ranks]]:
        if self._known is None:
            self._known = {}, {}
            for name, ranks, position in self._named():
                self._known[0][name], self._known[1][name] = position, ranks
        return self._known

    def _named(self) -> Iterator[tuple[str, Ranks, Position]]:
        for f in self._frontiers:
            place = self._place(f)
            if place is not None:
                opened = _open(f.open)
                yield *place, Position(f.enqueued, f.started, f.completed, f.operation, f.peer, f.sending, opened)

    def _place(self, f: trace_pb2.Frontier) -> tuple[str, Ranks] | None:
        """The communicator's id and its ranks; None for one that the rank has not named."""
        peer = f.peer
        if peer >= 0 and (f.sending or peer != self._rank):
            sender, receiver = (self._rank, peer) if f.sending else (peer, self._rank)
            return f"p2p:{sender}-{receiver}", (sender, receiver)
        group = self._groups.get(f.communicator)
        return (group.id, group.ranks) if group is not None else None


def _open(messages: Sequence[trace_pb2.OpenMessage]) -> tuple[Message, ...]:
    """None of them where one has no name: the others do not tell what is open."""
    if not messages:
        return ()
    opened = tuple([(m.step, m.message) for m in messages])
    return opened if all(message for _, message in opened) else ()
