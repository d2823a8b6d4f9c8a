"""A rank as the collector sees one, and the collector as a process of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from grpc import aio

from megatronapp.core.trace.columns import fill_spans, fill_summary
from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.support.ports import free_port

RUN = "run-1"
JOB = "team/gpt"
END: Any = aio.EOF  # type: ignore[attr-defined]  # the stubs leave it out


def identity(rank: int = 0, *, incarnation: int = 1, attempt: int = 1) -> trace_pb2.Identity:
    return trace_pb2.Identity(run=RUN, job=JOB, attempt=attempt, rank=rank, incarnation=incarnation)


def hello(
    who: trace_pb2.Identity, *, world: int = 1, node: str = "node-a", offset_ns: int = 10**18
) -> trace_pb2.TraceMessage:
    placement = trace_pb2.Placement(
        node=node,
        data=who.rank,
        sizes=trace_pb2.ParallelSizes(world=world, data=world, pipeline=1, tensor=1),
        host_unix_ns=offset_ns,
        host_clock_ns=0,
    )
    group = trace_pb2.Communicator(index=1, id="dp:" + "-".join(map(str, range(world))), kind="dp", ranks=range(world))
    message = trace_pb2.Hello(identity=who, placement=placement, communicators=[group], device=trace_pb2.DEVICE_CPU)
    return trace_pb2.TraceMessage(hello=message)


def summary(seq: int, step: int) -> trace_pb2.TraceMessage:
    """10 ms: forward and backward 3 ms of CPU in 4 ms, 5 ms in an all-reduce, 1 ms elsewhere."""
    body = trace_pb2.StepSummary(
        step=step, start_ns=step * 10_000_000, duration_ns=10_000_000, names=["forward", "all_reduce"], traced=True
    )
    fill_summary(
        body,
        {
            "name": [0, 1],
            "kind": [trace_pb2.SPAN_KIND_COMPUTE, trace_pb2.SPAN_KIND_COLLECTIVE],
            "count": [1, 1],
            "communicator": [0, 1],
            "duration_sum_ns": [4_000_000, 5_000_000],
            "cpu_sum_ns": [3_000_000, 100_000],
        },
    )
    return trace_pb2.TraceMessage(seq=seq, summary=body)


def batch(seq: int, step: int, spans: int = 3) -> trace_pb2.TraceMessage:
    """`spans` forward passes and one all-reduce."""
    body = trace_pb2.TraceBatch(step=step, names=["forward", "all_reduce"], last=True)
    numbers = np.arange(spans + 1)
    fill_spans(
        body,
        {
            "start_ns": step * 10_000_000 + numbers * 1_000,
            "duration_ns": np.full(spans + 1, 900),
            "name": numbers == spans,
            "kind": np.where(numbers == spans, trace_pb2.SPAN_KIND_COLLECTIVE, trace_pb2.SPAN_KIND_COMPUTE),
            "microbatch": np.where(numbers == spans, -1, numbers),
            "communicator": numbers == spans,
            "sequence": np.where(numbers == spans, step, 0),
            "message": np.where(numbers == 0, MessageId(Direction.FORWARD, step).pack(), 0),
        },
    )
    return trace_pb2.TraceMessage(seq=seq, batch=body)


def closing(seq: int) -> trace_pb2.TraceMessage:
    return trace_pb2.TraceMessage(seq=seq, heartbeat=trace_pb2.Heartbeat(closing=True, phase=trace_pb2.PHASE_PAUSE))


class RankStream:
    """One rank's stream; `acked` is the newest acknowledgement."""

    def __init__(self, address: str, token: str = "") -> None:
        self.channel = aio.insecure_channel(address, options=[("grpc.max_send_message_length", -1)])
        metadata = (("authorization", f"Bearer {token}"),) if token else None
        self.call = trace_pb2_grpc.TraceIngestStub(self.channel).Stream(metadata=metadata)  # type: ignore[no-untyped-call]
        self.acked = 0

    async def send(self, *messages: trace_pb2.TraceMessage) -> None:
        for message in messages:
            await self.call.write(message)

    async def until_acked(self, seq: int) -> None:
        while self.acked < seq:
            reply = await self.call.read()
            assert reply is not END, f"the stream ended after ack {self.acked}: {await self.call.details()}"
            self.acked = max(self.acked, reply.ack.seq)

    async def control(self) -> trace_pb2.TraceControl:
        while True:
            reply = await self.call.read()
            if reply.HasField("control"):
                control: trace_pb2.TraceControl = reply.control
                return control

    async def status(self) -> aio.AioRpcError | None:
        return await ending(self.call)

    async def close(self) -> None:
        await self.call.done_writing()
        await self.status()
        await self.channel.close(None)

    async def cut(self) -> None:
        self.call.cancel()
        await self.channel.close(None)


async def ending(call: Any) -> aio.AioRpcError | None:
    """How a stream ends; None when all is well."""
    try:
        while await call.read() is not END:
            pass
    except aio.AioRpcError as error:
        return error
    return None


class CollectorProcess:
    """`python -m megatronapp.collector` on fixed ports, to be killed and started again over the same folder."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.port, self.http_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._log = folder / "collector.log"
        self._environment = os.environ | {
            "MEGATRONAPP_COLLECTOR_DATA_DIR": str(folder / "data"),
            "MEGATRONAPP_COLLECTOR_GRPC_PORT": str(self.port),
            "MEGATRONAPP_COLLECTOR_HTTP_PORT": str(self.http_port),
            **{f"MEGATRONAPP_COLLECTOR_{key}": value for key, value in (settings or {}).items()},
        }

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "megatronapp.collector"], env=self._environment, stdout=log, stderr=log
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(30) == 0, self._log.read_text()[-2000:]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    async def until_ready(self, ready: bool = True) -> None:
        for _ in range(600):
            status, _ = await asyncio.to_thread(self.get, "/readyz")
            if status == (200 if ready else 503):
                return
            assert self.process.poll() is None, self._log.read_text()[-2000:]
            await asyncio.sleep(0.05)
        raise AssertionError(f"not {'ready' if ready else 'unready'} in time: {self._log.read_text()[-2000:]}")
