"""NCCL's communicators joined with the job's groups by their members. Pure.

NCCL tells each member a hash, how many they are, and its own place; no member is told who the others are. What all
members tell together is who sits where. torch orders the ranks of a group, so that places ascend with ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

Ranks = tuple[int, ...]
KIND = "nccl"
"""Of communicators that are no group's alone."""
HOST_KINDS = "_gloo"
"""The end of the kind of a group whose operations NCCL does not run."""


class Seat(NamedTuple):
    """What one rank is told of a communicator."""

    hash: int
    size: int
    place: int
    timed: bool = True
    """The device tells it when operations start and end."""


class Joined(NamedTuple):
    id: str
    """The group's, where there is one group of these members and one communicator; else one of its own."""
    ranks: Ranks
    """By place."""
    is_group: bool


def joined(seats: Mapping[int, Iterable[Seat]], groups: Mapping[str, Ranks]) -> dict[int, Joined]:
    """By hash: the communicators of which every member has told its place, and whose times the devices tell.

    seats: by global rank. groups: global ranks by id. One that contradicts itself is left out: two ranks in one place,
    one rank in two, or members that do not agree how many they are.
    """
    complete = {hash_: ranks for hash_, own in _by_hash(seats).items() if (ranks := _members(own))}
    of_members: dict[Ranks, list[int]] = {}
    for hash_, ranks in complete.items():
        of_members.setdefault(tuple(sorted(ranks)), []).append(hash_)
    groups_of: dict[Ranks, list[str]] = {}
    for name, ranks in groups.items():
        if not name.partition(":")[0].endswith(HOST_KINDS):
            groups_of.setdefault(tuple(sorted(ranks)), []).append(name)
    found = dict[int, Joined]()
    for ranks, hashes in of_members.items():
        names = groups_of.get(ranks, [])
        if len(names) == len(hashes) == 1:
            found[hashes[0]] = Joined(names[0], complete[hashes[0]], True)
        else:
            own = f"{KIND}:{'-'.join(map(str, ranks))}"
            for position, hash_ in enumerate(sorted(hashes), start=1):
                name = own if position == 1 else f"{own}#{position}"
                found[hash_] = Joined(name, complete[hash_], False)
    return found


def _by_hash(seats: Mapping[int, Iterable[Seat]]) -> dict[int, list[tuple[int, Seat]]]:
    seated: dict[int, list[tuple[int, Seat]]] = {}
    for rank, own in seats.items():
        for seat in own:
            seated.setdefault(seat.hash, []).append((rank, seat))
    return seated


def _members(seated: list[tuple[int, Seat]]) -> Ranks:
    """By place; empty where they are not all known, or contradict each other."""
    size = seated[0][1].size
    places = {seat.place: rank for rank, seat in seated}
    whole = len(seated) == len(places) == len(set(places.values())) == size
    alike = all(seat.size == size and 0 <= seat.place < size and seat.timed for _, seat in seated)
    return tuple(places[place] for place in range(size)) if whole and alike and size > 1 else ()
