"""What text is to plug-ins: a generator at a border or around a checkpoint that is served (generate/)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from megatronapp.core.generation import GenerationRequest
    from megatronapp.core.generation_port import Port


class PassObserver(Protocol):
    """Is told of each forward pass of a session, on every rank, so that it knows what its hooks see."""

    def request_begin(self, request: GenerationRequest, rows: int, positions: int) -> None:
        """A session of so many rows and positions at most begins; on all ranks, between two passes. Raises DataError,
        on all ranks alike, for interventions that can't be: then it does not begin, and `request_end` follows."""

    def request_end(self, request: str) -> None:
        """It has ended, however."""

    def pass_begin(self, request: str, start: int, end: int, rows: int) -> None:
        """`rows` rows of this request are computed from position `start` up to `end`."""

    def pass_end(self) -> None:
        """On all ranks after the same pass: they may exchange messages."""


class Between(Protocol):
    """What all ranks do between two forward passes."""

    def due(self) -> bool:
        """Every rank asks in each round, which is at least once a second; rank 0's answer counts."""
        ...

    def hold(self) -> None:
        """All ranks together."""
        ...


class TextGenerator(Protocol):
    """generate.generator.Generator."""

    def observe(self, observer: PassObserver) -> None: ...

    def ready(self) -> AbstractContextManager[None]: ...

    def forget(self) -> None: ...


class Resident(Protocol):
    """generate.resident.ResidentGenerator."""

    @property
    def generator(self) -> TextGenerator: ...

    def serve_pending(self, most_seconds: float, stopping: Callable[[], bool]) -> None: ...


MakeResident = Callable[["Sequence[torch.nn.Module]", Any, "Port | None", Between], Resident]
"""Of a model's chunks, not wrapped, its configuration, rank 0's port, and what is done between passes. All ranks call
it together."""
