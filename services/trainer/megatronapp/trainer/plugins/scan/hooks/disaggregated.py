"""What MegaFBD's ranks wait for: a backward rank for inputs and linears' products, a forward rank for weights and
until its outputs are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from megatronapp.trainer.patches import Patches
from megatronapp.trainer.plugins.scan.hooks.microbatches import NOWHERE
from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.operations import Operation

if TYPE_CHECKING:
    from megatronapp.core.pipeline import operations
    from megatronapp.trainer.plugins.fbd.backward import RecomputeStep
    from megatronapp.trainer.plugins.fbd.link import Link
    from megatronapp.trainer.plugins.fbd.pending import Kind, Pending


class DisaggregatedHooks:
    """Of a rank with a role."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._patches = Patches()

    def install(self) -> None:
        from megatronapp.trainer.plugins.fbd.backward import RecomputeStep
        from megatronapp.trainer.plugins.fbd.link import Link
        from megatronapp.trainer.plugins.fbd.pending import Kind

        received = {Kind.LINEARS: Operation.WAIT_LINEARS, Kind.WEIGHTS: Operation.WAIT_WEIGHTS}
        sent = dict.fromkeys((Kind.INPUT, Kind.LINEARS, Kind.LAYER), Operation.WAIT_SLOT)
        self._patches.set(RecomputeStep, "take_input", self._take_input(RecomputeStep.take_input))
        self._patches.set(Link, "wait_received", self._wait(Link.wait_received, received))
        self._patches.set(Link, "wait_there", self._wait(Link.wait_there, received))
        self._patches.set(Link, "wait_sent", self._wait(Link.wait_sent, sent))

    def remove(self) -> None:
        self._patches.restore()

    def _take_input(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Also where there is only linears' products to wait for, so that slots are counted once for each forward."""
        probe = self._probe

        def take_input(step: RecomputeStep, operation: operations.Operation) -> Any:
            if not probe.on or not step.has_slots(operation.chunk):
                return function(step, operation)
            recorder, held = probe.recorder, step.slots_held
            recorder.context(operation.microbatch, operation.chunk)
            recorder.begin(Operation.WAIT_INPUT)
            result = function(step, operation)
            recorder.end_work(held, 0)
            recorder.context(*NOWHERE)
            return result

        return take_input

    def _wait(self, function: Callable[..., None], names: Mapping[Kind, Operation]) -> Callable[..., None]:
        probe = self._probe

        def wait(link: Link, pending: Pending) -> None:
            name = names.get(pending.kind) if probe.on else None
            if name is None:
                function(link, pending)
                return
            probe.recorder.begin(name)
            function(link, pending)
            probe.recorder.end()

        return wait
