"""Gateway and trace-collector together: what a rank sends is on the page's API, what a person asks reaches the rank."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpc import aio
from prometheus_client import CollectorRegistry

from megatronapp.collector.app import Collector
from megatronapp.collector.settings import CollectorSettings
from megatronapp.core.auth import AllowAll
from megatronapp.core.bus import MemoryBus
from megatronapp.core.trace.columns import fill_spans, fill_summary
from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.integration.gateway.conftest import OPERATOR, Served, Start
from tests.integration.gateway.support import RUN, SECOND_NS, heartbeat, hello, identity, summary

WISH = {"enabled": True, "interval": 3, "continuous_iterations": 1, "granularity": "full"}


class RankStream:
    """One rank's connection to the collector."""

    def __init__(self, address: str) -> None:
        self._channel = aio.insecure_channel(address)
        self._call = trace_pb2_grpc.TraceIngestStub(self._channel).Stream()
        self._seq = 0

    async def send(self, **body: object) -> None:
        message = trace_pb2.TraceMessage(seq=self._seq, **body)
        self._seq += 1
        await self._call.write(message)

    async def control(self) -> trace_pb2.TraceControl:
        while True:
            reply = await self._call.read()
            if reply.WhichOneof("body") == "control":
                return reply.control

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close(None)


@pytest.fixture
async def rank_and_gateway(start: Start, tmp_path: Path) -> AsyncIterator[tuple[RankStream, Served]]:
    bus = MemoryBus()
    settings = CollectorSettings(grpc_port=0, data_dir=tmp_path, fsync=False)
    collector = Collector(settings, bus, CollectorRegistry(), AllowAll())
    await collector.start()
    address = f"127.0.0.1:{collector.port}"
    served = await start(bus=bus, collector_addresses=(address,))
    rank = RankStream(address)
    greeting = hello(world=1)
    greeting.identity.CopyFrom(identity())
    await rank.send(hello=greeting)
    yield rank, served
    await rank.close()
    await collector.stop()


async def test_what_a_rank_sends_is_a_jobs_progress(rank_and_gateway: tuple[RankStream, Served]) -> None:
    rank, served = rank_and_gateway

    for step in range(1, 4):
        await rank.send(summary=summary(step, loss=3.0 - step / 10))

    job = await served.until(f"/api/v1/jobs/{RUN}", lambda job: job["step"] == 3)
    assert (job["job"], job["state"], job["loss"]) == ("team/gpt", "running", pytest.approx(2.7))


async def test_a_persons_wish_reaches_the_rank_and_comes_back(rank_and_gateway: tuple[RankStream, Served]) -> None:
    rank, served = rank_and_gateway
    path = f"/api/v1/jobs/{RUN}/trace-control"
    await served.until(f"/api/v1/jobs/{RUN}", lambda job: job["ranks_connected"] == 1)

    async with served.client(OPERATOR) as client:
        await client.put(path, json=WISH)
    told = await asyncio.wait_for(rank.control(), 30)
    await rank.send(heartbeat=heartbeat(control=told))

    status = await served.until(path, lambda status: status["in_force"] is not None)
    assert (told.interval, told.granularity) == (3, trace_pb2.GRANULARITY_FULL)
    assert status == {"requested": WISH, "in_force": WISH, "ranks": 1, "ranks_confirmed": 1}


async def test_steps_spans_and_clocks_are_read_from_the_store(rank_and_gateway: tuple[RankStream, Served]) -> None:
    rank, served = rank_and_gateway
    now = time.monotonic_ns()
    for step in (1, 2):
        await rank.send(batch=spans(step, now))
        await rank.send(summary=rows(step, now))
    await served.until(f"/api/v1/jobs/{RUN}", lambda job: job["step"] == 2)

    timeline = await served.until(f"/api/v1/jobs/{RUN}/timeline", lambda timeline: timeline["step"] == [1, 2])
    async with served.client() as client:
        clocks = (await client.get(f"/api/v1/jobs/{RUN}/clocks")).json()
        chrome = await client.get(f"/api/v1/jobs/{RUN}/trace", params={"from_step": 1, "format": "chrome"})
        perfetto = await client.get(f"/api/v1/jobs/{RUN}/trace", params={"from_step": 1, "ranks": "0"})

    assert timeline["duration_seconds"] == pytest.approx([0.5, 0.5])
    assert timeline["start_seconds"] == pytest.approx([0.0, 1.0])
    assert timeline["compute_seconds"] == pytest.approx([0.3, 0.3])
    assert timeline["traced"] == [True, True]
    assert [clock["rank"] for clock in clocks] == [0]
    names = [event["name"] for event in chrome.json()["traceEvents"] if event["ph"] == "X"]
    assert names.count("forward") == 2
    assert b"forward" in perfetto.content


def spans(step: int, now_ns: int) -> trace_pb2.TraceBatch:
    batch = trace_pb2.TraceBatch(step=step, names=["step", "forward"], last=True)
    start = now_ns + step * SECOND_NS
    fill_spans(
        batch,
        {
            "start_ns": [start, start],
            "duration_ns": [SECOND_NS // 2, 3 * SECOND_NS // 10],
            "cpu_ns": [SECOND_NS // 2, 3 * SECOND_NS // 10],
            "name": [0, 1],
            "kind": [trace_pb2.SPAN_KIND_PHASE, trace_pb2.SPAN_KIND_COMPUTE],
        },
    )
    return batch


def rows(step: int, now_ns: int) -> trace_pb2.StepSummary:
    result = trace_pb2.StepSummary(
        step=step, start_ns=now_ns + step * SECOND_NS, duration_ns=SECOND_NS // 2, names=["forward"], traced=True
    )
    total = [3 * SECOND_NS // 10]
    fill_summary(
        result,
        {
            "name": [0],
            "kind": [trace_pb2.SPAN_KIND_COMPUTE],
            "count": [1],
            "duration_sum_ns": total,
            "cpu_sum_ns": total,
        },
    )
    return result
