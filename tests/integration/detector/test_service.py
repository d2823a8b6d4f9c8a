"""The service on a bus: steps in, findings and metrics out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest

from megatronapp.core.bus import MemoryBus, Message, Topic
from megatronapp.core.findings import Finding, Kind, State
from megatronapp.detector.app import Detector
from megatronapp.detector.settings import DetectorSettings
from megatronapp.v1 import findings_pb2
from tests.support.simulated import GPU, Fault, Job, Layout


async def publish(bus: MemoryBus, job: Job, steps: range) -> None:
    for message in job.hellos() if steps.start == 1 else ():
        await bus.publish(Topic.STEPS, job.run, message.SerializeToString())
    for step in steps:
        for message in job.step(step):
            await bus.publish(Topic.STEPS, job.run, message.SerializeToString())


async def next_page(bus: MemoryBus, state: State = State.OPEN) -> Finding:
    async for message in bus.subscribe(Topic.FINDINGS, group="test", consumer="test"):
        await bus.ack(message, group="test")
        assert message.key == "run-1"
        finding = Finding.from_proto(findings_pb2.Finding.FromString(message.value))
        if finding.page and finding.state is state:
            return finding
    raise AssertionError("the subscription ended")


async def test_a_slow_rank_is_published_and_exposed_until_the_job_ends() -> None:
    bus, registry = MemoryBus(), CollectorRegistry()
    detector = Detector(DetectorSettings(tick_seconds=0.05, keep_ended_seconds=0), bus, registry)
    job = Job(Layout(), GPU, (Fault("compute", (1,), 26, 1.2),), seed=1)
    await detector.start()
    await asyncio.sleep(0.05)
    assert detector.ready()
    await bus.publish(Topic.STEPS, job.run, b"\xff not a message")
    await publish(bus, job, range(1, 34))

    finding = await asyncio.wait_for(next_page(bus), 60)

    assert (finding.kind, finding.ranks, finding.node) == (Kind.SLOW_GPU, (1,), "node-0")
    text = generate_latest(registry).decode()
    assert "megatronapp_suspect_info" in text
    assert 'kind="slow_gpu"' in text
    assert "megatronapp_step_duration_seconds_bucket" in text
    assert "megatronapp_detections_total" in text
    for rank in range(4):
        await bus.publish(Topic.STEPS, job.run, job.heartbeat(rank, 33, [], closing=True).SerializeToString())
    async with asyncio.timeout(60):
        while 'training_job="simulated"' in generate_latest(registry).decode():
            await asyncio.sleep(0.05)
    resolved = await asyncio.wait_for(next_page(bus, State.RESOLVED), 60)
    assert resolved.id == finding.id
    await detector.stop()


class SlowBus(MemoryBus):
    """Takes so long over each finding that the detector's next tick comes in between."""

    async def publish(self, topic: Topic, key: str, value: bytes) -> None:
        if topic is Topic.FINDINGS:
            await asyncio.sleep(0.1)
        await super().publish(topic, key, value)


async def test_findings_are_told_once_each_however_slow_the_bus_is() -> None:
    bus, job = SlowBus(), Job(Layout(), GPU, (Fault("compute", (1,), 26, 1.2),), seed=1)
    detector = Detector(DetectorSettings(tick_seconds=0.02), bus, CollectorRegistry())
    await detector.start()
    await publish(bus, job, range(1, 34))

    await asyncio.wait_for(next_page(bus), 60)
    await asyncio.sleep(0.5)

    assert detector.ready()
    await detector.stop()


class ReluctantBus(MemoryBus):
    """Hands out what it has one by one, so slowly that the detector's next tick comes in between."""

    async def follow(self, topic: str, *, from_start: bool = True) -> AsyncIterator[Sequence[Message]]:
        async for messages in super().follow(topic, from_start=from_start):
            for message in messages:
                yield [message]
                await asyncio.sleep(0.03)


async def test_no_step_is_judged_without_what_still_waits_on_the_bus() -> None:
    bus, job = ReluctantBus(), Job(Layout(), GPU, (), seed=1)
    job.clock_ns = time.time_ns() - 100 * 10**9
    detector = Detector(DetectorSettings(tick_seconds=0.01), bus, CollectorRegistry())
    await detector.start()
    while not await bus.newest(Topic.HELLO_REQUEST):  # what comes from now on is no backlog
        await asyncio.sleep(0.01)
    await publish(bus, job, range(1, 6))

    async with asyncio.timeout(60):
        while not (tables := [engine.newest for engine in detector._engines.running.values() if engine.newest]):
            await asyncio.sleep(0.01)
        while tables[-1].step < 5:
            tables += [engine.newest for engine in detector._engines.running.values() if engine.newest]
            await asyncio.sleep(0.01)
    await detector.stop()

    assert {table.missing for table in tables} == {()}


async def test_a_detector_that_starts_late_comes_to_the_same_findings() -> None:
    job = Job(Layout(), GPU, (Fault("compute", (1,), 26, 1.2),), seed=1)
    ids = []
    for late in (False, True):
        bus, job = MemoryBus(), Job(Layout(), GPU, (Fault("compute", (1,), 26, 1.2),), seed=1)
        detector = Detector(DetectorSettings(tick_seconds=0.05), bus, CollectorRegistry())
        if not late:
            await detector.start()
        job.clock_ns = time.time_ns() - 100 * 10**9
        await publish(bus, job, range(1, 34))
        if late:
            await detector.start()
        ids.append((await asyncio.wait_for(next_page(bus), 60)).id)
        await detector.stop()

    assert ids[0] == ids[1]


class Deaf(MemoryBus):
    """Its readers lose the first cancellation, as redis-py's may."""

    async def follow(self, topic: str, *, from_start: bool = True) -> AsyncIterator[Sequence[Message]]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()
        yield ()


async def test_a_detector_ends_though_a_cancellation_is_lost() -> None:
    detector = Detector(DetectorSettings(tick_seconds=0.02), Deaf(), CollectorRegistry())
    await detector.start()
    await asyncio.sleep(0.1)

    await asyncio.wait_for(detector.stop(), 30)

    assert detector.tasks == []
