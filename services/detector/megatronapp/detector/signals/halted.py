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
    """Who is to blame where these ranks' processes are stopped."""
    alone = [b for b in blamed if b.side in _BY_ITSELF]
    if not stopped or any(b.rank not in stopped for b in alone):
        return list(blamed)
    found = {b.rank: b for b in blamed}
    nothing = Blame(0, Side.STOPPED, "", "", 0, ())
    return alone or [
        replace(found.get(rank, nothing), rank=rank, side=Side.STOPPED, circle=()) for rank in sorted(stopped)
    ]
