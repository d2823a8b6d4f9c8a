"""How long a step of one mapping takes: all passes and messages of one replica as tasks.

A forward stage runs its layers part by part, a microbatch after the other; what a part needs leaves it when the part's
layers have run, in *layers* mode when each has, and it stops while too much for that part is on its way. A backward
stage runs its fixed order. Before the first microbatch weights come in, in the order of use, while the first layers run
already. Where there is one forward stage, which begins behind the optimizer's pieces, the tail of the step before hides
as much of the first microbatch and of its weights as it is long.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from megatronapp.core.pipeline.disaggregation.cluster import VALUE_BYTES, ForwardDevices, Model, Training
from megatronapp.core.pipeline.disaggregation.mapping import Mapping
from megatronapp.core.pipeline.disaggregation.tasks import Task, ends
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.partition import Mode, Partition
from megatronapp.core.pipeline.recompute import ON_THE_WAY, ahead_with, recompute_order, split_where_it_helps

SECOND_NS = 1e9
NAMES = {Kind.FORWARD: "again", Kind.BACKWARD: "backward", Kind.WGRAD: "wgrad"}
"""Of a backward stage's tasks."""


class Paces(NamedTuple):
    """What each kind of device or link needs for one microbatch, in ns: the largest sets the pace."""

    forward: float
    backward: float
    link: float


class Segment(NamedTuple):
    """Layers of one part on one forward stage, behind which something leaves it. `feeds`: the part whose input they
    end with, if one begins there."""

    stage: int
    part: int
    layers: int
    feeds: int | None


@dataclass(frozen=True)
class PlannedStep:
    """Of one mapping on one cluster."""

    model: Model
    training: Training
    devices: ForwardDevices
    mapping: Mapping
    linears_share: float
    """Of a forward's time, that its linears take."""

    @cached_property
    def step_ns(self) -> float:
        """To the end of the last backward stage; Training.tail_ns comes on top."""
        done = ends(self.tasks)
        return max(end for name, end in done.items() if isinstance(name, tuple) and name[0] in ("backward", "wgrad"))

    @cached_property
    def paces(self) -> Paces:
        forward = [0.0] * self.mapping.pipeline
        links: dict[Hashable, float] = {}
        for segment in self._segments:
            forward[segment.stage] += self._forward_ns(segment)
            for name, part, duration in self._messages(segment):
                for each in self._resources(segment, part) if name else ():
                    links[each] = links.get(each, 0.0) + duration
        backward = self._again_ns + self._dgrad_ns + self.training.wgrad_ns
        return Paces(max(forward), backward, max(links.values(), default=0.0))

    # ---- durations

    @property
    def _again_ns(self) -> float:
        """What a backward stage runs again of a microbatch before its backward pass."""
        shares = {Mode.INPUT: 1.0, Mode.LINEARS: 1 - self.linears_share, Mode.LAYERS: 0.0}
        return self.training.forward_ns * shares[self.mapping.mode]

    @property
    def _dgrad_ns(self) -> float:
        """With what is run again within."""
        within = self.training.forward_ns * (self.mapping.mode is Mode.LAYERS)
        return self.training.dgrad_ns + within

    def _forward_ns(self, segment: Segment) -> float:
        whole = self.training.forward_ns * self.training.layout.stages / self.model.layers
        return whole * segment.layers * self.training.tensor / (self.mapping.tensor * self.devices.speed)

    def _link_ns(self, byte_count: float) -> float:
        return byte_count / self.devices.bytes_per_second * SECOND_NS

    def _input_bytes(self) -> float:
        """Through the busier end: each backward tensor rank takes all of it, or its slice of the sequence."""
        copies = 1 if self.training.sequence_parallel else self.training.tensor
        return self.model.border_bytes * max(copies / self.mapping.tensor, copies / self.training.tensor)

    @cached_property
    def _first_share(self) -> float:
        """What is left of the first microbatch's forward, and of the weights' way, when a step begins."""
        if self.mapping.pipeline > 1:
            return 1.0
        whole = sum(self._forward_ns(segment) + self._weights_ns(segment) for segment in self._segments)
        return 1 - min(1.0, self.training.tail_ns / whole)

    def _weights_ns(self, segment: Segment) -> float:
        smaller = min(self.mapping.tensor, self.training.tensor)
        return self._link_ns(VALUE_BYTES * segment.layers * self.model.layer_parameters / smaller)

    # ---- structure

    @cached_property
    def _partition(self) -> Partition:
        return self.mapping.partition(self.model, self.training)

    @cached_property
    def _segments(self) -> list[Segment]:
        return list(segments(self._partition))

    def _messages(self, segment: Segment) -> Iterator[tuple[str, int, float]]:
        """(name, part that takes it, duration) of what follows a segment."""
        if segment.feeds is not None:
            yield "input", segment.feeds, self._link_ns(self._input_bytes())
        if self.mapping.mode is Mode.LINEARS:
            byte_count = segment.layers * self.model.linears_bytes(self.mapping.tensor)
            yield "linears", segment.part, self._link_ns(byte_count)
        if self.mapping.mode is Mode.LAYERS and segment.feeds is None:
            yield "border", segment.part, self._link_ns(self._input_bytes())

    def _resources(self, segment: Segment, part: int) -> tuple[Hashable, ...]:
        """A message takes its sender's way out and its receiver's way in."""
        return ("out", segment.stage), ("in", self._partition.backward.place(part)[0])

    @cached_property
    def tasks(self) -> dict[Hashable, Task]:
        tasks: dict[Hashable, Task] = {}
        tasks.update(self._weights())
        tasks.update(self._forward())
        tasks.update(self._backward())
        return tasks

    def _weights(self) -> Iterator[tuple[Hashable, Task]]:
        """In two pieces for each segment: what must be there before its first layer can begin, so that no later layer
        has to wait, and the rest."""
        for index, segment in enumerate(self._segments):
            whole = self._weights_ns(segment)
            later = (segment.layers - 1) / segment.layers
            rest = min(whole, self._forward_ns(segment)) * later
            way = (("weights", segment.stage),)
            yield ("weights", index), Task((whole - rest) * self._first_share, way)
            yield ("weights rest", index), Task(rest * self._first_share, way)

    def _forward(self) -> Iterator[tuple[Hashable, Task]]:
        by_stage = [[i for i, s in enumerate(self._segments) if s.stage == j] for j in range(self.mapping.pipeline)]
        for microbatch in range(self.training.layout.microbatches):
            for indices in by_stage:
                for position, index in enumerate(indices):
                    yield from self._segment(index, microbatch, first=not position, last_index=indices[-1])

    def _segment(self, index: int, microbatch: int, *, first: bool, last_index: int) -> Iterator[tuple[Hashable, Task]]:
        """A segment's pass, then its messages, behind which the stage goes on."""
        segment = self._segments[index]
        after: list[tuple[Hashable, float]] = [] if microbatch else [(("weights", index), 0.0)]
        if not first:
            after.append((("posted", index - 1, microbatch), 0.0))
        elif microbatch:
            after.append((("posted", last_index, microbatch - 1), 0.0))
        if first and index:
            after.append((("forward", index - 1, microbatch), self.training.message_ns))
        pass_ns = self._forward_ns(segment) * (1.0 if microbatch else self._first_share)
        yield ("forward", index, microbatch), Task(pass_ns, (), tuple(after))
        posted: list[tuple[Hashable, float]] = [(("forward", index, microbatch), 0.0)]
        for name, part, duration in self._messages(segment):
            if microbatch >= ON_THE_WAY:
                posted.append(((name, index, microbatch - ON_THE_WAY), 0.0))
            slot: list[tuple[Hashable, float]] = []
            if microbatch >= self.mapping.slots:
                slot.append((("backward", part, microbatch - self.mapping.slots), 0.0))
            came = (("forward", index, microbatch), self.devices.latency_ns)
            yield (name, index, microbatch), Task(duration, self._resources(segment, part), (came, *slot))
        yield ("posted", index, microbatch), Task(0.0, (), tuple(posted))

    def _backward(self) -> Iterator[tuple[Hashable, Task]]:
        layout = split_where_it_helps(self.training.layout, self.training.tensor, self.mapping.mode)
        dgrad, wgrad = self._dgrad_ns / layout.chunks, self.training.wgrad_ns / layout.chunks
        of_chunk = {
            Kind.FORWARD: self._again_ns / layout.chunks,
            Kind.BACKWARD: dgrad if layout.split else dgrad + wgrad,
            Kind.WGRAD: wgrad,
        }
        order = recompute_order(layout, ahead=ahead_with(layout, self.mapping.slots))
        for stage in range(layout.stages):
            before: Hashable | None = None
            for kind, chunk, microbatch in order:
                part = layout.part(stage, chunk)
                name = NAMES[kind], part, microbatch
                after = [(before, 0.0)] if before is not None else []
                after += self._needs(kind, part, microbatch)
                yield name, Task(of_chunk[kind], (), tuple(after))
                before = name

    def _needs(self, kind: Kind, part: int, microbatch: int) -> list[tuple[Hashable, float]]:
        if kind is Kind.FORWARD:
            return [
                ((name, index, microbatch), 0.0)
                for index, segment in enumerate(self._segments)
                for name, taker, _ in self._messages(segment)
                if taker == part
            ]
        if kind is Kind.WGRAD or part + 1 == self.training.layout.parts:
            return []
        return [(("backward", part + 1, microbatch), self.training.message_ns)]


def segments(partition: Partition) -> Iterator[Segment]:
    """In the order of the forward pass."""
    for stage in range(partition.forward_stages):
        layer, after = partition.span(stage)
        while layer < after:
            part = partition.part(layer)
            end = min(after, (part + 1) * partition.part_layers)
            end = layer + 1 if partition.mode is Mode.LAYERS else end
            ends_part = partition.begins(end) and end < partition.layers
            yield Segment(stage, part, end - layer, part + 1 if ends_part else None)
            layer = end
