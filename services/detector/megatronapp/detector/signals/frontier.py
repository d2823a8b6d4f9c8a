"""Who holds everybody up: from how far each rank has come in each communicator to the rank that stopped first.

A rank waits for another when it has entered an operation that the other has not. Walked along, these edges end at
ranks that wait for nobody: they stopped by themselves. Sequence numbers need no clocks.

Collectives are compared by their numbers. Messages of a pair may be posted and end in any order, so that both ends name
those that are open: one that has a message open which the other has not posted waits for it. Where an end does not name
them, the pair's numbers are compared.

Where the edges lead to nobody they run in circles. That is a deadlock only if the ranks' threads wait in those
operations: a rank that has begun an asynchronous one and then stopped elsewhere is in it as well. What a thread is in
is told beside the frontier, and has to name the one operation of that name that the rank is in. A rank that alone calls
its operations in another order than the others is in every circle, and of each two ranks that have come to operations
in opposite orders (signals/order.py) it is one: where that is true of one rank alone, it is the one.

Of some ranks it may not be known what they wait for: they left no record, or one that does not reach back far enough.
Edges lead to them all the same, since nobody saw them enter; whether they have stopped or wait as others do stays open.
One thing tells without them that a rank's device has stopped: an operation that all members take part in is complete
elsewhere and not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from megatronapp.core.trace.limits import MAX_OPEN_MESSAGES
from megatronapp.core.trace.message_id import MessageId
from megatronapp.core.trace.span_names import SYMMETRIC, message_span
from megatronapp.detector.signals.called import Called
from megatronapp.detector.signals.circles import circles, in_all_circles, reached
from megatronapp.detector.signals.order import Whereabouts, place, unlike_others

_SYMMETRIC = tuple(name.replace("_", "") for name in SYMMETRIC)
"""Sources spell them with and without underscores, and with more behind them."""
Message = tuple[int, int]
"""Its step, and its packed name (core/trace/message_id.py)."""


class Side(StrEnum):
    HOST = "host"
    """The rank has not entered the operation: its program stands still elsewhere."""
    DEVICE = "device"
    """It has enqueued the operation, and its device does not come to it."""
    NETWORK = "network"
    """All members are in it, and it does not end."""
    PROGRAM = "program"
    """It calls another operation than the others, or one of another size, type or root (signals/program.py)."""
    STOPPED = "stopped"
    """The kernel says that its process is stopped, wherever it stands (signals/halted.py)."""
    DEADLOCK = "deadlock"
    """Threads wait for each other: each in an operation that another one of them has not begun."""
    CIRCULAR = "circular"
    """Ranks are in operations in the same way, and it is not known what their threads wait for."""


class Position(NamedTuple):
    """How far one rank has come in one communicator (p2p: one direction of one pair)."""

    enqueued: int
    started: int
    completed: int
    operation: str = ""
    peer: int = -1
    sending: bool = False
    open: tuple[Message, ...] = ()
    """Of a pair: the messages that were posted and are not through, the oldest first; empty where the rank does not
    name them."""
    called: Called | None = None
    """The oldest collective that is not through, or the newest where all are, if the rank tells how it was called."""
    open_count: int = 0
    """Of a pair: how many messages are open; 0 where the rank does not count them."""
    enqueued_at_ns: int = 0
    """When the newest was enqueued, by the rank's own clock; 0: not known."""

    @property
    def inside(self) -> bool:
        """The rank (on a GPU: its device) is in an operation now."""
        return self.started > self.completed

    @property
    def outstanding(self) -> bool:
        return self.enqueued > self.completed

    @property
    def alone(self) -> bool:
        """Of all operations of this communicator the rank is in one, and has no other outstanding."""
        return self.inside and (len(self.open) == 1 if self.open else self.enqueued == self.completed + 1)

    @property
    def named(self) -> bool:
        """Whether it is known what is outstanding: a list that is full may have been cut, and only a count tells."""
        return 0 < len(self.open) < max(MAX_OPEN_MESSAGES, self.open_count + 1) or not self.outstanding

    @property
    def unnamed(self) -> int:
        """How many more are open than those that are named."""
        return max(0, self.open_count - len(self.open))

    @property
    def through(self) -> int:
        """How many messages are through, of a position that names those that are not."""
        return self.enqueued - len(self.open) - self.unnamed


@dataclass(frozen=True, slots=True)
class Blame:
    rank: int
    side: Side
    communicator: str
    operation: str
    sequence: int
    waiting: tuple[int, ...]
    """Ranks that wait for this one, at the end of the walk."""
    message: Message | None = None
    """What is missing, of a pair that names its messages; `sequence` says nothing then."""
    circle: tuple[int, ...] = ()
    """All who wait for one another, where the edges run in a circle; `waiting` is the one whose edge this is. On the
    program side all who call different operations, where nobody can tell who of them is wrong."""
    instead: str = ""
    """What the others call, of a program that differs."""
    stands: bool = False
    """Its device stands in work that was launched before any operation that it is in (signals/devices.py)."""
    suspects: tuple[int, ...] = ()
    """Of a circle those among whom is the one whose order differs; empty where anybody may be, or nobody."""


Frontier = Mapping[str, Position]
"""A rank's positions by communicator id; p2p ids name the directed pair."""


def blame(
    frontiers: Mapping[int, Frontier],
    members: Mapping[str, tuple[int, ...]],
    idle: frozenset[int] = frozenset(),
    activities: Mapping[int, str] | None = None,
    whereabouts: Mapping[int, Whereabouts] | None = None,
    unclear: frozenset[int] = frozenset(),
) -> list[Blame]:
    """The ranks that hold up the others, by rank.

    frontiers: by global rank; a rank that never spoke counts as having entered nothing. members: ranks of each
    communicator (of a p2p id: sender, receiver). idle: ranks that are not known to wait for anybody, since they are no
    longer heard of, or compute. activities: what the ranks' threads are in, where that is told. whereabouts: the ranks'
    steps and stages, where they are not all the same. unclear: ranks of which it is not known what they wait for.
    Empty when nobody waits.
    """
    absent: Absent = {}
    edges = {r: e for r, f in frontiers.items() if r not in idle and (e := _edges(r, f, frontiers, members, absent))}
    for rank in stopped_inside(frontiers) if unclear else ():
        edges[rank] = [edge for edge in edges.get(rank, ()) if edge.rank not in unclear]
    edges = {rank: found for rank, found in edges.items() if found}
    blamed = _roots(edges)
    if blamed or not edges:
        return blamed or _network(frontiers, members)
    waited = {rank: _waited(found, frontiers[rank], (activities or {}).get(rank, "")) for rank, found in edges.items()}
    return _deadlocks(waited, frontiers, whereabouts or {}) or _circular(edges)


def stopped_inside(frontiers: Mapping[int, Frontier]) -> frozenset[int]:
    """Ranks whose device has begun an operation that is complete on another member, and does not end it."""
    furthest: dict[str, int] = {}
    for frontier in frontiers.values():
        for communicator, position in frontier.items():
            furthest[communicator] = max(furthest.get(communicator, 0), position.completed)
    return frozenset(
        rank
        for rank, frontier in frontiers.items()
        for communicator, position in frontier.items()
        if position.outstanding and _symmetric(position.operation) and position.completed < furthest[communicator]
    )


def _symmetric(operation: str) -> bool:
    """Whether no member can end it before every member has begun."""
    return operation.replace("_", "").startswith(_SYMMETRIC)


Absent = dict[tuple[str, int], list[Blame]]
"""Members that have not begun an operation of a communicator, looked up once for all who wait in it."""


def _edges(
    rank: int,
    frontier: Frontier,
    frontiers: Mapping[int, Frontier],
    members: Mapping[str, tuple[int, ...]],
    absent: Absent,
) -> list[Blame]:
    """Those that a rank waits for in the operations it is in."""
    edges = list[Blame]()
    for communicator, position in frontier.items():
        if not position.inside:
            continue
        found = _other_end(rank, communicator, position, frontiers, members)
        if found is None:
            key = (communicator, position.completed + 1)
            if key not in absent:
                absent[key] = _absent(*key, position.operation, frontiers, members)
            found = [edge for edge in absent[key] if edge.rank != rank]
        edges += found
    return edges


def _other_end(
    rank: int,
    communicator: str,
    position: Position,
    frontiers: Mapping[int, Frontier],
    members: Mapping[str, tuple[int, ...]],
) -> list[Blame] | None:
    """The other end of a pair if it has not posted a message that this rank is in; None where names do not tell."""
    if not position.open or not position.named:
        return None
    sender, receiver = members[communicator]
    other = receiver if rank == sender else sender
    frontier = frontiers.get(other, {})
    theirs = frontier.get(communicator)
    if theirs is not None and not theirs.named:
        return None
    message = _unposted(position, theirs)
    if message is None:
        return []
    operation = _operation(message, sending=other == sender) or position.operation
    return [Blame(other, _side(frontier), communicator, operation, 0, (), message)]


def _unposted(own: Position, other: Position | None) -> Message | None:
    """The oldest message of a rank that the other end has certainly not posted; None where it may have posted all, and
    where what the rank is in is there."""
    if other is None:
        return own.open[0]
    if other.open and set(own.open[: max(1, own.started - own.completed)]) <= set(other.open):
        return None
    absent = [message for message in own.open if message not in other.open]
    # What is through there and not here is on its way: a sender may be done long before its receiver.
    on_the_way = max(0, other.through - own.through)
    return next(iter(absent[on_the_way + other.unnamed :]), None)


def _operation(message: Message, *, sending: bool) -> str:
    """What the message is called at one of its ends; empty where its name is none."""
    try:
        return message_span(MessageId.unpack(message[1]).direction, sending=sending)
    except ValueError:
        return ""


def _absent(
    communicator: str,
    number: int,
    operation: str,
    frontiers: Mapping[int, Frontier],
    members: Mapping[str, tuple[int, ...]],
) -> list[Blame]:
    there = ((other, frontiers.get(other, {})) for other in members.get(communicator, ()))
    return [
        Blame(other, _side(frontier), communicator, operation, number, ())
        for other, frontier in there
        if _missing(frontier.get(communicator), number)
    ]


def _missing(other: Position | None, number: int) -> bool:
    """Whether another member has not begun operation `number`."""
    return other is None or (other.completed < number and other.started < number)


def _side(frontier: Frontier) -> Side:
    """A rank that has work outstanding which its device does not begin has stopped on the device."""
    return Side.DEVICE if any(position.outstanding for position in frontier.values()) else Side.HOST


def _roots(edges: Mapping[int, list[Blame]]) -> list[Blame]:
    """Those that wait for nobody, by rank, each with all who wait for it along any number of edges."""
    behind: dict[int, set[int]] = {}
    for waiter, waited in edges.items():
        for edge in waited:
            behind.setdefault(edge.rank, set()).add(waiter)
    return [
        replace(root, waiting=tuple(sorted(reached(root.rank, behind))))
        for root in sorted(_ends(edges), key=lambda root: root.rank)
    ]


def _ends(edges: Mapping[int, list[Blame]]) -> list[Blame]:
    """From the waiting ranks along "waits for" to those that wait for nobody."""
    roots: dict[int, Blame] = {}
    seen = set[int]()
    for waiter in edges:
        ahead = [] if waiter in seen else list(edges[waiter])
        seen.add(waiter)
        while ahead:
            edge = ahead.pop()
            if edge.rank not in edges:
                roots.setdefault(edge.rank, edge)
            elif edge.rank not in seen:
                seen.add(edge.rank)
                ahead += edges[edge.rank]
    return list(roots.values())


def _waited(edges: list[Blame], frontier: Frontier, activity: str) -> list[Blame]:
    """Those of a rank's edges that its thread waits over."""
    inside = [c for c, position in frontier.items() if position.inside and position.operation == activity]
    if not activity or len(inside) != 1 or not frontier[inside[0]].alone:
        return []
    return [edge for edge in edges if edge.communicator == inside[0]]


def _deadlocks(
    edges: Mapping[int, list[Blame]], frontiers: Mapping[int, Frontier], whereabouts: Mapping[int, Whereabouts]
) -> list[Blame]:
    """Of each circle the one alone whose order tells it from the others; else all, with those who it may be."""
    found = list[Blame]()
    ahead = {rank: {edge.rank for edge in edges[rank]} for rank in sorted(edges)}
    whole = circles(ahead)
    places = {r: place(f, whereabouts.get(r, Whereabouts())) for r, f in frontiers.items()} if whole else {}
    for circle in whole:
        inside = _inside(circle, edges)
        possible = in_all_circles({rank: ahead[rank] & circle for rank in circle})
        suspects = tuple(sorted(unlike_others(possible, places)))
        if len(suspects) == 1:
            found.append(_out_of_order(suspects[0], inside, frontiers))
        else:
            among = suspects if len(suspects) < len(circle) else ()
            found += [replace(each, suspects=among) for each in _all_of(inside, Side.DEADLOCK)]
    return found


def _circular(edges: Mapping[int, list[Blame]]) -> list[Blame]:
    """All of each circle."""
    ahead = {rank: {edge.rank for edge in edges[rank]} for rank in sorted(edges)}
    return [each for circle in circles(ahead) for each in _all_of(_inside(circle, edges), Side.CIRCULAR)]


def _inside(circle: set[int], edges: Mapping[int, list[Blame]]) -> dict[int, Blame]:
    """Of each rank an edge in a circle."""
    return {rank: next(edge for edge in edges[rank] if edge.rank in circle) for rank in sorted(circle)}


def _all_of(waits: Mapping[int, Blame], side: Side) -> list[Blame]:
    """waits: of all of a circle what each is in."""
    circle = tuple(waits)
    return [replace(edge, side=side, waiting=(waiter,), circle=circle) for waiter, edge in waits.items()]


def _out_of_order(rank: int, waits: Mapping[int, Blame], frontiers: Mapping[int, Frontier]) -> Blame:
    """One rank's order explains what the others', were it wrong, would have to be wrong several times for.
    waits: of all of the circle what each is in."""
    others = tuple(other for other in waits if other != rank)
    usual = next(waits[other] for other in others if waits[other].rank == rank)
    number = "" if usual.message else f" as operation {usual.sequence}"
    instead = f"{usual.operation}{number} of {usual.communicator}"
    operation = frontiers[rank][waits[rank].communicator].operation  # of a message the edge names the other end's
    own = replace(waits[rank], rank=rank, operation=operation)
    return replace(own, side=Side.PROGRAM, waiting=others, instead=instead)


def _network(frontiers: Mapping[int, Frontier], members: Mapping[str, tuple[int, ...]]) -> list[Blame]:
    """Nobody is missing anywhere: operations that all members have begun and none has finished."""
    found: dict[int, Blame] = {}
    for rank, frontier in frontiers.items():
        for communicator, position in frontier.items():
            if position.inside and len(members.get(communicator, ())) > 1:
                number, message = position.completed + 1, next(iter(position.open), None)
                found.setdefault(rank, Blame(rank, Side.NETWORK, communicator, position.operation, number, (), message))
    return [found[rank] for rank in sorted(found)]
