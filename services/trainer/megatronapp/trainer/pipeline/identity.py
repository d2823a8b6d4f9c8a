"""The names of the messages of megatron-core's schedules, for each stage in the order in which it posts them. Pure.

A schedule moves four streams through a stage: it sends and receives forward (activations) and backward (gradients).
Within a stream the order is fixed by the table of virtual microbatches, whichever way the schedule mixes the streams,
overlaps them or waits. So the n-th message of a stream has a name that both of its ends derive without talking.

The table (core/pipeline/orders.py): microbatches in groups; of each group chunk after chunk. Backward takes the same
table with the chunks reversed. The schedule without interleaving is the one with a single chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megatronapp.core.pipeline.orders import passes
from megatronapp.core.trace.message_id import Direction, MessageId


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One run of a schedule: a training step's, or one batch of an evaluation (`forward_only`).

    `group` is the number of microbatches that pass one chunk before the next chunk's turn (megatron-core's
    microbatch_group_size_per_vp_stage). Microbatches are numbered from `first`.
    """

    stages: int
    chunks: int
    microbatches: int
    group: int
    forward_only: bool = False
    first: int = 0

    def sends(self, stage: int, direction: Direction) -> list[MessageId]:
        """What a stage sends, in order."""
        return self._stream(stage, direction, sends=True)

    def receives(self, stage: int, direction: Direction) -> list[MessageId]:
        """What a stage receives, in order."""
        return self._stream(stage, direction, sends=False)

    def _stream(self, stage: int, direction: Direction, *, sends: bool) -> list[MessageId]:
        forward = direction is Direction.FORWARD
        if self.stages == 1 or (self.forward_only and not forward):
            return []
        downstream = forward is sends  # this stage is the upstream end of the message
        return [
            MessageId(direction, self.first + microbatch, chunk if downstream or stage else chunk - 1)
            for microbatch, chunk in self._table(forward)
            if self._crosses(stage, chunk, downstream=downstream)
        ]

    def _table(self, forward: bool) -> Iterator[tuple[int, int]]:
        for chunk, microbatch in passes(self.stages, self.chunks, self.microbatches, self.group):
            yield microbatch, chunk if forward else self.chunks - 1 - chunk

    def _crosses(self, stage: int, chunk: int, *, downstream: bool) -> bool:
        """Whether a chunk of a stage has a neighbour on that side: the model's two ends have none."""
        if downstream:
            return not (stage == self.stages - 1 and chunk == self.chunks - 1)
        return not (stage == 0 and chunk == 0)
