"""Schedule: when each pass of a pipeline begins, given how long each takes; all replicas at once.

A pass waits for the one before on its stage, for the message that it needs, and (1F1B) for the message that the pass
before has sent: both messages of a pair of stages go in one exchange, and the stage waits for both. The receiver takes
a message when it has done what came before, so a sender waits for a slow receiver as a receiver for a slow sender.
The interleaved schedule overlaps its messages with its passes, and its sends wait for nobody.

Passes are numbered by their depth in this graph: those of one depth wait for none of each other, and are computed by a
handful of numpy calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from megatronapp.detector.steps import Floats, Ints
from megatronapp.detector.whatif.schedule import BACKWARD, FORWARD, Compute, stage_order


@dataclass(frozen=True, slots=True)
class Times:
    """Arrays of (stages, passes in the stage's order, replicas), in seconds from the step's first begin."""

    begin: Floats
    end: Floats
    received: Floats
    """What the pass has waited for its message, after the exchange's send."""
    sent: Floats
    """What the exchange after the pass has waited for its send to be taken."""
    coupled: Floats
    """What it has waited for the other replicas of its expert group."""


class Pipeline:
    """The order of passes of every stage. Use `pipeline()`, which makes one of each kind."""

    def __init__(self, stages: int, chunks: int, microbatches: int) -> None:
        orders = [stage_order(stage, stages, chunks, microbatches) for stage in range(stages)]
        self.stages, self.chunks, self.microbatches = stages, chunks, microbatches
        self.blocking = chunks == 1
        passes = [one for order in orders for one in order]
        number = {one: index for index, one in enumerate(passes)}
        self.length = len(orders[0])
        self.backward = np.array([[one.operation == BACKWARD for one in order] for order in orders])
        self.chunk = np.array([[one.chunk for one in order] for order in orders])
        self.pass_index = np.array([[one.chunk * microbatches + one.microbatch for one in order] for order in orders])
        none = len(passes) + stages
        self._none = none
        previous = np.array([i - 1 if i % self.length else len(passes) + i // self.length for i in range(len(passes))])
        source = np.array([self._neighbour(number, one, -1) for one in passes])
        target = np.array([self._neighbour(number, one, +1) for one in passes])
        self.receives, self.sends = (source != none).reshape(stages, -1), (target != none).reshape(stages, -1)
        self._wire(passes, previous, source, target)

    def _neighbour(self, number: dict[Compute, int], one: Compute, ahead: int) -> int:
        """The pass on another stage that sends to (ahead −1) or takes from (+1) this one."""
        towards = ahead if one.operation == FORWARD else -ahead
        part = one.chunk * self.stages + one.stage + towards
        if not 0 <= part < self.stages * self.chunks or self.stages == 1:
            return self._none
        chunk, stage = divmod(part, self.stages)
        return number[one._replace(stage=stage, chunk=chunk)]

    def _wire(self, passes: list[Compute], previous: Ints, source: Ints, target: Ints) -> None:
        """Number the passes by depth; `_inputs` are, of each, the pass before it, the one that sends to it, and the one
        that its predecessor's receiver does before taking."""
        count, none = len(passes), self._none
        extended = np.concatenate([target, np.full(self.stages + 1, none)])
        sent_to = extended[previous] if self.blocking else np.full(count, none)
        before = np.concatenate([previous, np.full(self.stages + 1, none)])
        taken_after = before[sent_to]
        inputs = np.stack([previous, source, taken_after])
        depth = _depths(inputs, count)
        order = np.argsort(depth, kind="stable")
        place = np.concatenate([np.argsort(order), np.arange(count, none + 1)])
        self._inputs = place[inputs][:, order]
        self._sent_to = place[sent_to][order]
        self._slices = np.flatnonzero(np.diff(depth[order], prepend=-1, append=depth.max() + 1)).tolist()
        self._order, self._place = order, place[:count]
        self._target, self._before_target = place[target], place[before[target]]

    def run(self, start: Floats, seconds: Floats, transfer: Floats, couple: int = 1) -> Times:
        """start: (stages, replicas); seconds: (stages, passes, replicas); transfer: of the message that each pass waits
        for, alike, 0 where it waits for none. couple: so many neighbouring replicas do each pass together."""
        count, replicas = len(self._order), start.shape[1]
        took = seconds.reshape(count, replicas)[self._order]
        moved = np.zeros((self._none + 1, replicas))
        moved[:count] = transfer.reshape(count, replicas)[self._order]
        end = np.full((self._none + 1, replicas), -np.inf)
        end[count : self._none] = start
        begin, alone = np.empty_like(took), np.empty_like(took)
        sent = moved[self._sent_to]
        for first, last in zip(self._slices[:-1], self._slices[1:], strict=True):
            before, source, taken = end.take(self._inputs[:, first:last], axis=0)
            ready = np.maximum(before, source) + moved[first:last]
            alone[first:last] = np.maximum(ready, np.maximum(before, taken) + sent[first:last])
            begin[first:last] = _together(alone[first:last], couple)
            end[first:last] = begin[first:last] + _together(took[first:last], couple)
        return self._times(begin, alone, end, moved, sent, took, couple)

    def _times(
        self, begin: Floats, alone: Floats, end: Floats, moved: Floats, sent: Floats, took: Floats, couple: int
    ) -> Times:
        shape = (self.stages, self.length, -1)
        before, _, taken = end[self._inputs]
        exchanged = np.maximum(np.maximum(before, taken) + sent, before)
        received = np.maximum(alone - exchanged, 0.0)[self._place]
        own_end = end[: len(begin)][self._place]
        if self.blocking:
            sends = np.maximum(end[self._before_target], own_end) + moved[self._target] - own_end
            sends = np.where(self.sends.reshape(-1, 1), sends, 0.0)
        else:
            sends = moved[self._target]
        coupled = (begin - alone + _together(took, couple) - took)[self._place]
        arrays = (begin[self._place], own_end, received, sends, coupled)
        return Times(*(array.reshape(shape) for array in arrays))


@lru_cache(maxsize=32)
def pipeline(stages: int, chunks: int, microbatches: int) -> Pipeline:
    return Pipeline(stages, chunks, microbatches)


def _together(values: Floats, couple: int) -> Floats:
    """Of each group of neighbouring replicas the latest."""
    if couple == 1:
        return values
    rows, replicas = values.shape
    latest = values.reshape(rows, replicas // couple, couple).max(axis=2, keepdims=True)
    return np.repeat(latest, couple, axis=2).reshape(rows, replicas)


def _depths(inputs: Ints, count: int) -> Ints:
    """1 + the largest depth of a pass's inputs; passes of a stage are in its order."""
    depth = np.zeros(int(inputs.max()) + 1, np.int64)
    depth[:count] = -1
    waiting = list(range(count))
    while waiting:
        left = []
        for one in waiting:
            of_inputs = depth[inputs[:, one]]
            if (of_inputs < 0).any():
                left.append(one)
            else:
                depth[one] = of_inputs.max() + 1
        if len(left) == len(waiting):
            raise ValueError("passes wait for each other in a circle")
        waiting = left
    return depth[:count]
