"""Tomography: whose link explains that some transfers are slow and others are not.

A transfer is slow when something on its way is. So whoever takes part in one that is not slow is innocent, and of all
explanations the one with the fewest culprits is the likeliest (smallest consistent failure set: Duffield, "Network
tomography of binary network performance characteristics", IEEE Transactions on Information Theory 52, 2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Path:
    """A transfer: global ranks that send in it, and that receive. Members of a collective do both."""

    senders: frozenset[int]
    receivers: frozenset[int]

    @property
    def ends(self) -> frozenset[int]:
        return self.senders | self.receivers


@dataclass(frozen=True, slots=True)
class Cleared:
    """Ranks that good transfers clear, each way by itself: a link may be slow one way alone."""

    sending: frozenset[int]
    receiving: frozenset[int]

    @classmethod
    def by(cls, good: Sequence[Path]) -> Cleared:
        return cls(
            frozenset[int]().union(*(path.senders for path in good)),
            frozenset[int]().union(*(path.receivers for path in good)),
        )

    def suspects(self, path: Path) -> frozenset[int]:
        return (path.senders - self.sending) | (path.receivers - self.receiving)


def culprits(path: Path, slow: Sequence[Path], cleared: Cleared) -> frozenset[int]:
    """Whose link makes a path slow: of its suspects the one that explains most of the slow paths; several where all
    that they explain is the same, and then of a message the sender. Where both ends are innocent it is what lies
    between them.
    """
    explained = {
        rank: frozenset(i for i, each in enumerate(slow) if rank in cleared.suspects(each))
        for rank in cleared.suspects(path)
    }
    if not explained:
        return path.ends
    most = max(explained.values(), key=len)
    alike = frozenset(rank for rank, paths in explained.items() if paths == most)
    senders = frozenset[int]().union(*(slow[i].senders for i in most))
    return alike & senders or alike
