"""Processes that the kernel says are stopped (SIGSTOP, a debugger), against what frontiers tell.

A process may be stopped anywhere: inside a collective too, which its library then moves no more. To the others that
looks like a device or a link that does not get on, and to the frontiers as if nobody were missing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from megatronapp.detector.signals.frontier import Blame, Side

_BY_ITSELF = {Side.HOST, Side.PROGRAM, Side.DEADLOCK}
"""What nobody else's process explains."""


def of_stopped(blamed: Sequence[Blame], stopped: Collection[int]) -> list[Blame]:
    """Who is to blame where these ranks' processes are stopped: all of them, and who has not come for a reason of its
    own. None of them goes on when another one does."""
    if not stopped:
        return list(blamed)
    found = {b.rank: b for b in blamed}
    alone = {b.rank: b for b in blamed if b.side in _BY_ITSELF}
    nothing = Blame(0, Side.STOPPED, "", "", 0, ())
    halted = {r: replace(found.get(r, nothing), rank=r, side=Side.STOPPED, circle=()) for r in stopped}
    return [each for _, each in sorted((halted | alone).items())]
