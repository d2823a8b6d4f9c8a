"""Steps that a pipeline has really run: their orders, their times, and what their messages took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatronapp.core.pipeline.arrays import Floats, PassTimes, Whole
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.orders import Order
from megatronapp.core.pipeline.placement import Layout


@dataclass(frozen=True, slots=True)
class Recorded:
    """Whole steps of pipelines of one layout; several replicas count as several steps.

    begins and ends: (steps, stages, operations) in ns, on one clock within a step.
    """

    layout: Layout
    begins: Whole
    ends: Whole

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def durations(self) -> Whole:
        durations: Whole = np.maximum(1, self.ends - self.begins)
        return durations

    @property
    def pipeline_ns(self) -> Whole:
        """From the first begin to the last end, by step."""
        spans: Whole = self.ends.max(axis=(1, 2)) - self.begins.min(axis=(1, 2))
        return spans

    def orders(self, step: int) -> list[Order]:
        """What each stage ran in a step."""
        return [
            [self.layout.operation(int(number)) for number in np.argsort(begins, kind="stable")]
            for begins in self.begins[step]
        ]

    def message_ns(self, step: int | None = None) -> Whole:
        """What each operation's message took: (stages, operations), mean over steps, all but `step` where there are
        others.

        A message took what the operation began later than its stage was free and its input was made. Where stages'
        clocks differ, so does this.
        """
        waits = self._waits()
        others = [each for each in range(len(self)) if each != step] or [0]
        mean: Whole = np.rint(waits[others].mean(axis=0)).astype(np.int64)
        return mean

    def usual_message_ns(self) -> int:
        """The median over all operations that need a message."""
        return int(np.median(self.message_ns()[self._needs_message()])) if self.layout.stages > 1 else 0

    def pass_times(self, wgrad_share: float) -> PassTimes:
        """Mean times; where B was not split, W is this share of it."""
        return _split(self._by_lane().mean(axis=(0, 4)), wgrad_share, axis=1).transpose(1, 0, 2)

    def samples(self, wgrad_share: float) -> dict[tuple[Kind, int, int], Floats]:
        """All times by (kind, stage, chunk)."""
        times = _split(self._by_lane(), wgrad_share, axis=2)
        stages, chunks = self.layout.stages, self.layout.chunks
        return {
            (kind, stage, chunk): times[:, stage, kind, chunk].ravel()
            for kind in Kind
            for stage in range(stages)
            for chunk in range(chunks)
        }

    def _by_lane(self) -> Floats:
        layout = self.layout
        shape = (len(self), layout.stages, len(layout.kinds), layout.chunks, layout.microbatches)
        return self.durations.astype(np.float64).reshape(shape)

    def _waits(self) -> Whole:
        """(steps, stages, operations), 0 where no message is needed."""
        ready = _before_on_stage(self.begins, self.ends)
        made = np.full_like(self.begins, np.iinfo(np.int64).min)
        needs = self._needs_message()
        for stage, number in np.argwhere(needs):
            source, producing = self._producer(int(stage), self.layout.operation(int(number)))
            made[:, stage, number] = self.ends[:, source, producing]
        waits: Whole = np.where(needs, np.maximum(0, self.begins - np.maximum(ready, made)), 0)
        return waits

    def _needs_message(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        layout = self.layout
        needs = np.zeros((layout.stages, layout.operations), bool)
        for stage in range(layout.stages):
            for number, operation in enumerate(layout.all_operations()):
                source, _ = self._producer(stage, operation)
                needs[stage, number] = source not in (stage, -1)
        return needs

    def _producer(self, stage: int, operation: Operation) -> tuple[int, int]:
        """(stage, number) of the operation whose result is needed; (−1, −1) if none is."""
        kind, chunk, microbatch = operation
        part = self.layout.part(stage, chunk) + (-1 if kind is Kind.FORWARD else 1)
        if kind is Kind.WGRAD or not 0 <= part < self.layout.parts:
            return -1, -1
        source, there = self.layout.place(part)
        return source, self.layout.number(Operation(kind, there, microbatch))


def _before_on_stage(begins: Whole, ends: Whole) -> Whole:
    """When each operation's stage had ended what it did before; the step's begin for the first."""
    order = np.argsort(begins, axis=2, kind="stable")
    sorted_ends = np.take_along_axis(ends, order, axis=2)
    first = np.broadcast_to(begins.min(axis=(1, 2))[:, None, None], (*begins.shape[:2], 1))
    before = np.concatenate([first, sorted_ends[..., :-1]], axis=2)
    out = np.empty_like(before)
    np.put_along_axis(out, order, before, axis=2)
    return out


def _split(times: Floats, wgrad_share: float, axis: int) -> Floats:
    """Times with F, B and W along an axis that may have F and whole B only."""
    if times.shape[axis] == len(Kind):
        return times
    forward, backward = np.take(times, Kind.FORWARD, axis), np.take(times, Kind.BACKWARD, axis)
    return np.stack([forward, backward * (1 - wgrad_share), backward * wgrad_share], axis)
