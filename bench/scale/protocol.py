"""Protocol: a simulated job as the messages that its ranks' agents would send."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from bench.scale.families import NAMES
from bench.scale.job import Job, Step
from bench.scale.tables import RowBook, group_id, values
from megatronapp.core.trace.columns import fill_summary
from megatronapp.v1 import trace_pb2

JOB_NAME = "bench/scale"


class Speaker:
    """Makes the messages of one job; numbers each rank's, as its agent does."""

    def __init__(self, job: Job, book: RowBook) -> None:
        self._job, self._book = job, book
        self._seq = np.zeros(job.layout.world, np.int64)
        self._groups = [trace_pb2.Communicator(id=g.id, kind=g.kind, ranks=g.ranks) for g in book.groups]
        self._place = {group.id: place for place, group in enumerate(book.groups)}

    def identity(self, rank: int, attempt: int) -> trace_pb2.Identity:
        return trace_pb2.Identity(
            run=self._job.run, job=JOB_NAME, attempt=attempt, rank=rank, incarnation=attempt * 10**6 + rank + 1
        )

    def wrapped(
        self, rank: int, attempt: int, message: trace_pb2.TraceMessage, received_unix_ns: int
    ) -> trace_pb2.RankMessage:
        """As the collector hands it on; clocks are not aligned."""
        return trace_pb2.RankMessage(
            identity=self.identity(rank, attempt),
            message=message,
            received_unix_ns=received_unix_ns,
            clock_error_ns=-1,
        )

    def hello(self, rank: int, attempt: int) -> trace_pb2.TraceMessage:
        """Begins a rank's numbers anew."""
        self._seq[rank] = 0
        body = trace_pb2.Hello(
            identity=self.identity(rank, attempt),
            placement=self._placement(rank),
            communicators=self._communicators(rank),
            device=trace_pb2.DEVICE_CUDA,
            schedule=self._schedule(),
        )
        return trace_pb2.TraceMessage(hello=body)

    def _placement(self, rank: int) -> trace_pb2.Placement:
        layout = self._job.layout
        tensor, data, pipeline = layout.place(rank)
        sizes = trace_pb2.ParallelSizes(
            world=layout.world,
            tensor=layout.tp,
            pipeline=layout.pp,
            data=layout.dp,
            context=1,
            expert=layout.ep,
            virtual_pipeline=layout.vpp,
        )
        return trace_pb2.Placement(
            node=f"node-{rank // layout.ranks_per_node}",
            gpu_uuid=f"GPU-{rank}",
            device_id=f"GPU-{rank}",
            local_rank=rank % layout.ranks_per_node,
            tensor=tensor,
            data=data,
            pipeline=pipeline,
            expert=data % layout.ep,
            sizes=sizes,
            host_unix_ns=self._job.clock_ns,
            host_clock_ns=self._job.clock_ns,
        )

    def _communicators(self, rank: int) -> Iterator[trace_pb2.Communicator]:
        for index, (kind, ranks) in enumerate(self._job.layout.groups(rank), 1):
            known = self._groups[self._place[group_id(kind, ranks)]]
            known.index = index
            yield known

    def _schedule(self) -> trace_pb2.Schedule:
        layout = self._job.layout
        name = "none" if layout.pp == 1 else "interleaved" if layout.vpp > 1 else "1f1b"
        return trace_pb2.Schedule(name=name, microbatches=layout.microbatches, first_step=self._job.next_step)

    def summaries(self, step: Step) -> Iterator[trace_pb2.TraceMessage]:
        """One a rank, in order."""
        present = self._book.present(step)
        of = values(step, present)
        columns: dict[str, np.ndarray] = {
            "name": present.operation,
            "kind": present.kind,
            "chunk": present.chunk,
            "communicator": present.group,
            "peer": present.peer,
            "count": present.count,
            "duration_sum_ns": of.total_ns,
            "duration_min_ns": of.least_ns,
            "duration_max_ns": of.most_ns,
            "tokens": of.tokens,
            "length_squares": of.squares,
            "bytes": of.bytes,
        }
        borders = np.searchsorted(present.rank, np.arange(self._job.layout.world + 1)).tolist()
        self._seq += 1
        for rank, (first, last) in enumerate(itertools.pairwise(borders)):
            body = trace_pb2.StepSummary(
                step=step.number,
                start_ns=int(step.ended_unix_ns[rank] - step.duration_ns[rank]),
                duration_ns=int(step.duration_ns[rank]),
                names=NAMES,
                phases=step.phases,
            )
            fill_summary(body, {name: column[first:last] for name, column in columns.items()})
            yield trace_pb2.TraceMessage(seq=int(self._seq[rank]), summary=body)

    def heartbeat(
        self,
        rank: int,
        step: int,
        unix_ns: int,
        phase: trace_pb2.Phase = trace_pb2.PHASE_STEP,
        *,
        closing: bool = False,
    ) -> trace_pb2.TraceMessage:
        """All collectives of the steps before are through."""
        self._seq[rank] += 1
        frontiers = [
            trace_pb2.Frontier(communicator=index, peer=-1, enqueued=step, started=step, completed=step)
            for index, _ in enumerate(self._book.kinds, 1)
        ]
        beat = trace_pb2.Heartbeat(
            clock_ns=unix_ns, unix_ns=unix_ns, step=step, frontiers=frontiers, phase=phase, closing=closing
        )
        return trace_pb2.TraceMessage(seq=int(self._seq[rank]), heartbeat=beat)
