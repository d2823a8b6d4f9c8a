"""One job's records, whatever they hold, keep no other job from being judged."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.findings import Finding, Kind
from megatronapp.core.quarantine import entries, release
from megatronapp.core.trace.values import Identity
from megatronapp.detector import app, containment
from megatronapp.detector.app import Detector
from megatronapp.detector.engine import Engine
from megatronapp.detector.settings import DetectorSettings
from megatronapp.v1 import trace_pb2
from tests.integration.detector.test_service import next_page, publish
from tests.support import hostile
from tests.support.simulated import GPU, Fault, Job, Layout

EVIL, EVIL_JOB = "run-evil", "team-a/evil"
HUGE = 2**32 - 1


def innocent() -> Job:
    """A job whose rank 1 is slow from step 26 on; it runs now."""
    job = Job(Layout(), GPU, (Fault("compute", (1,), 26, 1.2),), seed=1)
    job.clock_ns = time.time_ns() - 100 * 10**9
    return job


def evil(attempt: int = 1) -> Job:
    job = Job(Layout(), GPU, seed=2, run=EVIL, attempt=attempt)
    job.clock_ns = time.time_ns() - 10**9
    return job


def of_evil(message: trace_pb2.RankMessage) -> trace_pb2.RankMessage:
    message.identity.job = EVIL_JOB
    return message


def hello_with(change: Callable[[trace_pb2.Hello], None], attempt: int = 1) -> trace_pb2.RankMessage:
    message = of_evil(evil(attempt).hellos()[2])
    change(message.message.hello)
    return message


def _index(hello: trace_pb2.Hello) -> None:
    hello.communicators[0].index = HUGE


def _microbatches(hello: trace_pb2.Hello) -> None:
    hello.schedule.microbatches = HUGE


def _chunks(hello: trace_pb2.Hello) -> None:
    hello.placement.sizes.virtual_pipeline = HUGE


def _world(hello: trace_pb2.Hello) -> None:
    hello.placement.sizes.world = HUGE


def _nothing(hello: trace_pb2.Hello) -> None:
    pass


CASES = [(_index, 1), (_microbatches, 1), (_chunks, 1), (_world, 1), (_nothing, HUGE)]


def detector_on(bus: MemoryBus, registry: CollectorRegistry | None = None) -> Detector:
    return Detector(DetectorSettings(tick_seconds=0.02), bus, registry or CollectorRegistry())


async def send(bus: MemoryBus, *messages: trace_pb2.RankMessage) -> None:
    for message in messages:
        await bus.publish(Topic.STEPS, message.identity.run, message.SerializeToString())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.02)


def hello_requests(bus: MemoryBus) -> int:
    return len(bus._topic(Topic.HELLO_REQUEST).messages)


def suspended(registry: CollectorRegistry, job: str = EVIL_JOB) -> float | None:
    namespace, _, name = job.partition("/")
    labels = {"training_job": name, "namespace": namespace}
    return registry.get_sample_value("megatronapp_detector_suspended", labels)


def quarantined(registry: CollectorRegistry) -> float | None:
    labels = {"training_job": "evil", "namespace": "team-a"}
    return registry.get_sample_value("megatronapp_detector_quarantined_records_total", labels)


async def the_slow_rank_is_found(bus: MemoryBus, detector: Detector) -> Finding:
    found = await asyncio.wait_for(next_page(bus), 60)
    assert (found.kind, found.ranks) == (Kind.SLOW_GPU, (1,))
    assert detector.ready()
    return found


@pytest.mark.parametrize("late", [False, True], ids=["live", "in the backlog"])
@pytest.mark.parametrize(("change", "attempt"), CASES, ids=[change.__name__ + str(n) for change, n in CASES])
async def test_a_hello_that_cannot_be_true_is_set_aside(
    late: bool, change: Callable[[trace_pb2.Hello], None], attempt: int, quarantine_dir: Path
) -> None:
    bus, registry, job = MemoryBus(), CollectorRegistry(), innocent()
    detector, poison = detector_on(bus, registry), hello_with(change, attempt)
    if not late:
        await detector.start()
    await publish(bus, job, range(1, 10))
    await send(bus, poison, *map(of_evil, evil().step(1)))
    await publish(bus, job, range(10, 34))
    if late:
        await detector.start()

    await the_slow_rank_is_found(bus, detector)

    (kept,) = entries(quarantine_dir)
    assert kept.record == poison.SerializeToString()
    assert (kept.run, kept.job, kept.attempt, kept.rank) == (EVIL, EVIL_JOB, attempt, 2)
    assert str(HUGE) in kept.reason or "attempt" in kept.reason
    assert quarantined(registry) == 1
    await detector.stop()


@pytest.mark.parametrize("late", [False, True], ids=["live", "in the backlog"])
async def test_an_engine_that_fails_also_when_it_is_closed_is_suspended_and_no_other(
    late: bool, monkeypatch: pytest.MonkeyPatch, quarantine_dir: Path
) -> None:
    take = Engine.take

    def failing(engine: Engine, sender: Identity, message: trace_pb2.SentMessage, *known: Any) -> list[Finding]:
        if engine.run == EVIL and engine.attempt == 1:
            raise RuntimeError("a mistake")
        return take(engine, sender, message, *known)

    close = Engine.close
    monkeypatch.setattr(Engine, "take", failing)
    monkeypatch.setattr(Engine, "close", lambda e, now: _raise() if e.run == EVIL else close(e, now))
    bus, registry, job = MemoryBus(), CollectorRegistry(), innocent()
    detector = detector_on(bus, registry)
    if not late:
        await detector.start()
    await publish(bus, job, range(1, 20))
    await send(bus, *map(of_evil, evil().hellos()), *map(of_evil, evil().step(1)))
    await publish(bus, job, range(20, 34))
    if late:
        await detector.start()

    await the_slow_rank_is_found(bus, detector)
    assert suspended(registry) == 1
    assert quarantined(registry) == len(entries(quarantine_dir)) == containment.FAILURES
    await send(bus, *map(of_evil, evil(attempt=2).hellos()))
    await until(lambda: suspended(registry) is None)

    assert detector._engines.running[EVIL].attempt == 2
    await detector.stop()


async def test_a_suspended_job_comes_back_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containment, "SUSPENDED_SECONDS", 0.3)
    bus, registry = MemoryBus(), CollectorRegistry()
    detector = detector_on(bus, registry)
    await detector.start()
    await until(lambda: hello_requests(bus) == 1)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "take", _raise)
        await send(bus, *map(of_evil, evil().hellos()))
        await until(lambda: suspended(registry) == 1)

    await until(lambda: suspended(registry) is None)
    await until(lambda: hello_requests(bus) == 2)
    await send(bus, *map(of_evil, evil().hellos()))
    await until(lambda: EVIL in detector._engines.running)

    await detector.stop()


def _raise(*_: object) -> list[Finding]:
    raise RuntimeError("a mistake")


async def test_time_that_an_engine_fails_on_passes_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = Engine.tick
    monkeypatch.setattr(Engine, "tick", lambda e, now: _raise() if e.run == EVIL else tick(e, now))
    bus, registry, job = MemoryBus(), CollectorRegistry(), innocent()
    detector = detector_on(bus, registry)
    await detector.start()
    await send(bus, *map(of_evil, evil().hellos()))
    await until(lambda: suspended(registry) == 1)

    await publish(bus, job, range(1, 34))

    await the_slow_rank_is_found(bus, detector)
    await detector.stop()


async def test_a_job_that_cannot_be_exposed_leaves_the_others_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    bus, registry, job = MemoryBus(), CollectorRegistry(), innocent()
    detector = detector_on(bus, registry)
    await detector.start()
    await send(bus, *map(of_evil, evil().hellos()))
    await publish(bus, job, range(1, 34))
    await the_slow_rank_is_found(bus, detector)

    monkeypatch.setattr(detector._engines.running[EVIL], "ledger", None)
    text = generate_latest(registry).decode()

    assert "megatronapp_suspect_info{" in text
    assert 'training_job="simulated"' in text
    await detector.stop()


async def test_a_record_that_is_handed_back_goes_the_ordinary_way(
    monkeypatch: pytest.MonkeyPatch, quarantine_dir: Path
) -> None:
    monkeypatch.setattr(app, "RELEASED_SECONDS", 0.05)
    bus, job = MemoryBus(), innocent()
    detector = detector_on(bus)
    await detector.start()
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "take", _raise)
        await send(bus, job.hellos()[0])
        await until(lambda: quarantine_dir.is_dir() and bool(entries(quarantine_dir)))
    (kept,) = entries(quarantine_dir)

    release(quarantine_dir, kept.id)
    await until(lambda: 0 in detector._engines.running[job.run].assembler.members)
    await until(lambda: not list((quarantine_dir / "released").iterdir()))

    assert entries(quarantine_dir) == []
    await detector.stop()


async def test_a_record_of_a_job_that_is_left_out_waits_until_it_is_judged_again(
    monkeypatch: pytest.MonkeyPatch, quarantine_dir: Path
) -> None:
    monkeypatch.setattr(app, "RELEASED_SECONDS", 0.05)
    bus, registry = MemoryBus(), CollectorRegistry()
    detector = detector_on(bus, registry)
    await detector.start()
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "take", _raise)
        await send(bus, *map(of_evil, evil().hellos()[: containment.FAILURES]))
        await until(lambda: suspended(registry) == 1)
    release(quarantine_dir, entries(quarantine_dir)[0].id)

    await asyncio.sleep(0.5)
    waiting = list((quarantine_dir / "released").iterdir())
    monkeypatch.setattr(containment, "SUSPENDED_SECONDS", 0.0)
    await until(lambda: not list((quarantine_dir / "released").iterdir()))

    assert len(waiting) == 1
    assert EVIL in detector._engines.running
    await detector.stop()


async def test_a_run_stays_with_the_job_that_was_heard_of_first() -> None:
    bus, job = MemoryBus(), innocent()
    detector = detector_on(bus)
    await detector.start()
    await publish(bus, job, range(1, 20))
    stolen = [of_evil(message) for message in Job(Layout(), GPU, seed=3, run=job.run, attempt=9).hellos()]

    await send(bus, *stolen)
    await publish(bus, job, range(20, 34))

    found = await the_slow_rank_is_found(bus, detector)
    assert (found.job, found.attempt) == ("test/simulated", 1)
    await detector.stop()


async def test_a_detector_in_which_nothing_goes_on_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STUCK_SECONDS", 1.0)
    detector = detector_on(MemoryBus())
    await detector.start()
    await until(detector.ready)

    time.sleep(1.5)
    stuck = detector.ready()

    assert not stuck
    await until(detector.ready)
    await detector.stop()


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_no_field_of_another_job_s_messages_changes_what_is_found(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance, job = random.Random(seed), innocent()
    detector = Detector(
        DetectorSettings(quarantine_dir=tmp_path_factory.mktemp("aside")), MemoryBus(), CollectorRegistry()
    )
    for message in job.hellos() + [message for step in job.steps(1, 33) for message in step]:
        detector._take(message.SerializeToString())
        bad = hostile.message(chance, run=chance.choice([EVIL, job.run]), job=EVIL_JOB)
        detector._take(bad.SerializeToString())

    (found,) = [f for f in detector._engines.running[job.run].ledger.open if f.page]
    assert (found.kind, found.ranks, found.job) == (Kind.SLOW_GPU, (1,), "test/simulated")
    assert detector._engines.running[job.run].newest.step == 33


class Forgetful(MemoryBus):
    """Has lost its newest message between the detector's question and its reading."""

    async def newest(self, topic: str) -> str:
        return "1000000" if topic == Topic.STEPS else await super().newest(topic)


async def test_a_bus_that_lost_its_newest_message_while_clocks_were_set_back_does_not_silence_the_detector() -> None:
    bus, job = Forgetful(), innocent()
    await publish(bus, job, range(1, 10))
    detector = detector_on(bus)
    await detector.start()

    await publish(bus, job, range(10, 34))

    await the_slow_rank_is_found(bus, detector)
    await detector.stop()
