"""How far all ranks have come. What NCCL tells stands in place of what a rank's hooks do where it is known whose it is:
NCCL also knows what a device has begun, and what is called past the hooks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from megatronapp.detector.positions import OfNccl, Positions, Ranks
from megatronapp.detector.signals.frontier import Frontier, Position
from megatronapp.detector.signals.nccl import Joined, joined


class Everyone(NamedTuple):
    frontiers: Mapping[int, Frontier]
    """By rank."""
    members: Mapping[str, Ranks]
    """By communicator."""


def of(positions: Mapping[int, Positions]) -> Everyone:
    """positions: by rank."""
    frontiers = {rank: own.by_communicator() for rank, own in positions.items()}
    members = {name: ranks for own in positions.values() for name, ranks in own.members().items()}
    reported = {rank: found for rank, own in positions.items() if (found := own.of_nccl())}
    if not reported:
        return Everyone(frontiers, members)
    seats = {rank: [each.seat for each in own if each.peer < 0] for rank, own in reported.items()}
    groups = {name: ranks for name, ranks in members.items() if not name.startswith("p2p:")}
    return _with_nccl(Everyone(frontiers, members), reported, joined(seats, groups))


def _with_nccl(hooks: Everyone, reported: Mapping[int, list[OfNccl]], known: Mapping[int, Joined]) -> Everyone:
    frontiers = {rank: dict(frontier) for rank, frontier in hooks.frontiers.items()}
    members = {**hooks.members, **{each.id: tuple(sorted(each.ranks)) for each in known.values()}}
    pairs: dict[str, dict[int, dict[int, Position]]] = {}
    for rank, own in reported.items():
        for each in own:
            communicator = known.get(each.seat.hash)
            if communicator is None:
                continue
            if each.peer < 0:
                frontiers[rank][communicator.id] = _collective(each.position, communicator.ranks)
            elif each.peer < len(communicator.ranks):
                name, position = _message(rank, communicator.ranks[each.peer], each.position)
                pairs.setdefault(name, {}).setdefault(each.seat.hash, {})[rank] = position
    for name, by_hash in pairs.items():
        if name not in hooks.members and len(by_hash) == 1:  # one numbering alone can be compared
            members[name] = _ends(name)
            for rank, position in next(iter(by_hash.values())).items():
                frontiers[rank][name] = position
    return Everyone(frontiers, members)


def _collective(position: Position, ranks: Ranks) -> Position:
    """With the root's rank in place of its place."""
    called = position.called
    if called is None or called.root is None:
        return position
    return position._replace(called=called._replace(root=ranks[called.root] if called.root < len(ranks) else None))


def _message(rank: int, peer: int, position: Position) -> tuple[str, Position]:
    sender, receiver = (rank, peer) if position.sending else (peer, rank)
    return f"p2p:{sender}-{receiver}", position._replace(peer=peer)


def _ends(name: str) -> Ranks:
    sender, _, receiver = name.removeprefix("p2p:").partition("-")
    return int(sender), int(receiver)
