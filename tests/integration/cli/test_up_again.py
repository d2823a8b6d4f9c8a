"""The platform on a laptop, started again over its folder: what it has found, and of whom, is still there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from megatronapp.cli.local_stack import LocalStack, Options, local_stack
from tests.integration.collector.support import RankStream
from tests.support.simulated import GPU, Fault, Job, Layout

ONSET, LAST = 26, 60


async def train(running: LocalStack, job: Job) -> None:
    """Send what the job's ranks say, as they would."""
    token = running.token_file.read_text()
    streams = [RankStream(running.collector_address, token) for _ in range(job.layout.world)]
    told = job.hellos() + [message for step in job.steps(1, LAST) for message in step]
    for message in told:
        rank = message.identity.rank
        if message.message.HasField("hello"):
            message.message.hello.identity.CopyFrom(message.identity)
        await streams[rank].send(message.message)
    for rank, stream in enumerate(streams):
        await stream.until_acked(max(m.message.seq for m in told if m.identity.rank == rank))
    for stream in streams:
        await stream.close()


async def ask(client: httpx.AsyncClient, path: str, true: Callable[[Any], bool]) -> Any:
    """The answer, once it is as wanted."""
    async with asyncio.timeout(60):
        while not true(found := (await client.get(path)).json()):
            await asyncio.sleep(0.05)
    return found


@asynccontextmanager
async def platform(folder: Path) -> AsyncIterator[tuple[LocalStack, httpx.AsyncClient]]:
    """The platform, and one who has opened its page."""
    async with local_stack(Options(folder, page_port=0)) as running:
        address = f"{running.page}api/v1"
        async with httpx.AsyncClient(base_url=address) as client:
            await client.get(running.link)  # its cookie is the session
            yield running, client


async def test_findings_and_their_jobs_outlive_a_restart(tmp_path: Path) -> None:
    job = Job(Layout(), GPU, (Fault("compute", (1,), ONSET, 1.2),), seed=1)
    async with platform(tmp_path) as (running, client):
        await train(running, job)
        (found,) = await ask(client, "/findings", lambda found: len(found) == 1)
        (listed,) = await ask(client, "/jobs", lambda jobs: jobs and jobs[0]["step"] == LAST)

    async with platform(tmp_path) as (_, client):
        (found_again,) = await ask(client, "/findings", lambda found: len(found) == 1)
        (listed_again,) = await ask(client, "/jobs", lambda jobs: len(jobs) == 1)
        same = (await client.get(f"/findings/{found['id']}")).json()

    assert found["kind"] == "slow_gpu"
    assert [each["id"] for each in (found_again, same)] == [found["id"]] * 2
    assert [(each["run"], each["job"], each["step"]) for each in (listed, listed_again)] == [
        ("run-1", "test/simulated", LAST)
    ] * 2


@pytest.mark.parametrize(
    ("phase", "steps", "state"),
    [("PHASE_STEP", 3, "failed"), ("PHASE_PAUSE", 3, "stopped"), ("PHASE_PAUSE", 9, "finished"), ("", 3, "lost")],
)
async def test_how_a_job_ended_and_what_its_evaluations_found_outlive_a_restart(
    tmp_path: Path, phase: str, steps: int, state: str
) -> None:
    """Without a phase the rank goes without a goodbye."""
    job = Job(Layout(pp=1, dp=1), GPU, seed=1)
    (hello,) = job.hellos()
    hello.message.hello.identity.CopyFrom(hello.identity)
    hello.message.hello.schedule.total_steps = 9
    last = job.heartbeat(0, steps, [], closing=bool(phase), phase=phase or "PHASE_STEP")
    last.message.heartbeat.evaluations.add(split="valid", loss=2.5, microbatches=4, step=2)
    last.message.seq = 100
    async with platform(tmp_path) as (running, client):
        stream = RankStream(running.collector_address, running.token_file.read_text())
        await stream.send(hello.message, *(told.message for step in job.steps(1, steps) for told in step), last.message)
        await stream.until_acked(100)
        await (stream.close() if phase else stream.cut())
        path = f"/jobs/{hello.identity.run}"
        before = await ask(client, path, lambda found: found.get("state") == state)

    async with platform(tmp_path) as (_, client):
        after = await ask(client, path, lambda found: found.get("state") == state)

    found = {"split": "valid", "loss": 2.5, "microbatches": 4, "step": 2}
    assert before["evaluations"] == after["evaluations"] == [found]
