"""A detector that starts again in the middle of jobs, and after them, on a real redis-server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from megatronapp.core.bus import Topic
from megatronapp.core.bus.redis import RedisBus
from megatronapp.core.findings import Finding, State
from megatronapp.detector.app import Detector
from megatronapp.detector.settings import DetectorSettings
from megatronapp.v1 import findings_pb2
from tests.support.redis import RedisServer
from tests.support.simulated import GPU, Fault, Job, Layout

ONSET = 36
LAST = 50
FEW_MESSAGES = 100
"""Some 25 steps of the job."""


@pytest.fixture
async def bus(redis_server: RedisServer) -> AsyncIterator[RedisBus]:
    bus = RedisBus(redis_server.url)
    yield bus
    await bus.close()


def slow_job(to_step: int = 10**9) -> Job:
    """Four ranks, one of them slow, whose messages arrived in the last minutes."""
    job = Job(Layout(), GPU, (Fault("compute", (1,), ONSET, 1.2, to_step=to_step),), seed=1)
    job.clock_ns = time.time_ns() - 200 * 10**9
    return job


async def publish(bus: RedisBus, job: Job, first: int, last: int) -> None:
    messages = job.hellos() if first == 1 else []
    messages += [message for step in job.steps(first, last) for message in step]
    await bus.publish_all(Topic.STEPS, [(job.run, message.SerializeToString()) for message in messages])


async def goodbye(bus: RedisBus, job: Job, step: int) -> None:
    beats = [job.heartbeat(rank, step, [], closing=True) for rank in range(job.layout.world)]
    await bus.publish_all(Topic.STEPS, [(job.run, beat.SerializeToString()) for beat in beats])


async def published(bus: RedisBus) -> list[Finding]:
    """All findings on the bus, oldest first."""
    newest, findings = await bus.newest(Topic.FINDINGS), list[Finding]()
    if newest:
        async for messages in bus.follow(Topic.FINDINGS):
            findings += [Finding.from_proto(findings_pb2.Finding.FromString(m.value)) for m in messages]
            if newest in {m.id for m in messages}:
                break
    return findings


async def judged(bus: RedisBus, detector: Detector, step: int) -> None:
    """Wait until the detector has judged a step and published what there was to publish."""
    async with asyncio.timeout(60):
        while not any(e.newest and e.newest.step >= step for e in detector._engines.running.values()):
            await asyncio.sleep(0.05)
        while detector._backlog or not detector._outbox.empty:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)


def detector_on(bus: RedisBus, registry: CollectorRegistry | None = None, **settings: float) -> Detector:
    return Detector(DetectorSettings(tick_seconds=0.05, **settings), bus, registry or CollectorRegistry())


async def begin(bus: RedisBus, detector: Detector) -> None:
    """Start the first detector on a bus; what is published from now on is no backlog to it."""
    await detector.start()
    async with asyncio.timeout(30):
        while not await bus.newest(Topic.HELLO_REQUEST):
            await asyncio.sleep(0.02)


async def first_life(bus: RedisBus, job: Job) -> Finding:
    """A detector sees the job's first steps and ends; what it found."""
    detector = detector_on(bus)
    await begin(bus, detector)
    await publish(bus, job, 1, LAST)
    await judged(bus, detector, LAST)
    await detector.stop()
    (found,) = {finding.id: finding for finding in await published(bus)}.values()
    assert found.page
    return found


async def test_what_was_told_before_is_not_told_again(bus: RedisBus) -> None:
    job = slow_job()
    found = await first_life(bus, job)
    before, registry = await published(bus), CollectorRegistry()

    detector = detector_on(bus, registry)
    await detector.start()
    await judged(bus, detector, LAST)

    metrics = generate_latest(registry).decode()
    await detector.stop()
    assert await published(bus) == before
    assert f'rank="{found.ranks[0]}"' in metrics
    assert "megatronapp_detections_total{" not in metrics


async def test_a_finding_lives_on_when_the_bus_has_forgotten_the_jobs_beginning(bus: RedisBus) -> None:
    job = slow_job(to_step=LAST + 100)
    found = await first_life(bus, job)
    await publish(bus, job, LAST + 1, LAST + 60)
    await bus._redis.xtrim("megatronapp:steps", maxlen=FEW_MESSAGES, approximate=False)

    detector = detector_on(bus)
    await detector.start()
    await bus.publish_all(Topic.STEPS, [(job.run, m.SerializeToString()) for m in job.hellos()])
    await publish(bus, job, LAST + 61, LAST + 120)
    await judged(bus, detector, LAST + 120)
    await detector.stop()

    findings = await published(bus)
    assert {finding.id for finding in findings} == {found.id}
    assert [finding.state for finding in findings].count(State.RESOLVED) == 1
    assert findings[-1].state is State.RESOLVED
    assert LAST + 100 <= (findings[-1].resolved_step or 0) <= LAST + 110


async def test_a_fault_that_ended_while_nobody_judged_is_resolved(bus: RedisBus) -> None:
    job = slow_job(to_step=LAST + 2)
    found = await first_life(bus, job)
    await publish(bus, job, LAST + 1, LAST + 30)

    detector = detector_on(bus)
    await detector.start()
    await judged(bus, detector, LAST + 30)
    async with asyncio.timeout(60):
        while (last := (await published(bus))[-1]).state is State.OPEN:
            await asyncio.sleep(0.1)
    await detector.stop()

    assert (last.id, last.state) == (found.id, State.RESOLVED)
    assert last.resolved_step is not None
    assert last.resolved_step < LAST + 20


@pytest.mark.parametrize("good", [True, False], ids=["in good order", "without a word"])
async def test_findings_of_a_job_that_has_ended_stay_resolved(bus: RedisBus, good: bool) -> None:
    job, patience = slow_job(), {"keep_ended_seconds": 0.0, "keep_silent_seconds": 1.0}
    detector = detector_on(bus, **patience)
    await begin(bus, detector)
    await publish(bus, job, 1, LAST)
    if good:
        await goodbye(bus, job, LAST)
    async with asyncio.timeout(60):
        while not (findings := await published(bus)) or findings[-1].state is State.OPEN:
            await asyncio.sleep(0.1)
    await detector.stop()

    registry = CollectorRegistry()
    again = detector_on(bus, registry, **patience)
    await again.start()
    await asyncio.sleep(2)
    await again.stop()

    assert await published(bus) == findings
    assert "suspect_info{" not in generate_latest(registry).decode()


async def test_a_job_that_ended_while_nobody_judged_leaves_nothing_open(bus: RedisBus) -> None:
    job = slow_job()
    found = await first_life(bus, job)
    await goodbye(bus, job, LAST)

    detector = detector_on(bus, keep_ended_seconds=0)
    await detector.start()
    async with asyncio.timeout(60):
        while (findings := await published(bus))[-1].state is State.OPEN:
            await asyncio.sleep(0.1)
    await detector.stop()

    assert {finding.id for finding in findings} == {found.id}


@pytest.mark.parametrize("others", [True, False], ids=["of others it does", "nor any other"])
async def test_findings_of_a_job_that_the_bus_knows_no_more_are_resolved(bus: RedisBus, others: bool) -> None:
    job = slow_job()
    found = await first_life(bus, job)
    await bus._redis.delete("megatronapp:steps")
    if others:
        other = Job(Layout(), GPU, seed=2, run="run-2")
        other.clock_ns = time.time_ns() - 100 * 10**9
        await publish(bus, other, 1, 5)

    detector = detector_on(bus, return_seconds=0.5)
    await detector.start()
    async with asyncio.timeout(30):
        while (findings := await published(bus))[-1].state is State.OPEN:
            await asyncio.sleep(0.1)
    await detector.stop()

    assert (findings[-1].id, findings[-1].state) == (found.id, State.RESOLVED)
