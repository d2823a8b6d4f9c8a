"""Which forward tensor rank sends which part of a sequence to a backward tensor rank. Pure.

An activation is [s, b, h]. Without sequence parallelism each tensor rank of a stage has all of it, with it a slice of
s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from megatronapp.trainer.sharding import Shard, pieces


class Slice(NamedTuple):
    """`length` tokens, from `source` on in what the forward rank has, from `target` on in what the backward rank
    wants."""

    sender: int
    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """How one role's tensor ranks hold a sequence of `tokens`."""

    tokens: int
    tensor: int
    split: bool

    def shard(self, rank: int) -> Shard:
        whole = Shard(length=self.tokens)
        return whole.resized(self.tensor, rank) if self.split else whole


def slices(forward: Sequence, backward: Sequence, receiver: int) -> list[Slice]:
    """All that a backward tensor rank receives of one activation: whole from one sender, or from all that hold a part
    of it."""
    wanted = backward.shard(receiver)
    senders = range(forward.tensor) if forward.split else [nearest(receiver, backward.tensor, forward.tensor)]
    return [Slice(sender, *piece) for sender in senders for piece in pieces(forward.shard(sender), wanted)]


def nearest(rank: int, size: int, other_size: int) -> int:
    """Of `other_size` ranks that all hold the same the one that serves a rank of `size`: evenly dealt out."""
    return rank * other_size // size
