"""forward and backward of each microbatch: around forward_step and backward_step of megatron-core's schedules; and what
MegaDPP does beside them: W where it is split from B, and choosing the next operation.

A backward step is told from the others by its output tensor, which is the object that the forward step returned; so
the ids are right under every schedule, a plug-in's own included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from megatronapp.trainer.patches import Patches
from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.operations import Operation

if TYPE_CHECKING:
    from megatronapp.trainer.pipeline.dynamic_step import AnyOrderTransport, Step
    from megatronapp.trainer.pipeline.wgrad import DeferredWgrad

NOWHERE = (-1, -1)


class MicrobatchHooks:
    def __init__(self, probe: Probe, *, dynamic: bool = True) -> None:
        """`dynamic`: MegaDPP may run, as it does under our trainer alone."""
        self._probe = probe
        self._dynamic = dynamic
        self._patches = Patches()
        self._of_output: dict[int, tuple[int, int]] = {}

    def install(self) -> None:
        from megatron.core.pipeline_parallel import schedules

        self._patches.set(schedules, "forward_step", self._forward(schedules.forward_step))
        self._patches.set(schedules, "backward_step", self._backward(schedules.backward_step))
        if self._dynamic:
            self._install_dynamic()

    def _install_dynamic(self) -> None:
        from megatronapp.trainer.pipeline.dynamic_step import Step
        from megatronapp.trainer.pipeline.wgrad import DeferredWgrad

        self._patches.set(DeferredWgrad, "run", self._wgrad(DeferredWgrad.run))
        self._patches.set(Step, "decide", self._decide(Step.decide))

    def remove(self) -> None:
        self._patches.restore()

    def step_begin(self) -> None:
        """Outputs of a step that broke off mean nothing to the next one."""
        self._of_output.clear()

    def _forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        probe = self._probe

        def forward_step(
            *args: Any, current_microbatch: int | None = None, vp_stage: int | None = None, **kwargs: Any
        ) -> Any:
            if not probe.on:
                return function(*args, current_microbatch=current_microbatch, vp_stage=vp_stage, **kwargs)
            where = (-1 if current_microbatch is None else current_microbatch, vp_stage or 0)
            self._enter(where, Operation.FORWARD)
            result = function(*args, current_microbatch=current_microbatch, vp_stage=vp_stage, **kwargs)
            self._leave()
            self._of_output[id(_tensor(result[0]))] = where
            return result

        return forward_step

    def _backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        probe = self._probe

        def backward_step(input_tensor: Any, output_tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if not probe.on:
                return function(input_tensor, output_tensor, *args, **kwargs)
            where = self._of_output.pop(id(_tensor(output_tensor)), NOWHERE)
            self._enter(where, Operation.BACKWARD)
            result = function(input_tensor, output_tensor, *args, **kwargs)
            self._leave()
            return result

        return backward_step

    def _wgrad(self, function: Callable[..., None]) -> Callable[..., None]:
        def run(deferred: DeferredWgrad, chunk: int, microbatch: int) -> None:
            if not self._probe.on:
                function(deferred, chunk, microbatch)
                return
            self._enter((microbatch, chunk), Operation.WGRAD)
            function(deferred, chunk, microbatch)
            self._leave()

        return run

    def _decide(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def decide(step: Step) -> Any:
            if not self._probe.on:
                return function(step)
            held, cap = round(step.policy.in_flight), 0 if step.policy.strict else step.policy.cap
            self._probe.recorder.begin(Operation.DECIDE)
            chosen = function(step)
            self._probe.recorder.end_work(held, cap)
            self._tell_in_flight(cast("AnyOrderTransport", step.messages.transport))
            return chosen

        return decide

    def _tell_in_flight(self, transport: AnyOrderTransport) -> None:
        """Where bytes under way are limited."""
        sent_bytes, cap = transport.in_flight()
        if cap:
            self._probe.recorder.begin(Operation.IN_FLIGHT)
            self._probe.recorder.end_work(sent_bytes, cap)

    def _enter(self, where: tuple[int, int], operation: Operation) -> None:
        self._probe.microbatch = where[0]
        self._probe.recorder.context(*where)
        self._probe.recorder.begin(operation)

    def _leave(self) -> None:
        probe = self._probe
        probe.settle()
        probe.recorder.end_work(*probe.works.get(probe.microbatch, (0, 0)))
        probe.recorder.context(*NOWHERE)
        probe.microbatch = -1


def _tensor(output: Any) -> Any:
    return output[0] if isinstance(output, list) else output
