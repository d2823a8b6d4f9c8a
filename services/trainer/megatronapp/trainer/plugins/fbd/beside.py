"""What a backward rank receives for each microbatch of a chunk beside its input, and who takes it where."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import torch

from megatronapp.trainer.plugins.fbd.link import Link
from megatronapp.trainer.plugins.fbd.pending import Pending

Arriving: TypeAlias = dict[int, tuple[list[Pending], torch.Tensor]]
"""By a number of who takes it: the messages on their way, and the tensor that they fill."""


class Beside(ABC):
    """Outside `of` layers are megatron-core's own."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._posted: dict[tuple[int, int], Arriving] = {}
        self._current: Arriving | None = None

    def post(self, chunk: int, microbatch: int, batch: int) -> None:
        """Room for what is sent. batch: sequences of the microbatch."""
        self._posted[chunk, microbatch] = self._room(chunk, microbatch, batch)

    @abstractmethod
    def _room(self, chunk: int, microbatch: int, batch: int) -> Arriving: ...

    @property
    def arrived(self) -> int:
        """How many microbatches x chunks that are not taken yet have all come."""
        return sum(
            all(handle.done() for handles, _ in arriving.values() for handle in handles)
            for arriving in self._posted.values()
        )

    @contextmanager
    def of(self, chunk: int, microbatch: int) -> Iterator[None]:
        """Forward passes in it take what was sent."""
        self._current = self._posted.pop((chunk, microbatch))
        try:
            yield
        finally:
            self._current = None

    @property
    def active(self) -> bool:
        """Whether a forward pass that takes it is under way; those that only look, or recompute, do not."""
        return self._current is not None and torch.is_grad_enabled()

    def received(self, number: int) -> torch.Tensor:
        """What was sent for it, once it is there."""
        assert self._current is not None, "within `of`"  # noqa: S101
        handles, tensor = self._current.pop(number)
        for handle in handles:
            self._link.wait_received(handle)
        return tensor
