"""Several detectors share the jobs: two real processes over one Redis."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from megatronapp.core.bus import Topic, read_kept
from megatronapp.core.bus.redis import RedisBus
from megatronapp.core.findings import Finding, State
from megatronapp.core.findings_store.codec import decode
from tests.support.ports import free_port
from tests.support.redis import RedisServer
from tests.support.simulated import GPU, Fault, Job, Layout

RUNS = tuple(f"run-{number}" for number in range(6))
SLOW, HEALTHY = 26, 60
"""Steps between which a rank of each job is slow."""


class Replica:
    def __init__(self, name: str, redis_url: str, folder: Path) -> None:
        self.port = free_port()
        prefix = "MEGATRONAPP_DETECTOR_"
        settings = {"REPLICA": name, "REDIS_URL": redis_url, "HTTP_PORT": str(self.port)}
        settings["QUARANTINE_DIR"] = str(folder / name)
        environment = os.environ | {prefix + key: value for key, value in settings.items()}
        self.process = subprocess.Popen([sys.executable, "-m", "megatronapp.detector"], env=environment)

    async def owned(self) -> set[str]:
        """Namespaces and names of the jobs that it judges, by its own metrics."""
        text = await asyncio.to_thread(self._metrics)
        return set(re.findall(r'^megatronapp_detector_owner\{.*training_job="([^"]+)".*\} 1', text, re.MULTILINE))

    def _metrics(self) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(30)


class Jobs:
    """A job a run; a rank of each is slow for a while."""

    def __init__(self, bus: RedisBus) -> None:
        self.bus = bus
        fault = (Fault("compute", (1,), SLOW, 1.3, to_step=HEALTHY - 1),)
        self._jobs = [Job(Layout(), GPU, fault, seed=number, run=run) for number, run in enumerate(RUNS)]
        for job in self._jobs:
            job.clock_ns = time.time_ns() - 200 * 10**9

    async def play(self, first: int, last: int) -> None:
        messages = [message for job in self._jobs for message in (job.hellos() if first == 1 else [])]
        messages += [m for step in range(first, last + 1) for job in self._jobs for m in job.step(step)]
        for message in messages:
            message.identity.job = f"test/{message.identity.run}"
        await self.bus.publish_all(Topic.STEPS, [(m.identity.run, m.SerializeToString()) for m in messages])

    async def published(self) -> list[Finding]:
        return [decode(message.value) async for message in read_kept(self.bus, Topic.FINDINGS)]

    async def until(self, true: Callable[[list[Finding]], bool]) -> list[Finding]:
        async with asyncio.timeout(90):
            while not true(found := await self.published()):
                await asyncio.sleep(0.1)
        return found


def runs_paged(told: list[Finding]) -> set[str]:
    return {finding.run for finding in told if finding.page}


def runs_resolved(told: list[Finding]) -> set[str]:
    return {finding.run for finding in told if finding.page and finding.state is State.RESOLVED}


@pytest.fixture
async def jobs(redis_server: RedisServer) -> AsyncIterator[Jobs]:
    bus = RedisBus(redis_server.url)
    yield Jobs(bus)
    await bus.close()


@pytest.fixture
async def replicas(redis_server: RedisServer, tmp_path: Path) -> AsyncIterator[list[Replica]]:
    started = [Replica(name, redis_server.url, tmp_path) for name in ("detector-a", "detector-b")]
    yield started
    for replica in started:
        if replica.process.poll() is None:
            replica.end(signal.SIGKILL)


async def shared(replicas: list[Replica]) -> list[set[str]]:
    """Once each job is judged, by one of them, and each replica has some: those of each."""
    async with asyncio.timeout(60):
        while True:
            owned = [await replica.owned() for replica in replicas]
            if all(owned) and sorted(run for each in owned for run in each) == sorted(RUNS):
                return owned
            await asyncio.sleep(0.2)


async def test_each_job_is_judged_by_one_replica_and_pages_once(jobs: Jobs, replicas: list[Replica]) -> None:
    await jobs.play(1, SLOW - 1)
    await shared(replicas)

    await jobs.play(SLOW, SLOW + 9)
    told = await jobs.until(lambda found: runs_paged(found) == set(RUNS))

    assert len({finding.id for finding in told if finding.page}) == len(RUNS)


@pytest.mark.long
async def test_the_jobs_of_a_replica_that_is_killed_go_to_the_other(jobs: Jobs, replicas: list[Replica]) -> None:
    await jobs.play(1, SLOW - 1)
    await shared(replicas)
    await jobs.play(SLOW, SLOW + 9)
    before = await jobs.until(lambda found: runs_paged(found) == set(RUNS))
    dead, left = replicas

    dead.end(signal.SIGKILL)
    await shared([left])
    await jobs.play(SLOW + 10, HEALTHY + 10)
    after = await jobs.until(lambda found: runs_resolved(found) == set(RUNS))

    assert {finding.id for finding in after if finding.page} == {finding.id for finding in before if finding.page}


@pytest.mark.long
async def test_a_replica_that_stops_in_order_leaves_its_jobs_at_once(jobs: Jobs, replicas: list[Replica]) -> None:
    await jobs.play(1, SLOW - 1)
    await shared(replicas)

    replicas[1].end()

    assert await shared(replicas[:1]) == [set(RUNS)]
