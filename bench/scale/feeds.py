"""Feeds: a simulated job's steps into the detector's engines, in this process and in virtual time.

Messages: every rank's message is made, and goes through membership and assembler as in the service. Tables: Hellos go
that way; of the steps the StepTable is made at once, and enters the engine where the assembler hands it over. Tests
hold that both give the same tables, so the second is as honest wherever no message is lost, late or doubled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from bench.scale.delivery import Delivery
from bench.scale.job import NS, Job, Step
from bench.scale.nccl import NcclRecords
from bench.scale.protocol import Speaker
from bench.scale.tables import RowBook, TableMaker
from megatronapp.core.findings import Finding
from megatronapp.detector.assemble import Assembler
from megatronapp.detector.engine import Engine, Engines
from megatronapp.detector.steps import StepTable
from megatronapp.v1 import trace_pb2

TICK_NS = NS // 4
"""How often the service looks at time."""

Said = tuple[int, Finding]
"""When, in Unix time, and what."""


class Feed(Protocol):
    """Takes a job's steps in order; tells what the engine says."""

    engine_seconds: float

    def step(self, step: Step) -> Iterator[Said]: ...

    def close(self) -> Iterator[Said]: ...


class _TableAssembler(Assembler):
    """Hands over tables that were made elsewhere, when time passes."""

    def __init__(self, known: Assembler) -> None:
        super().__init__()
        self.members = known.members
        self.ready: list[StepTable] = []

    def expire(self, unix_ns: int) -> list[StepTable]:
        ready, self.ready = self.ready, []
        return ready


class TableFeed:
    def __init__(self, job: Job, nccl: NcclRecords | None = None) -> None:
        """nccl: what it tells, of a job with --nccl-trace."""
        self.engine_seconds = 0.0
        self._nccl = nccl
        self._job, self._book, self._engines = job, RowBook(job.families), Engines()
        self._speaker, self._attempt = Speaker(job, self._book), 0

    @property
    def engine(self) -> Engine:
        return self._engines.running[self._job.run]

    def step(self, step: Step) -> Iterator[Said]:
        if step.attempt != self._attempt:
            yield from self._begin(step)
        table, now = self._maker.table(step), int(step.ended_unix_ns.max())
        table = table if self._nccl is None else self._nccl.recorded(table)
        begun = time.thread_time()
        self._assembler.ready.append(table)
        found = self.engine.tick(now)
        self.engine_seconds += time.thread_time() - begun
        yield from ((now, finding) for finding in found)

    def _begin(self, step: Step) -> Iterator[Said]:
        self._attempt, now = step.attempt, step.began_unix_ns
        for rank in range(self._job.layout.world):
            hello = self._speaker.hello(rank, step.attempt)
            for finding in self._engines.feed(self._speaker.wrapped(rank, step.attempt, hello, now)):
                yield now, finding
        self._assembler = _TableAssembler(self.engine.assembler)
        self.engine.assembler = self._assembler
        self._maker = TableMaker(self._job, self._book, self._assembler.ranks)

    def close(self) -> Iterator[Said]:
        now = self._job.clock_ns
        yield from ((now, finding) for finding in self._engines.forget(self._job.run, now))


class MessageFeed:
    def __init__(self, job: Job, delivery: Delivery | None = None) -> None:
        self.engine_seconds = 0.0
        self._job, self._engines = job, Engines()
        self._speaker, self._attempt = Speaker(job, RowBook(job.families)), 0
        self._delivery = delivery or Delivery()
        self._way = self._delivery.begin(job)
        self._ticked = 0

    @property
    def engine(self) -> Engine:
        return self._engines.running[self._job.run]

    def step(self, step: Step) -> Iterator[Said]:
        if step.attempt != self._attempt:
            yield from self._begin(step)
        for rank, message in enumerate(self._speaker.summaries(step)):
            sent = int(step.ended_unix_ns[rank])
            self._way.send(step.number, self._speaker.wrapped(rank, step.attempt, message, sent))
        yield from self._until(int(step.ended_unix_ns.max()) + 1)

    def _begin(self, step: Step) -> Iterator[Said]:
        yield from self._until(step.began_unix_ns)
        self._attempt, self._ticked = step.attempt, step.began_unix_ns
        for rank in range(self._job.layout.world):
            hello = self._speaker.hello(rank, step.attempt)
            yield from self._feed(self._speaker.wrapped(rank, step.attempt, hello, step.began_unix_ns))

    def _until(self, now: int) -> Iterator[Said]:
        """What has arrived by then, and time in between."""
        for message in self._way.arrived(now):
            yield from self._tick(message.received_unix_ns)
            yield from self._feed(message)
        yield from self._tick(now)

    def _tick(self, now: int) -> Iterator[Said]:
        if self._attempt and now - self._ticked >= TICK_NS:
            self._ticked = now
            begun = time.thread_time()
            found = self.engine.tick(now)
            self.engine_seconds += time.thread_time() - begun
            yield from ((now, finding) for finding in found)

    def _feed(self, message: trace_pb2.RankMessage) -> Iterator[Said]:
        begun = time.thread_time()
        found = self._engines.feed(message)
        self.engine_seconds += time.thread_time() - begun
        yield from ((message.received_unix_ns, finding) for finding in found)

    def close(self) -> Iterator[Said]:
        now = self._job.clock_ns + 60 * NS
        yield from self._until(now)
        yield from ((now, finding) for finding in self._engines.forget(self._job.run, now))
