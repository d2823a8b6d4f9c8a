"""Which part of the model lies on which stage, and how a stage's operations are numbered.

The model is cut into stages × chunks parts, in the order of the forward pass. LOOP deals them out round by round, as
megatron-core does; V runs down the stages and up again, so that a stage holds the parts that are as far from the
model's begin as from its end.

Lanes: the operations of one kind and chunk, in the order of microbatches. A stage's lanes are numbered kind after kind,
F, B, W, and its operations lane after lane: arrays over operations have that order everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.str_enum import StrEnum

_KINDS = tuple(Kind)


class Placement(StrEnum):
    LOOP = "loop"
    V = "v"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A pipeline of one replica. `split`: B and W are operations of their own. Raises UsageError."""

    stages: int
    microbatches: int
    chunks: int = 1
    split: bool = False
    placement: Placement = Placement.LOOP

    def __post_init__(self) -> None:
        for name in ("stages", "microbatches", "chunks"):
            if getattr(self, name) < 1:
                raise UsageError(f"a pipeline needs at least one of its {name}; {getattr(self, name)} were given")
        if self.placement is Placement.V and self.chunks != 2:
            raise UsageError(f"V placement takes 2 chunks a stage, not {self.chunks}")

    @property
    def parts(self) -> int:
        return self.stages * self.chunks

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(Kind) if self.split else (Kind.FORWARD, Kind.BACKWARD)

    @property
    def lanes(self) -> int:
        """Of one stage."""
        return len(self.kinds) * self.chunks

    @property
    def operations(self) -> int:
        """Of one stage."""
        return self.lanes * self.microbatches

    def part(self, stage: int, chunk: int) -> int:
        if self.placement is Placement.V and chunk == 1:
            return self.parts - 1 - stage
        return chunk * self.stages + stage

    def place(self, part: int) -> tuple[int, int]:
        """(stage, chunk) of a part."""
        if self.placement is Placement.V and part >= self.stages:
            return self.parts - 1 - part, 1
        chunk, stage = divmod(part, self.stages)
        return stage, chunk

    def following(self, stage: int, kind: Kind, chunk: int) -> tuple[int, Kind, int] | None:
        """What needs the result: F feeds the next part's F, the last part's F its own B, B the part before."""
        if kind is Kind.WGRAD:
            return None
        part = self.part(stage, chunk)
        if kind is Kind.FORWARD and part == self.parts - 1:
            return stage, Kind.BACKWARD, chunk
        part += 1 if kind is Kind.FORWARD else -1
        if part < 0:
            return None
        stage, chunk = self.place(part)
        return stage, kind, chunk

    def lane(self, kind: Kind, chunk: int) -> int:
        return kind * self.chunks + chunk

    def number(self, operation: Operation) -> int:
        """Index of an operation among its stage's."""
        return self.lane(operation.kind, operation.chunk) * self.microbatches + operation.microbatch

    def operation(self, number: int) -> Operation:
        lane, microbatch = divmod(number, self.microbatches)
        kind, chunk = divmod(lane, self.chunks)
        return Operation(_KINDS[kind], chunk, microbatch)

    def all_operations(self) -> Iterator[Operation]:
        """Of one stage, by number."""
        return map(self.operation, range(self.operations))
