"""Which devices run what: one way to run a model's forward passes beside its training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatronapp.core.pipeline.disaggregation.cluster import ForwardDevices, Model, Training
from megatronapp.core.pipeline.partition import Mode, Partition
from megatronapp.core.pipeline.recompute import least_slots


@dataclass(frozen=True, slots=True)
class Mapping:
    """slots: inputs that a backward stage takes ahead for each of its chunks."""

    mode: Mode
    tensor: int
    pipeline: int
    slots: int

    @property
    def devices(self) -> int:
        """Forward ones of a replica."""
        return self.tensor * self.pipeline

    def partition(self, model: Model, training: Training) -> Partition:
        return Partition.of(model.layers, training.layout, self.pipeline, self.mode)


def mappings(model: Model, training: Training, devices: ForwardDevices) -> Iterator[Mapping]:
    """All that MegaFBD can run on so many devices. *Linears* needs as many tensor ranks on both sides, the others sizes
    of which one divides the other; *input* needs a pipeline."""
    layout = training.layout
    least = least_slots(layout, ahead=1)
    offered = (layout.stages, layout.stages + 1, layout.stages + 2, 2 * layout.stages)
    numbers = sorted({least, *(number for number in offered if number > least)})
    for mode in Mode:
        if mode is Mode.INPUT and layout.stages == 1:
            continue
        layers = Partition(layers=model.layers, backward=layout, forward_stages=1, mode=mode).forward_layers
        for tensor in tensor_sizes(training.tensor, devices.count, mode):
            if model.groups % tensor:
                continue
            for pipeline in range(1, min(devices.count // tensor, layers) + 1):
                yield from (Mapping(mode, tensor, pipeline, slots) for slots in numbers)


def tensor_sizes(backward: int, most: int, mode: Mode) -> list[int]:
    sizes = range(1, most + 1)
    if mode is Mode.LINEARS:
        return [size for size in sizes if size == backward]
    return [size for size in sizes if max(size, backward) % min(size, backward) == 0]
