"""The worlds that a job's ranks form: those of one world share process groups, those of two know nothing of each other.

Without a plug-in that says otherwise, all of torchrun's ranks are one world. megatron-core counts from 0 in each;
people, traces and logs count as torchrun does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from megatronapp.trainer.environment import Environment

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


@dataclass(frozen=True, kw_only=True)
class World:
    """`ranks` are torchrun's, in the order in which this world counts them. `name` is empty where there is one world
    alone."""

    ranks: tuple[int, ...]
    rank: int
    """This process among them."""
    name: str = ""

    @classmethod
    def whole(cls, environment: Environment) -> World:
        return cls(ranks=tuple(range(environment.world_size)), rank=environment.rank)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def store(self, store: Store) -> Store:
        """The part of the job's store that is this world's own."""
        from torch._C._distributed_c10d import PrefixStore  # only here: wrong flags are told without torch

        return PrefixStore(self.name, store) if self.name else store
