"""Which layers both of MegaFBD's worlds hold, and what passes between them. Pure.

The model is cut into the backward world's parts, stages x chunks of equal size, in the order of the forward pass. The
forward world sends each part but the first its input, which is the output of the layer before it. In *input* mode it
runs all but the last part, whose forward the backward world runs anyway. In *linears* mode it runs all layers, and
sends what their linears make too. In *layers* mode it runs all layers, and sends the output of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.placement import Layout


class Mode(StrEnum):
    """What the backward world gets for each microbatch: a part's input alone, so that it runs the whole part again; or
    the outputs of the part's linears too, so that it runs again only what is between them; or the outputs of the part's
    layers too, so that it runs again one layer at a time, in its backward pass, and holds no more than that."""

    INPUT = "input"
    LINEARS = "linears"
    LAYERS = "layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Layers are counted from 0 over the whole model."""

    layers: int
    backward: Layout
    forward_stages: int
    mode: Mode = Mode.INPUT

    @classmethod
    def of(cls, layers: int, backward: Layout, forward_stages: int, mode: Mode = Mode.INPUT) -> Partition:
        """Raises UsageError where the forward world would have stages without layers."""
        made = cls(layers=layers, backward=backward, forward_stages=forward_stages, mode=mode)
        if backward.stages < 2 and mode is Mode.INPUT:
            raise UsageError(
                "forward and backward on different ranks need --pipeline-model-parallel-size 2 or more: the last stage "
                "runs its own forward, so that with one stage there is nothing to send; --fbd-mode linears and layers "
                "have no such bound"
            )
        if forward_stages > made.forward_layers:
            raise UsageError(
                f"forward runs {made.forward_layers} of the {layers} layers, too few for {forward_stages} stages: give "
                f"--forward-pipeline-model-parallel-size {made.forward_layers} or less"
            )
        return made

    @property
    def part_layers(self) -> int:
        return self.layers // self.backward.parts

    @property
    def forward_layers(self) -> int:
        """From the first one on."""
        return self.layers - self.part_layers * (self.mode is Mode.INPUT)

    @property
    def stage_layers(self) -> tuple[int, ...]:
        """Of each forward stage: as even as can be, the first ones have the rest."""
        each, rest = divmod(self.forward_layers, self.forward_stages)
        return tuple(each + (stage < rest) for stage in range(self.forward_stages))

    def forward_stage(self, layer: int) -> int:
        """That runs the layer. Raises ValueError for one of the last part."""
        for stage, count in enumerate(self.stage_layers):
            if layer < count:
                return stage
            layer -= count
        raise ValueError("no forward stage runs the last part's layers")

    def span(self, stage: int) -> tuple[int, int]:
        """The first layer of a forward stage, and the first of the next."""
        return sum(self.stage_layers[:stage]), sum(self.stage_layers[: stage + 1])

    def part(self, layer: int) -> int:
        """The backward world's part that holds the layer."""
        return layer // self.part_layers

    def is_border(self, layer: int) -> bool:
        """Whether what the layer makes is sent as such in *layers* mode: it is no part's input."""
        return self.mode is Mode.LAYERS and (layer + 1 == self.layers or not self.begins(layer + 1))

    def begins(self, layer: int) -> bool:
        """Whether a part begins with this layer, or the model has ended."""
        return layer % self.part_layers == 0
