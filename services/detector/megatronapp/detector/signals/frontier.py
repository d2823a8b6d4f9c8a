"""Who holds everybody up: from how far each rank has come in each communicator to the rank that stopped first.

A rank waits for another when it has entered an operation that the other has not. Walked along, these edges end at
ranks that wait for nobody: they stopped by themselves. Sequence numbers need no clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Side(StrEnum):
    HOST = "host"
    """The rank has not entered the operation: its program stands still elsewhere."""
    DEVICE = "device"
    """It has enqueued the operation, and its device does not come to it."""
    NETWORK = "network"
    """All members are in it, and it does not end."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far one rank has come in one communicator (p2p: one direction of one pair)."""

    enqueued: int
    started: int
    completed: int
    operation: str = ""
    peer: int = -1
    sending: bool = False

    @property
    def waiting(self) -> bool:
        return self.enqueued > self.completed


@dataclass(frozen=True, slots=True)
class Blame:
    rank: int
    side: Side
    communicator: str
    operation: str
    sequence: int
    waiting: tuple[int, ...]
    """Ranks that wait for this one, at the end of the walk."""


Frontier = Mapping[str, Position]
"""A rank's positions by communicator id; p2p ids name the directed pair."""


def blame(frontiers: Mapping[int, Frontier], members: Mapping[str, tuple[int, ...]]) -> list[Blame]:
    """The ranks that hold up the others, by rank.

    frontiers: by global rank; a rank that never spoke counts as having entered nothing. members: ranks of each
    communicator (of a p2p id: sender, receiver). Empty when nobody waits.
    """
    edges = _edges(frontiers, members)
    roots: dict[int, Blame] = {}
    victims: dict[int, set[int]] = {}
    for waiter in edges:
        for root in _walk(waiter, edges):
            victims.setdefault(root.rank, set()).add(waiter)
            roots.setdefault(root.rank, root)
    blamed = [
        Blame(b.rank, b.side, b.communicator, b.operation, b.sequence, tuple(sorted(victims[b.rank] - {b.rank})))
        for b in roots.values()
    ]
    return sorted(blamed, key=lambda b: b.rank) or _network(frontiers, members)


def _edges(frontiers: Mapping[int, Frontier], members: Mapping[str, tuple[int, ...]]) -> dict[int, list[Blame]]:
    """For each waiting rank those it waits for in its oldest unfinished operations."""
    edges: dict[int, list[Blame]] = {}
    for rank, frontier in frontiers.items():
        for communicator, position in frontier.items():
            if not position.waiting:
                continue
            number = position.completed + 1
            for other in members.get(communicator, ()):
                if other != rank and (side := _missing(frontiers.get(other, {}).get(communicator), number)):
                    edges.setdefault(rank, []).append(Blame(other, side, communicator, position.operation, number, ()))
    return edges


def _missing(other: Position | None, number: int) -> Side | None:
    """Why another member keeps operation `number` from ending, None if it does not."""
    if other is None or other.enqueued < number:
        return Side.HOST
    if other.completed < number and other.started < number:
        return Side.DEVICE
    return None


def _walk(start: int, edges: Mapping[int, list[Blame]]) -> list[Blame]:
    """From a waiting rank along "waits for" to those that wait for nobody, or whose device has stopped."""
    roots, seen, open_ = list[Blame](), {start}, list(edges[start])
    while open_:
        edge = open_.pop()
        if edge.rank not in edges:
            roots.append(edge)
        elif edge.rank not in seen:
            seen.add(edge.rank)
            open_ += edges[edge.rank]
    return roots


def _network(frontiers: Mapping[int, Frontier], members: Mapping[str, tuple[int, ...]]) -> list[Blame]:
    """Nobody is missing anywhere: operations that all members have started and none has finished."""
    found: dict[int, Blame] = {}
    for rank, frontier in frontiers.items():
        for communicator, position in frontier.items():
            if position.waiting and len(members.get(communicator, ())) > 1:
                number = position.completed + 1
                found.setdefault(rank, Blame(rank, Side.NETWORK, communicator, position.operation, number, ()))
    return [found[rank] for rank in sorted(found)]
