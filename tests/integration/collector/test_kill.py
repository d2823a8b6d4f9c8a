"""The loss contract, against a collector that is killed under load: nothing acknowledged is lost or kept twice."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest
from grpc import aio

from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.integration.collector.conftest import StartProcess
from tests.integration.collector.support import RUN, CollectorProcess, RankStream, batch, hello, identity, summary

RANKS = 4
ROUNDS = int(os.environ.get("MEGATRONAPP_KILL_ROUNDS", "3"))
"""100 for the full proof."""


@dataclass
class Sender:
    """A rank that keeps what is not acknowledged and sends it again, as the scan plug-in does."""

    rank: int
    address: str
    next_seq: int = 1
    acked: int = 0
    unacked: dict[int, trace_pb2.TraceMessage] = field(default_factory=dict)
    stopping: bool = False

    async def run(self) -> None:
        while not (self.stopping and not self.unacked):
            try:
                await self._connection()
            except aio.AioRpcError:
                await asyncio.sleep(0.05)

    async def _connection(self) -> None:
        rank = RankStream(self.address)
        reading = asyncio.create_task(self._read(rank))
        try:
            await rank.send(hello(identity(self.rank), world=RANKS), *list(self.unacked.values()))
            while not reading.done() and not (self.stopping and not self.unacked):
                if not self.stopping and len(self.unacked) < 200:
                    await rank.send(self._make())
                await asyncio.sleep(0.001)
            if reading.done():
                await reading
        except asyncio.InvalidStateError:
            pass
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await rank.cut()

    def _make(self) -> trace_pb2.TraceMessage:
        seq = self.next_seq
        self.next_seq += 1
        step = (seq + 1) // 2
        message = summary(seq, step) if seq % 2 else batch(seq, step)
        self.unacked[seq] = message
        return message

    async def _read(self, rank: RankStream) -> None:
        while (reply := await rank.call.read()) is not aio.EOF:
            self.acked = max(self.acked, reply.ack.seq)
            for seq in [seq for seq in self.unacked if seq <= self.acked]:
                del self.unacked[seq]


@pytest.mark.timeout(60 + 10 * ROUNDS)
async def test_nothing_acknowledged_is_lost_and_nothing_is_kept_twice(process: StartProcess) -> None:
    chance = random.Random(7)
    collector = process(FLUSH_SECONDS="0.3", FLUSH_STEPS="40", SEGMENT_BYTES="65536", FSYNC="false")
    await collector.until_ready()
    senders = [Sender(rank, collector.address) for rank in range(RANKS)]
    running = [asyncio.create_task(sender.run()) for sender in senders]

    for _ in range(ROUNDS):
        await asyncio.sleep(chance.uniform(0.05, 1.0))
        collector.kill()
        collector.start()
        await collector.until_ready()
    for sender in senders:
        sender.stopping = True
    await asyncio.wait_for(asyncio.gather(*running), 60)

    summaries, spans = await _stored(collector)
    collector.stop()
    for sender in senders:
        assert sender.acked == sender.next_seq - 1
        steps = [(seq + 1) // 2 for seq in range(1, sender.acked + 1)]
        assert summaries[sender.rank] == Counter(steps[::2])
        assert spans[sender.rank] == dict.fromkeys(steps[1::2], 4)


async def _stored(collector: CollectorProcess) -> tuple[dict[int, Counter[int]], dict[int, Counter[int]]]:
    """By rank: how often each step's summary, and how many of each step's spans are there."""
    summaries = {rank: Counter[int]() for rank in range(RANKS)}
    spans = {rank: Counter[int]() for rank in range(RANKS)}
    async with aio.insecure_channel(collector.address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        query = trace_pb2_grpc.TraceQueryStub(channel)
        steps = await query.ListSteps(trace_pb2.ListStepsRequest(run=RUN))
        rows = zip(np.frombuffer(steps.rank, "<u4").tolist(), np.frombuffer(steps.step, "<u8").tolist(), strict=True)
        for rank, step in rows:
            summaries[rank][step] += 1
        async for item in query.ReadSpans(trace_pb2.ReadSpansRequest(run=RUN, from_step=1)):
            spans[item.rank][item.batch.step] += item.batch.count
    return summaries, spans
