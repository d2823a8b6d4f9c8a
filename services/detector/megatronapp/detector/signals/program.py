"""Who calls another operation than the others: members of a communicator must call the same ones in the same order, of
the same size, type and root. Where they do not, the operation does not end, or ends wrongly, and which rank waits for
which says nothing of the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from megatronapp.detector.signals.called import Called
from megatronapp.detector.signals.frontier import Blame, Frontier, Position, Side

__all__ = ["Called", "Calls", "calls_of", "disagreements"]

Calls = Mapping[str, Mapping[int, Mapping[int, Called]]]
"""By communicator and rank what each number was."""
NOBODY: Mapping[str, Collection[int]] = {}


def calls_of(frontiers: Mapping[int, Frontier]) -> Calls:
    """What each rank's communicators are in, and what that was where it is the newest that others are through: a member
    may end an operation that another one, which has called it otherwise, does not."""
    calls: dict[str, dict[int, dict[int, Called]]] = {}
    for rank, communicator, position, called in _telling(frontiers):
        if position.outstanding:
            calls.setdefault(communicator, {})[rank] = {position.completed + 1: called}
    open_ = {communicator: {number for own in of.values() for number in own} for communicator, of in calls.items()}
    for rank, communicator, position, called in _telling(frontiers):
        if not position.outstanding and position.completed in open_.get(communicator, ()):
            calls[communicator][rank] = {position.completed: called}
    return calls


def _telling(frontiers: Mapping[int, Frontier]) -> Iterator[tuple[int, str, Position, Called]]:
    """Those that tell how a collective was called: rank, communicator, position, call."""
    for rank, frontier in frontiers.items():
        for communicator, position in frontier.items():
            if position.called is not None:
                yield rank, communicator, position, position.called


def disagreements(calls: Calls, awaited: Mapping[str, Collection[int]] = NOBODY) -> list[Blame]:
    """Of each communicator the first operation that its members call differently: those who are fewer than half, or all
    where no call has more than half of them. Empty where all agree. calls: of operations that are not known to be
    through everywhere. awaited: all members of communicators of which some may still tell what they call: there only
    what more than half of them all call is known to be right."""
    found: dict[int, Blame] = {}
    for communicator, of in calls.items():
        for number in sorted({number for own in of.values() for number in own}):
            members = {rank: own[number] for rank, own in of.items() if number in own}
            if differing := _differing(members, set(awaited.get(communicator, ())) - members.keys()):
                waiting = tuple(sorted(members.keys() - differing.keys()))
                circle = tuple(sorted(differing)) if len(differing) * 2 >= len(members) else ()
                for rank, instead in differing.items():
                    operation = members[rank].in_words()
                    blame = Blame(rank, Side.PROGRAM, communicator, operation, number, waiting, None, circle, instead)
                    found.setdefault(rank, blame)
                break
    return [found[rank] for rank in sorted(found)]


def _differing(members: Mapping[int, Called], awaited: Collection[int]) -> dict[int, str]:
    """Those that call something else, each with what the others call. awaited: who may still tell."""
    if len(members) < 2:
        return {}
    usual, votes = Counter(members.values()).most_common(1)[0]
    if votes * 2 > len(members) + len(awaited):
        return {rank: usual.in_words() for rank, own in members.items() if not own.agrees(usual)}
    if awaited:
        return {}
    first = next(iter(members.values()))
    if all(own.agrees(first) for own in members.values()):
        return {}
    return {
        rank: next(other.in_words() for other in members.values() if not other.agrees(own))
        for rank, own in members.items()
        if any(not other.agrees(own) for other in members.values())
    }
