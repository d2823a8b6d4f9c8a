"""Layout: where the ranks of a simulated job stand, and their groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from megatronapp.detector.steps import Ints

TP, DP, MP, EP = "tp", "dp", "mp", "ep"
"""Kinds of groups. mp: all stages and tensor ranks of a replica, which agree on the gradient's norm."""


@dataclass(frozen=True)
class Layout:
    """Ranks in megatron-core's order tp-dp-pp. `ep` neighbouring replicas share their experts."""

    pp: int = 2
    dp: int = 2
    tp: int = 1
    vpp: int = 1
    microbatches: int = 8
    ep: int = 1
    ranks_per_node: int = 8

    def __post_init__(self) -> None:
        if self.dp % self.ep:
            raise ValueError(f"{self.ep} ranks an expert group do not divide {self.dp} replicas")
        if self.vpp > 1 and self.microbatches % self.pp:
            raise ValueError(f"{self.microbatches} microbatches are no multiple of {self.pp} interleaved stages")

    @property
    def world(self) -> int:
        return self.pp * self.dp * self.tp

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of an array with one entry a rank, in order of rank."""
        return self.pp, self.dp, self.tp

    def place(self, rank: int) -> tuple[int, int, int]:
        """(tensor, data, pipeline)."""
        return rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp)

    def rank(self, tp: int, dp: int, pp: int) -> int:
        return tp + self.tp * (dp + self.dp * pp)

    @property
    def pipeline(self) -> Ints:
        """Of each rank; so data and node."""
        return np.arange(self.world) // (self.tp * self.dp)

    @property
    def data(self) -> Ints:
        return np.arange(self.world) // self.tp % self.dp

    @property
    def node(self) -> Ints:
        return np.arange(self.world) // self.ranks_per_node

    @property
    def nodes(self) -> int:
        return -(-self.world // self.ranks_per_node)

    def node_ranks(self, node: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self.node == node).tolist())

    def groups(self, rank: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Kind and members of each communicator of a rank that has more than one."""
        tp, dp, pp = self.place(rank)
        if self.tp > 1:
            yield TP, tuple(self.rank(t, dp, pp) for t in range(self.tp))
        if self.dp > 1:
            yield DP, tuple(self.rank(tp, d, pp) for d in range(self.dp))
        if self.pp * self.tp > 1:
            yield MP, tuple(self.rank(t, dp, p) for p in range(self.pp) for t in range(self.tp))
        if self.ep > 1:
            first = dp - dp % self.ep
            yield EP, tuple(self.rank(tp, d, pp) for d in range(first, first + self.ep))

    @property
    def name(self) -> str:
        parts = {"tp": self.tp, "pp": self.pp, "dp": self.dp, "vpp": self.vpp, "ep": self.ep}
        return "-".join(f"{key}{size}" for key, size in parts.items() if size > 1) or "single"


def of_world(world: int, pp: int = 1, tp: int = 1, *, microbatches: int = 16, ep: int = 1, vpp: int = 1) -> Layout:
    """The layout of so many ranks: what is left over is data-parallel."""
    if world % (pp * tp):
        raise ValueError(f"{world} ranks are no multiple of PP {pp} × TP {tp}")
    return Layout(pp=pp, dp=world // (pp * tp), tp=tp, vpp=vpp, microbatches=microbatches, ep=ep)
