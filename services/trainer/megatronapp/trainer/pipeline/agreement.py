"""The ranks that hold one stage together run the same operations in the same order: tensor × context, and replicas that
share experts.

Their collectives have to meet, and messages do not come to all of them at the same time. So the first of them decides,
and tells the others each decision in a message of the engine's: no collective, and nothing on the GPU. A decision that
the first rank can run, the others can run too, as soon as their own message has come, which they wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from megatronapp.trainer.pipeline.native import rdma_module

if TYPE_CHECKING:
    from megatronapp import rdma

AHEAD = 8
"""Decisions whose receives are posted before they are needed."""


class Agreement:
    """Of one stage's `ranks` (global numbers), of whom the first leads. All of them create it together.

    Raises the transport's errors when one of them can't be reached.
    """

    def __init__(self, engine: rdma.Engine, ranks: Sequence[int]) -> None:
        self._engine = engine
        self._leader, self._others = ranks[0], ranks[1:]
        self.leads = engine.rank == self._leader
        self._module: Any = rdma_module()
        self._receives: deque[rdma.Handle] = deque()
        self._decided = self._posted = self._operations = 0
        engine.connect([rank for rank in ranks if rank != engine.rank])  # also to see when one is lost

    def begin(self, operations: int) -> None:
        """A step of so many operations begins, after the engine's round."""
        self._decided = self._posted = 0
        self._operations = operations
        self._receives.clear()

    def send_decision(self, operation: int) -> None:
        """The leader has decided for this one, by its number."""
        decision = torch.tensor([operation])
        for rank in self._others:
            self._engine.isend(decision, rank, self._tag(self._decided), priority=1)
        self._decided += 1

    def receive_decision(self, timeout_seconds: float) -> int | None:
        """What the leader has decided next, or None when it has not within the time."""
        while self._posted < min(self._operations, self._decided + AHEAD):
            spec = self._module.Spec((1,), torch.int64)
            self._receives.append(self._engine.irecv(spec, self._leader, self._tag(self._posted)))
            self._posted += 1
        try:
            self._receives[0].wait(timeout_seconds)
        except self._module.TransferTimeoutError:
            return None
        self._decided += 1
        return int(self._receives.popleft().tensor.item())

    def _tag(self, number: int) -> rdma.Tag:
        tag: rdma.Tag = self._module.Tag(self._module.Kind.CONTROL, microbatch=number, round=self._engine.round)
        return tag
