"""How many layers the first and the last stage should have: beside layers they hold the embedding, and the output layer
with the loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.arrays import Floats, PassTimes
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.placement import Layout, Placement

LEAST_PARTS, MOST_LAYERS = 3, 1024


@dataclass(frozen=True, slots=True)
class StageSizes:
    """Layers of the first, the last, and each stage between them."""

    first: int
    last: int
    between: int

    def of(self, stage: int, stages: int) -> int:
        return self.first if stage == 0 else self.last if stage == stages - 1 else self.between


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the first and the last part of a model hold beside their layers, in layers: the embedding, and the output
    layer with the loss. Raises UsageError."""

    embedding: float = 0.0
    head: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.embedding <= MOST_LAYERS and 0 <= self.head <= MOST_LAYERS):
            raise UsageError(f"--embedding-layers and --head-layers are from 0 to {MOST_LAYERS}")

    def added_to(self, layout: Layout, times: PassTimes, layer: Floats) -> PassTimes:
        """The head's W stays in its B."""
        added = np.array(times, float)
        added[:, 0, 0] += self.embedding * layer
        stage, chunk = layout.place(layout.parts - 1)
        forward, dgrad, wgrad = self.head * layer
        added[: Kind.WGRAD, stage, chunk] += forward, dgrad + wgrad
        return added


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Of a pipeline whose stages have equally many layers. times: what its passes took; known: by kind, what a layer
    takes, where that need not be told from parts that hold nothing else. Raises UsageError where the layers do not
    divide, or nothing tells what one takes."""

    layout: Layout
    layers: int
    times: PassTimes
    known: Floats | None = None

    def __post_init__(self) -> None:
        if self.layers < 1 or self.layers % self.layout.parts:
            raise UsageError(
                f"--layers {self.layers} can't be those of {self.layout.parts} equal parts, {self.layout.stages} "
                f"stages of {self.layout.chunks} chunks: give the model's number of layers"
            )
        if self.layers > MOST_LAYERS:
            raise UsageError(f"--layers {self.layers} is more than any model has: at most {MOST_LAYERS}")
        if self.layout.stages < 2:
            raise UsageError("one stage has all layers: leave --layers out, or plan for more --stages")
        measurable = self.layout.parts >= LEAST_PARTS and self.layout.placement is not Placement.V
        if self.known is None and not measurable:
            raise UsageError(
                "a layer's time is told from stages between the first and the last, of which this pipeline has none: "
                "leave --layers out"
            )

    @property
    def layer(self) -> Floats:
        """By kind, in ns: what is known, or the mean over parts that hold nothing else."""
        if self.known is not None:
            return self.known
        inner = [self.layout.place(part) for part in range(1, self.layout.parts - 1)]
        of_parts = np.array([self.times[:, stage, chunk] for stage, chunk in inner])
        return np.asarray(of_parts.mean(axis=0) / (self.layers // self.layout.parts))

    def added(self, sizes: StageSizes) -> PassTimes:
        """What passes take longer with stages of these sizes, by (F B W, stage, chunk), in ns."""
        layout = self.layout
        more = np.array([sizes.of(stage, layout.stages) for stage in range(layout.stages)]) / layout.chunks
        more -= self.layers / layout.parts
        return np.asarray(self.layer[:, None, None] * more[None, :, None] * np.ones((len(Kind), 1, layout.chunks)))

    def balanced(self) -> StageSizes:
        """Those with which the busiest stage has least to do, and of these the most equal."""
        equal = self.layers // self.layout.stages
        busy = self.times.sum(axis=(0, 2))

        def work(sizes: StageSizes) -> tuple[float, float]:
            """The busiest stage's in layers, then how unequal all are."""
            layers = (busy + self.added(sizes).sum(axis=(0, 2))) / self.layer.sum()
            return round(float(layers.max()), 6), round(float((layers**2).sum()), 6)

        return min([StageSizes(equal, equal, equal), *self._possible()], key=work)

    def _possible(self) -> list[StageSizes]:
        chunks, between = self.layout.chunks, self.layout.stages - 2
        found = []
        for first in range(chunks, self.layers, chunks):
            for last in range(chunks, self.layers - first + 1, chunks):
                left = self.layers - first - last
                each = left // between if between else 0
                if left == each * between and (each >= chunks or not between) and each % chunks == 0:
                    found.append(StageSizes(first, last, each))
        return found
