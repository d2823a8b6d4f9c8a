"""The backward world: the trainer's own loop, optimizer, evaluations and checkpoints, with a schedule of its own.

A stage receives the input of each of its parts for each microbatch, runs the part again with gradients, and then its
backward pass; the last part's forward runs nowhere else. So it holds at most two microbatches' activations, or one's
where it is alone, and inputs in their slots: the memory of full recompute. In *linears* mode it receives what the
part's linears make, too, in *layers* mode what its layers make. In a pipeline the gradient of the input is sent before
those of the linears' weights are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.core.pipeline.recompute import ahead_with, recompute_order
from megatronapp.core.trace.message_id import MessageId
from megatronapp.trainer.pipeline.dynamic import DynamicSchedule
from megatronapp.trainer.pipeline.dynamic_step import Step
from megatronapp.trainer.pipeline.port import PipelineMessages
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad
from megatronapp.trainer.plugins.fbd.beside import Beside
from megatronapp.trainer.plugins.fbd.inputs import Inputs
from megatronapp.trainer.plugins.fbd.pending import Pending


class RecomputeSchedule(DynamicSchedule):
    """In place of megatron-core's schedule for training steps."""

    def __init__(
        self,
        stock: Callable[..., Any],
        messages: PipelineMessages,
        inputs: Inputs,
        beside: Beside | None,
        wgrad: DeferredWgrad | None,
    ) -> None:
        super().__init__(stock, messages, self._policy, wgrad=wgrad)
        self._inputs, self._beside = inputs, beside

    def _policy(self, layout: Layout, stage: int) -> StagePolicy:
        """An order that is given: nothing is held up by a cap, slots are."""
        order = recompute_order(layout, ahead=ahead_with(layout, self._inputs.slots))
        return StagePolicy(layout, stage, order, cap=0, strict=True)

    def _check_groups(self) -> None:
        """All ranks of a stage run one order, whatever comes first: nothing has to be agreed on."""

    def _pace_on_device(self, policy: StagePolicy) -> None:
        """The host runs as far ahead of its device as slots let it."""

    def _make_step(self, **parts: Any) -> Step:
        return RecomputeStep(**parts, inputs=self._inputs, beside=self._beside)


@dataclass(kw_only=True)
class RecomputeStep(Step):
    inputs: Inputs
    beside: Beside | None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._posted_inputs: dict[Operation, tuple[list[Pending], torch.Tensor]] = {}

    def _next(self) -> Operation:
        return self.policy.following()

    def _post_until(self, kind: Kind, chunk: int) -> int:
        """Inputs as far as there are slots; gradients of what has been run again."""
        if kind is Kind.FORWARD:
            return self._done[Kind.BACKWARD, chunk] + self.inputs.slots
        return super()._post_until(kind, chunk)

    def _post_receive(self, operation: Operation) -> None:
        if operation.kind is not Kind.FORWARD:
            super()._post_receive(operation)
            return
        part = self.layout.part(self.stage, operation.chunk)
        if self.beside is not None:
            self.beside.post(operation.chunk, operation.microbatch, self.shape[1])
        if part:
            tensor = torch.empty(self.shape, requires_grad=True, device=self._device, dtype=self.config.pipeline_dtype)
            self._posted_inputs[operation] = self.inputs.post(tensor, part, operation.microbatch), tensor

    def _received(self, operation: Operation) -> torch.Tensor | None:
        if operation.kind is not Kind.FORWARD:
            return super()._received(operation)
        return self.take_input(operation)

    def take_input(self, operation: Operation) -> torch.Tensor | None:
        """What a forward begins with, once it is there; nothing where the model begins."""
        if not self.layout.part(self.stage, operation.chunk):
            return None
        handles, tensor = self._posted_inputs.pop(operation)
        self.inputs.wait(handles)
        return tensor

    def has_slots(self, chunk: int) -> bool:
        """Whether the forward world sends anything for the chunk."""
        return self.beside is not None or self.layout.part(self.stage, chunk) > 0

    @property
    def slots_held(self) -> int:
        """By microbatches that have come and have not begun their B."""
        kept = sum(self.has_slots(chunk) for chunk, _ in self._kept)
        if self.beside is not None:
            return kept + self.beside.arrived
        return kept + sum(all(map(Pending.done, handles)) for handles, _ in self._posted_inputs.values())

    def _forward(self, operation: Operation) -> None:
        _, chunk, microbatch = operation
        with nullcontext() if self.beside is None else self.beside.of(chunk, microbatch):
            super()._forward(operation)

    def _send_output(self, output: torch.Tensor, stage: int, name: MessageId, urgency: int) -> None:
        """The forward world has sent it."""
