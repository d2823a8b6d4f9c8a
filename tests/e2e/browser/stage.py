"""A platform with a job on it, for looking at the page: the real services, fed by simulated ranks over gRPC.

`python -m tests.e2e.browser.stage [PORT [FOLDER]]` runs until it is interrupted and prints the page's address.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np

from megatronapp.cli.local_stack import LocalStack, Options, local_stack
from megatronapp.core.bus import Topic
from megatronapp.core.trace import columns
from megatronapp.gateway.notify.events import AlertReceived, GroupState
from megatronapp.gateway.notify.levels import Level
from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.support import simulated

SLOW_RANK = 3
SLOW_FROM = 60
HISTORY = 90
TOTAL_STEPS = 1200
INTERVAL, WINDOW = 10, 2
"""Detail is kept of so many steps in every so many."""


@dataclass
class Ranks:
    """The simulated ranks of one job, each with a stream of its own."""

    job: simulated.Job
    name: str = "local/demo"
    clock_ns: int = 0
    queues: list[asyncio.Queue[trace_pb2.TraceMessage]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    async def connect(self, address: str, token: str) -> list[asyncio.Task[None]]:
        self.queues = [asyncio.Queue() for _ in range(self.job.layout.world)]
        self.sent = [0] * self.job.layout.world
        self.clock_ns = time.time_ns() - HISTORY * 600_000_000
        for rank, message in enumerate(self.job.hellos()):
            hello = message.message.hello
            hello.identity.CopyFrom(message.identity)
            hello.identity.job = self.name
            hello.placement.host_unix_ns = hello.placement.host_clock_ns = time.time_ns()
            hello.placement.local_rank = rank % self.job.ranks_per_node
            hello.schedule.total_steps = TOTAL_STEPS
            hello.schedule.first_step = 1
            self.queues[rank].put_nowait(trace_pb2.TraceMessage(hello=hello))
        return [asyncio.create_task(self._stream(address, token, queue)) for queue in self.queues]

    async def _stream(self, address: str, token: str, queue: asyncio.Queue[trace_pb2.TraceMessage]) -> None:
        async def requests() -> AsyncIterator[trace_pb2.TraceMessage]:
            while True:
                yield await queue.get()

        async with grpc.aio.insecure_channel(address) as channel:
            stub = trace_pb2_grpc.TraceIngestStub(channel)
            async for _ in stub.Stream(requests(), metadata=[("authorization", f"Bearer {token}")]):
                pass

    def say(self, rank: int, **body: object) -> None:
        self.sent[rank] += 1
        self.queues[rank].put_nowait(trace_pb2.TraceMessage(seq=self.sent[rank], **body))  # type: ignore[arg-type]

    def all_read(self) -> bool:
        """Whether nothing waits to be sent."""
        return all(queue.empty() for queue in self.queues)

    def step(self, step: int) -> float:
        """Send one step of all ranks; returns its length in seconds."""
        traced = step % INTERVAL < WINDOW
        longest = 0
        for rank, message in enumerate(self.job.step(step)):
            summary = message.message.summary
            summary.start_ns, summary.traced = self.clock_ns, traced
            longest = max(longest, summary.duration_ns)
            loss = 2.1 + 6.5 * np.exp(-step / 45) + self.job.random.normal(0, 0.02)
            summary.progress.CopyFrom(
                trace_pb2.Progress(
                    loss=loss,
                    learning_rate=3e-4 * min(1, step / 30),
                    grad_norm=0.8 + self.job.random.exponential(0.2),
                    tokens_per_second=16_384 / (summary.duration_ns / 1e9),
                    total_steps=TOTAL_STEPS,
                )
            )
            if traced:
                self.say(rank, batch=self._batch(step, rank, summary))
            self.say(rank, summary=summary)
        self.clock_ns += longest
        return longest / 1e9

    def beat(self, step: int) -> None:
        control = trace_pb2.TraceControl(
            enabled=True, interval=INTERVAL, continuous_iterations=WINDOW, granularity=trace_pb2.GRANULARITY_BASE
        )
        for rank in range(self.job.layout.world):
            now = time.time_ns()
            beat = trace_pb2.Heartbeat(
                clock_ns=now, unix_ns=now, step=step, control=control, activity="forward", activity_since_ns=now - 10**8
            )
            self.say(rank, heartbeat=beat)

    def _batch(self, step: int, rank: int, summary: trace_pb2.StepSummary) -> trace_pb2.TraceBatch:
        """The step as forwards and backwards one after the other, then the wait for the other replica."""
        table = columns.summary_columns(summary)
        took = dict(zip((summary.names[i] for i in table["name"]), table["duration_sum_ns"].tolist(), strict=True))
        microbatches = self.job.layout.microbatches
        rows: list[tuple[str, int, int, int]] = [("step", summary.start_ns, summary.duration_ns, -1)]
        at = summary.start_ns
        for microbatch in range(microbatches):
            for name in ("forward", "backward"):
                length = took[name] // microbatches
                rows.append((name, at, length, microbatch))
                at += length
        rows.append(("all_reduce", at, took["all_reduce"], -1))
        rows.append(("optimizer", at + took["all_reduce"], took["optimizer"], -1))
        names = list(simulated.NAMES)
        batch = trace_pb2.TraceBatch(
            step=step,
            names=names,
            communicators=self.job.communicators(rank),
            reference_host_ns=summary.start_ns,
            last=True,
        )
        columns.fill_spans(
            batch,
            {
                "name": [names.index(row[0]) for row in rows],
                "kind": [simulated.KIND[row[0]] for row in rows],
                "start_ns": [row[1] for row in rows],
                "duration_ns": [row[2] for row in rows],
                "microbatch": [row[3] for row in rows],
                "communicator": [int(row[0] == "all_reduce") for row in rows],
                "sequence": [step * (row[0] == "all_reduce") for row in rows],
            },
        )
        return batch


def demo_job(*slow: int) -> simulated.Job:
    """A job with these slow ranks; SLOW_RANK when none is named."""
    faults = tuple(simulated.Fault("compute", (rank,), SLOW_FROM, 1.25) for rank in slow or (SLOW_RANK,))
    return simulated.Job(faults=faults, run="run-demo", compute_seconds=0.4, ranks_per_node=2)


async def tell_incidents(running: LocalStack) -> None:
    """What an Alertmanager had the gateway know in the last days: a node that was slow twice, and a link."""
    now, hour = time.time(), 3600.0
    slow = GroupState(
        group="slow",
        firing=True,
        name="SlowGpu",
        level=Level.P1,
        summary="Rank 3 computes slower",
        node="node-1",
        cause="compute",
        since_unix_seconds=now - 48 * hour,
    )
    link = slow.model_copy(update={"group": "link", "name": "SlowLink", "node": "node-0", "cause": "nic"})
    heard = [
        (48 * hour, slow),
        (47 * hour, slow.model_copy(update={"firing": False})),
        (24 * hour, link),
        (22 * hour, link.model_copy(update={"firing": False})),
        (hour, slow.model_copy(update={"since_unix_seconds": now - hour})),
    ]
    for age, state in heard:
        event = AlertReceived(at=now - age, state=state)
        await running.bus.publish(Topic.INCIDENTS, state.group, event.model_dump_json().encode())


async def feed(running: LocalStack, job: simulated.Job, *, live: bool) -> None:
    """A history at once, then, when live, a step each time one would have ended."""
    ranks = Ranks(job)
    streams = await ranks.connect(running.collector_address, running.token_file.read_text())
    try:
        for step in range(1, HISTORY + 1):
            ranks.step(step)
            await asyncio.sleep(0.002)
        step = HISTORY
        ranks.beat(step)
        while live:
            step += 1
            await asyncio.sleep(ranks.step(step))
            ranks.beat(step)
        await asyncio.Event().wait()
    finally:
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)


@asynccontextmanager
async def stage(
    *, live: bool, port: int = 0, folder: Path | None = None, job: simulated.Job | None = None
) -> AsyncIterator[LocalStack]:
    """The platform while it runs; its `link` is the page's address, with a one-time token."""
    with tempfile.TemporaryDirectory() as temporary:
        async with local_stack(Options(folder or Path(temporary), page_port=port)) as running:
            await tell_incidents(running)
            feeding = asyncio.create_task(feed(running, job or demo_job(), live=live))
            try:
                yield running
            finally:
                feeding.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await feeding


async def main() -> None:
    port, folder = (*sys.argv[1:], *("8090", "")[len(sys.argv) - 1 :])
    async with stage(live=True, port=int(port), folder=Path(folder) if folder else None) as running:
        print(running.link, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
