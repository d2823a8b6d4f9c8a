"""The detector and its store: what was found outlives the bus, and a store that is away loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.errors import UnavailableError
from megatronapp.core.findings import Finding, State
from megatronapp.core.findings_store import FindingsStore, MemoryBackend, Row
from megatronapp.core.findings_store.codec import decode
from megatronapp.core.findings_store.sqlite import SqliteBackend
from megatronapp.detector.app import Detector
from megatronapp.detector.settings import DetectorSettings
from tests.integration.detector.test_restart import LAST, slow_job
from tests.support.simulated import Job


async def publish(bus: MemoryBus, job: Job, first: int, last: int) -> None:
    messages = job.hellos() + [message for step in job.steps(first, last) for message in step]
    await bus.publish_all(Topic.STEPS, [(job.run, message.SerializeToString()) for message in messages])


def detector_on(
    bus: MemoryBus, store: FindingsStore | None, registry: CollectorRegistry | None = None, **settings: float
) -> Detector:
    return Detector(DetectorSettings(tick_seconds=0.05, **settings), bus, registry or CollectorRegistry(), store)  # type: ignore[arg-type]


async def until(true: Callable[[Sequence[Finding]], bool], store: FindingsStore) -> list[Finding]:
    """What the store holds, once it is as wanted."""
    async with asyncio.timeout(60):
        while not true(found := await store.find()):
            await asyncio.sleep(0.05)
    return found


async def first_life(store: FindingsStore, job: Job) -> Finding:
    """A detector on a bus that ends with it; the finding that it leaves open."""
    bus = MemoryBus()
    detector = detector_on(bus, store)
    await detector.start()
    await publish(bus, job, 1, LAST)
    (found,) = await until(lambda findings: any(f.page for f in findings), store)
    await detector.stop()
    return found


async def told_on(bus: MemoryBus) -> list[Finding]:
    if not await bus.newest(Topic.FINDINGS):
        return []
    return [decode(message.value) for message in await anext(bus.follow(Topic.FINDINGS))]  # type: ignore[arg-type]


async def test_an_open_finding_goes_on_when_its_job_comes_back_to_a_new_platform(tmp_path: Path) -> None:
    job = slow_job(to_step=LAST + 100)
    found = await first_life(FindingsStore(SqliteBackend(tmp_path / "findings")), job)
    bus, registry = MemoryBus(), CollectorRegistry()
    store = FindingsStore(SqliteBackend(tmp_path / "findings"))

    detector = detector_on(bus, store, registry)
    await detector.start()
    await publish(bus, job, LAST + 1, LAST + 130)
    (ended,) = await until(lambda findings: all(f.state is State.RESOLVED for f in findings), store)
    await detector.stop()

    assert (ended.id, ended.opened_unix_ns, ended.since_step) == (found.id, found.opened_unix_ns, found.since_step)
    assert LAST + 100 <= (ended.resolved_step or 0) <= LAST + 110
    assert {finding.id for finding in await told_on(bus)} == {found.id}
    assert "megatronapp_detections_total{" not in generate_latest(registry).decode()


async def test_an_open_finding_of_a_job_that_does_not_come_back_is_resolved(tmp_path: Path) -> None:
    store = FindingsStore(SqliteBackend(tmp_path / "findings"))
    found = await first_life(store, slow_job())
    bus = MemoryBus()

    detector = detector_on(bus, store, return_seconds=0.2)
    await detector.start()
    (ended,) = await until(lambda findings: findings[0].state is State.RESOLVED, store)
    await detector.stop()

    assert ended.id == found.id
    assert [finding.state for finding in await told_on(bus)] == [State.RESOLVED]


async def test_a_store_that_holds_nothing_learns_what_an_earlier_version_told_the_bus() -> None:
    bus, store = MemoryBus(), FindingsStore(MemoryBackend())
    earlier = detector_on(bus, None)
    await earlier.start()
    await publish(bus, slow_job(), 1, LAST)
    async with asyncio.timeout(60):
        while not any(finding.page for finding in await told_on(bus)):
            await asyncio.sleep(0.05)
    await earlier.stop()

    detector = detector_on(bus, store)
    await detector.start()
    found = await until(lambda findings: len(findings) == 1, store)
    await detector.stop()

    assert found == [(await told_on(bus))[-1]]


class FullDisk(MemoryBackend):
    def __init__(self) -> None:
        super().__init__()
        self.full = True

    async def write(self, row: Row, body: bytes, gone: Sequence[str]) -> None:
        if self.full:
            raise UnavailableError("no space left on device")
        await super().write(row, body, gone)


async def test_a_full_disk_keeps_no_news_from_the_bus_and_loses_no_finding() -> None:
    disk, bus = FullDisk(), MemoryBus()
    store = FindingsStore(disk)
    detector = detector_on(bus, store)
    await detector.start()
    await publish(bus, slow_job(), 1, LAST)
    async with asyncio.timeout(60):
        while not any(finding.page for finding in await told_on(bus)):
            await asyncio.sleep(0.05)
    before = await store.find()

    disk.full = False
    (found,) = await until(lambda findings: len(findings) == 1, store)
    await detector.stop()

    assert before == []
    assert found == (await told_on(bus))[-1]
