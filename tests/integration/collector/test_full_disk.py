"""A disk that takes no more: the limit on file sizes stands in for it, since it needs no privileges and fails alike."""

from __future__ import annotations

import asyncio
import resource
from unittest import mock

import grpc
import pytest
from grpc import aio

from megatronapp.collector.pipeline import STORE_MEMORY_FACTOR
from megatronapp.collector.store import Store
from megatronapp.core.errors import UnavailableError
from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.integration.collector.conftest import Start, StartProcess
from tests.integration.collector.support import RUN, CollectorProcess, RankStream, batch, hello, identity, summary

MEMORY = 1 << 16


def limit_files(collector: CollectorProcess, size: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.prlimit(collector.process.pid, resource.RLIMIT_FSIZE, (size, hard))


async def test_a_full_disk_refuses_and_loses_nothing_and_goes_on_when_there_is_room(process: StartProcess) -> None:
    collector = process(FLUSH_SECONDS="0.2")
    await collector.until_ready()
    rank = RankStream(collector.address)
    await rank.send(hello(identity()), summary(1, 1), batch(2, 1))
    await rank.until_acked(2)

    limit_files(collector, 20_000)  # more than its log, less than one batch
    await rank.send(batch(3, 3, spans=2_000))
    error = await rank.status()
    await collector.until_ready(ready=False)
    _, metrics = collector.get("/metrics")

    assert error is not None
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "free some disk space" in (error.details() or "")
    assert "megatronapp_trace_disk_writable 0.0" in metrics
    assert collector.get("/healthz")[0] == 200

    limit_files(collector, resource.RLIM_INFINITY)
    await collector.until_ready()
    again = RankStream(collector.address)
    await again.send(hello(identity()), *[batch(seq, seq, spans=2_000) for seq in range(3, 6)])
    await again.until_acked(5)
    await again.close()
    assert await _events(collector) == {1: 4, 3: 2_001, 4: 2_001, 5: 2_001}
    collector.stop()


async def test_while_the_store_takes_nothing_no_more_is_taken_in_than_memory_may_hold(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "write", mock.Mock(side_effect=UnavailableError("the disk is full")))
    running = await start(flush_seconds=0.05, flush_bytes=MEMORY // STORE_MEMORY_FACTOR)
    rank = RankStream(running.address)
    await rank.send(hello(identity()), summary(1, 1))
    await rank.until_acked(1)
    while running.value("megatronapp_trace_disk_writable"):
        await asyncio.sleep(0.02)

    messages = [batch(seq, seq, spans=500) for seq in range(2, 40)]
    assert sum(message.ByteSize() for message in messages) > 2 * MEMORY
    error = None
    for message in messages:
        await rank.send(message)
        try:
            await rank.call.read()
        except aio.AioRpcError as refusal:
            error = refusal
            break

    assert error is not None
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "memory is used up" in (error.details() or "")
    assert running.collector._pipeline.buffered_bytes < MEMORY + 2 * messages[0].ByteSize()
    await rank.channel.close(None)


async def _events(collector: CollectorProcess) -> dict[int, int]:
    async with aio.insecure_channel(collector.address) as channel:
        query = trace_pb2_grpc.TraceQueryStub(channel)
        request = trace_pb2.ReadSpansRequest(run=RUN, from_step=1)
        return {item.batch.step: item.batch.count async for item in query.ReadSpans(request)}
