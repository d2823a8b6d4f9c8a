"""Which of torchrun's ranks run forward and which backward: arithmetic, no torch.

A replica is a forward part and a backward part, each a grid of its own. torchrun's ranks are dealt out replica by
replica, so that a replica lies on one host where it fits, and within a replica stage by stage, a forward stage beside
the backward stage that holds the same layers. Where the roles lie apart, all backward ranks come first, so that each
role has hosts of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import product

from megatronapp.core.errors import UsageError


class Role(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's coordinates in its own world, and which world that is."""

    role: Role
    stage: int
    replica: int
    context: int
    tensor: int

    def __str__(self) -> str:
        return f"{self.role}, stage {self.stage}, tensor rank {self.tensor}, replica {self.replica}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """How one replica's part of a role is split."""

    tensor: int
    pipeline: int
    context: int = 1

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.context


@dataclass(frozen=True, kw_only=True)
class Roles:
    """All of the job's ranks."""

    forward: Grid
    backward: Grid
    replicas: int
    apart: bool = False
    """Backward ranks first, then forward ranks."""

    @classmethod
    def of(cls, world_size: int, forward: Grid, backward: Grid, *, apart: bool = False) -> Roles:
        """Raises UsageError, with the number of ranks to start, where they are not whole replicas."""
        ranks = forward.ranks + backward.ranks
        replicas, rest = divmod(world_size, ranks)
        if not rest:
            return cls(forward=forward, backward=backward, replicas=replicas, apart=apart)
        fitting = " or ".join(str(ranks * count) for count in (replicas, replicas + 1) if count)
        if forward == backward and world_size % backward.ranks == 0:
            raise UsageError(
                f"forward and backward ranks are halves of the data-parallel ones, and {world_size} ranks make "
                f"{world_size // backward.ranks} of these, an odd number: start {fitting} ranks"
            )
        raise UsageError(
            f"{world_size} ranks can't be divided into replicas of {forward.ranks} forward and {backward.ranks} "
            f"backward ranks: start {fitting} ranks"
        )

    def grid(self, role: Role) -> Grid:
        return self.forward if role is Role.FORWARD else self.backward

    def ranks(self, role: Role) -> tuple[int, ...]:
        """torchrun's ranks in the order in which megatron-core counts them in the role's world: tensor, context, data,
        pipeline."""
        grid = self.grid(role)
        order = product(range(grid.pipeline), range(self.replicas), range(grid.context), range(grid.tensor))
        return tuple(self.rank(Place(role, *place)) for place in order)

    def rank(self, place: Place) -> int:
        """torchrun's."""
        grid = self.grid(place.role)
        first = self._first(place.role, place.replica) + self._starts[place.role, place.stage]
        return first + place.context * grid.tensor + place.tensor

    def place(self, rank: int) -> Place:
        return self._places[rank]

    def of_replica(self, role: Role, replica: int) -> Iterator[Place]:
        grid = self.grid(role)
        for stage, context, tensor in product(range(grid.pipeline), range(grid.context), range(grid.tensor)):
            yield Place(role, stage, replica, context, tensor)

    def _first(self, role: Role, replica: int) -> int:
        """torchrun's rank from which a replica's ranks of a role are counted."""
        if not self.apart:
            return replica * (self.forward.ranks + self.backward.ranks)
        before = self.replicas * self.backward.ranks if role is Role.FORWARD else 0
        return before + replica * self.grid(role).ranks

    @cached_property
    def _starts(self) -> dict[tuple[Role, int], int]:
        """Of each role's stages within a replica's ranks: by where their layers begin, forward before backward."""
        stages = [(role, stage) for role in Role for stage in range(self.grid(role).pipeline)]
        stages.sort(key=lambda each: (each[1] / self.grid(each[0]).pipeline, each[0] is Role.BACKWARD))
        starts, after = {}, dict.fromkeys(Role, 0)
        for role, stage in stages:
            starts[role, stage] = after[role] if self.apart else sum(after.values())
            after[role] += self.grid(role).tensor * self.grid(role).context
        return starts

    @cached_property
    def _places(self) -> dict[int, Place]:
        replicas = range(self.replicas)
        everybody = (place for role in Role for replica in replicas for place in self.of_replica(role, replica))
        return {self.rank(place): place for place in everybody}
