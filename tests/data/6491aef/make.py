"""Written by the code of commit 6491aef, run once: see README.md."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import yaml
from prometheus_client import CollectorRegistry

from megatronapp.collector.app import Collector
from megatronapp.collector.settings import CollectorSettings
from megatronapp.core.auth import AllowAll
from megatronapp.core.bus import MemoryBus
from megatronapp.core.trace.columns import fill_spans, fill_summary
from megatronapp.core.trainingjob import TrainingJob
from megatronapp.operator.reconcile import decide
from megatronapp.v1 import trace_pb2
from tests.integration.collector.support import RankStream
from tests.unit.operator.samples import report, running, suspicion, training_job

RUN, JOB, STEPS, RANKS = "run-of-6491aef", "team/gpt", 4, 2
NAMES = ["forward", "forward_send", "forward_recv", "all_reduce"]
MS = 1_000_000


def hello(rank: int) -> trace_pb2.TraceMessage:
    sizes = trace_pb2.ParallelSizes(world=RANKS, tensor=1, pipeline=RANKS, data=1, context=1, expert=1)
    place = trace_pb2.Placement(
        node=f"node-{rank}", pipeline=rank, sizes=sizes, host_unix_ns=10**18, host_clock_ns=rank * MS, pid=100 + rank
    )
    return trace_pb2.TraceMessage(
        hello=trace_pb2.Hello(
            identity=trace_pb2.Identity(run=RUN, job=JOB, attempt=1, rank=rank, incarnation=7 + rank),
            placement=place,
            communicators=[trace_pb2.Communicator(index=1, id="world:0-1", kind="world", ranks=range(RANKS))],
            device=trace_pb2.DEVICE_CPU,
            schedule=trace_pb2.Schedule(name="1f1b", microbatches=2, total_steps=100, parameters=10**6),
        )
    )


def summary(seq: int, step: int) -> trace_pb2.TraceMessage:
    body = trace_pb2.StepSummary(
        step=step, start_ns=step * 10 * MS, duration_ns=9 * MS, cpu_ns=5 * MS, names=["forward", "all_reduce"],
        traced=True, phases=[trace_pb2.PHASE_FIRST_STEP] if step == 1 else [],
        progress=trace_pb2.Progress(loss=3.0 - step / 10, learning_rate=1e-3, total_steps=100),
    )  # fmt: skip
    fill_summary(
        body,
        {
            "name": [0, 1], "kind": [1, 3], "count": [2, 1], "communicator": [0, 1], "chunk": [0, -1],
            "duration_sum_ns": [4 * MS, 2 * MS], "cpu_sum_ns": [3 * MS, 0], "tokens": [128, 0],
        },
    )  # fmt: skip
    return trace_pb2.TraceMessage(seq=seq, summary=body)


def batch(seq: int, step: int, rank: int) -> trace_pb2.TraceMessage:
    """Two microbatches, their messages and a collective."""
    body = trace_pb2.TraceBatch(step=step, names=NAMES, last=True)
    message = 2 if rank else 1
    fill_spans(
        body,
        {
            "start_ns": step * 10 * MS + np.arange(5) * MS,
            "duration_ns": np.full(5, MS // 2),
            "name": [0, 0, message, message, 3],
            "kind": [1, 1, 2, 2, 3],
            "microbatch": [0, 1, 0, 1, -1],
            "peer": [-1, -1, 1 - rank, 1 - rank, -1],
            "communicator": [0, 0, 0, 0, 1],
            "sequence": [0, 0, 2 * step - 1, 2 * step, step],
            "bytes": [0, 0, 4096, 4096, 64],
        },
    )
    return trace_pb2.TraceMessage(seq=seq, batch=body)


def beat(seq: int, step: int, rank: int, *, closing: bool) -> trace_pb2.TraceMessage:
    frontiers = [
        trace_pb2.Frontier(communicator=1, enqueued=step, started=step, completed=step, peer=-1),
        trace_pb2.Frontier(
            enqueued=2 * step, started=2 * step, completed=2 * step, peer=1 - rank, sending=rank == 0,
            operation="forward_send",
        ),
    ]  # fmt: skip
    heartbeat = trace_pb2.Heartbeat(clock_ns=step * 10 * MS, step=step, frontiers=frontiers, closing=closing)
    return trace_pb2.TraceMessage(seq=seq, heartbeat=heartbeat)


async def collect(folder: Path, **settings: object) -> Collector:
    given = {"grpc_port": 0, "data_dir": folder, "fsync": False} | settings
    collector = Collector(CollectorSettings(**given), MemoryBus(), CollectorRegistry(), AllowAll())
    await collector.start()
    for rank in range(RANKS):
        stream = RankStream(f"127.0.0.1:{collector.port}")
        await stream.send(hello(rank))
        seq = 0
        for step in range(1, STEPS + 1):
            await stream.send(
                summary(seq + 1, step), batch(seq + 2, step, rank), beat(seq + 3, step, rank, closing=False)
            )
            seq += 3
        await stream.send(beat(seq + 1, STEPS, rank, closing=rank == 0))
        await stream.until_acked(seq + 1)
        await stream.close()
    return collector


async def write(folder: Path) -> None:
    store = await collect(folder / "stored")
    await store.stop()
    await collect(folder / "killed", flush_steps=10_000, flush_seconds=3600)


def objects(folder: Path, source: Path) -> None:
    """Examples as they were, and a job with the status that the operator had written of it."""
    for path in sorted(source.glob("examples/*/*.yaml")):
        if "kind: TrainingJob" in path.read_text():
            shutil.copyfile(path, folder / f"{path.parent.name}-{path.name}")
    job = training_job(remediation={"mode": "ExcludeNode"}, plugins={"scan": {"interval": 5}})
    settled = running(job, report=report(suspicion()))
    status = decide(settled).status
    body = TrainingJob.model_validate(job.model_dump(by_alias=True) | {"status": status.model_dump(by_alias=True)})
    text = yaml.safe_dump(body.model_dump(mode="json", by_alias=True, exclude_none=True), sort_keys=False)
    (folder / "with-status.yaml").write_text(text)


if __name__ == "__main__":
    source, out = map(Path, sys.argv[1:])
    (out / "trainingjobs").mkdir(parents=True, exist_ok=True)
    objects(out / "trainingjobs", source)
    asyncio.run(write(out))
    os._exit(0)  # the second collector is killed: its rows are in the journal alone
