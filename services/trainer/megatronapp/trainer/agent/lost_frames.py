"""Frames that a rank has written and no gateway gets: counted, and told of."""

from __future__ import annotations

from megatronapp.v1 import scope_pb2

KIND = "overrun"
"""`ScopeAlert`'s."""
ANY_TAP = 0
"""What was overwritten in the ring does not say whose it was."""
OVERWRITTEN = "more was shown at once than the agent reads: parts were overwritten; show fewer layers, or add every(10)"
NOT_SENT = "more is shown than goes to the gateway in time; show fewer layers, pool them, or add every(10)"


class LostFrames:
    """Of one rank. Not guarded: for callers that hold a lock."""

    def __init__(self) -> None:
        self.count = 0
        self._reported: set[int] = set()

    def renew(self) -> None:
        """What is asked for is another: its losses are told of anew."""
        self._reported.clear()

    def add(self, tap: int, count: int, why: str, rank: int) -> scope_pb2.ScopeEvent | None:
        """The event that tells of it; None: it was told of this tap, since it was asked for."""
        self.count += count
        if tap in self._reported:
            return None
        self._reported.add(tap)
        return scope_pb2.ScopeEvent(alert=scope_pb2.ScopeAlert(kind=KIND, tap=tap, detail=why, rank=rank))
