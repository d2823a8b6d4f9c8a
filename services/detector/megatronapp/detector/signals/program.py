"""Who calls another operation than the others: members of a communicator must call the same ones in the same order, of
the same size, type and root. Where they do not, the operation does not end, or ends wrongly, and which rank waits for
which says nothing of the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from megatronapp.detector.signals.frontier import Blame, Side


class Called(NamedTuple):
    """One operation as a member called it; empty or None: not known, or not the same on all members."""

    operation: str
    elements: int | None = None
    type: str = ""
    root: int | None = None

    def agrees(self, other: Called) -> bool:
        return self.operation == other.operation and all(
            own in (None, "") or theirs in (None, "") or own == theirs
            for own, theirs in zip(self[1:], other[1:], strict=True)
        )

    def in_words(self) -> str:
        size = f" of {self.elements} {self.type}".rstrip() if self.elements is not None else ""
        return f"{self.operation}{size}" + (f" from rank {self.root}" if self.root not in (None, -1) else "")


Calls = Mapping[str, Mapping[int, Mapping[int, Called]]]
"""By communicator and rank what each number was."""


def disagreements(calls: Calls) -> list[Blame]:
    """Of each communicator the first operation that its members call differently: those who are fewer than half, or all
    where no call has more than half of them. Empty where all agree. calls: of operations that are not known to be
    through everywhere."""
    found: dict[int, Blame] = {}
    for communicator, of in calls.items():
        for number in sorted({number for own in of.values() for number in own}):
            members = {rank: own[number] for rank, own in of.items() if number in own}
            if differing := _differing(members):
                waiting = tuple(sorted(members.keys() - differing.keys()))
                for rank, instead in differing.items():
                    operation = members[rank].in_words()
                    blame = Blame(rank, Side.PROGRAM, communicator, operation, number, waiting, instead=instead)
                    found.setdefault(rank, blame)
                break
    return [found[rank] for rank in sorted(found)]


def _differing(members: Mapping[int, Called]) -> dict[int, str]:
    """Those that call something else, each with what the others call."""
    if len(members) < 2:
        return {}
    usual, votes = Counter(members.values()).most_common(1)[0]
    if votes * 2 > len(members):
        return {rank: usual.in_words() for rank, own in members.items() if not own.agrees(usual)}
    first = next(iter(members.values()))
    if all(own.agrees(first) for own in members.values()):
        return {}
    return {
        rank: next(other.in_words() for other in members.values() if not other.agrees(own))
        for rank, own in members.items()
        if any(not other.agrees(own) for other in members.values())
    }
