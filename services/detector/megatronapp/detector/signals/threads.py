"""What the ranks' training threads do, against what frontiers tell: where ranks wait for one another in a circle, one
of them may have stopped by itself. Its messages stand posted ahead, and wait as those of the others do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from megatronapp.detector.signals.frontier import Blame, Side

BUSY_SHARE = 0.2
"""A thread that wants less of a processor than this stands still: one that computes wants all of one, of which it gets
this much where five share it and the kernel tells of no queue, and one that waits in a collective or message of gloo
wants none (measured, below 0.0001)."""


def computes(passed_ns: int, used_ns: int, queued_ns: int) -> bool:
    """Whether a thread has computed in this time, by the processor's time that it has used and that it has waited for
    in the run queue: on a busy host it may get little of what it wants."""
    return passed_ns > 0 and used_ns + queued_ns > BUSY_SHARE * passed_ns


def stopped_alone(blamed: Iterable[Blame], computing: frozenset[int], passing: frozenset[int]) -> frozenset[int]:
    """Of ranks in a circle those that have stopped by themselves: all who compute; else the one whose thread stands in
    a pass, while the threads of all others are in operations or between them. Several in passes may be waiting in what
    nobody tells of.

    computing, passing: ranks whose threads are in a pass, and compute there.
    """
    circles = {id(b.circle): b.circle for b in blamed if b.side is Side.CIRCULAR}  # each rank tells the whole one
    circle = frozenset[int]().union(*circles.values())
    if not circle or computing:
        return computing if circle else circle
    alone = passing & circle
    return alone if len(alone) == 1 else frozenset()


def with_sides(blamed: Iterable[Blame], computing: frozenset[int], passing: frozenset[int]) -> list[Blame]:
    """Of CPU ranks, which have no device: who computes has not stopped on its host, and who stands in a pass has, also
    where it has posted messages."""
    return [replace(b, side=_side(b, computing, passing)) for b in blamed]


def _side(b: Blame, computing: frozenset[int], passing: frozenset[int]) -> Side:
    if b.rank in computing:
        return Side.DEVICE
    return Side.HOST if b.rank in passing and b.side is Side.DEVICE else b.side
