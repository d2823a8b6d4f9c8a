"""One job's records, whatever they hold, keep no other job from being shown."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from megatronapp.core.bus import MemoryBus, Message, Topic
from megatronapp.core.findings_store import FindingsStore, MemoryBackend
from megatronapp.core.quarantine import Quarantine, entries, release
from megatronapp.core.trace.limits import MAX_ATTEMPT
from megatronapp.gateway import app, feed, views
from megatronapp.gateway.feed import Feed
from megatronapp.gateway.live import Hub
from megatronapp.gateway.metrics import GatewayMetrics
from megatronapp.gateway.shards import CollectorShards
from megatronapp.gateway.state import JobStore
from megatronapp.v1 import trace_pb2
from tests.integration.gateway.conftest import OPERATOR, Served, Start, next_event
from tests.integration.gateway.support import RUN, CollectorAnswers, control, heartbeat, hello, message, summary
from tests.support import hostile

EVIL, EVIL_JOB = "run-evil", "team-a/evil"
HUGE = 2**32 - 1


def evil(body: Any, *, run: str = EVIL, job: str = EVIL_JOB, attempt: int = 1, rank: int = 0) -> trace_pb2.RankMessage:
    who = trace_pb2.Identity(run=run, job=job, attempt=attempt, rank=rank, incarnation=66)
    return message(body, who)


INTERVAL = evil(heartbeat(control=control(interval=2_000_000)))
BAD = {
    "trace interval": INTERVAL,
    "traced steps": evil(heartbeat(control=trace_pb2.TraceControl(continuous_iterations=HUGE))),
    "attempt": evil(hello(), attempt=HUGE),
    "step": evil(summary(2**63)),
    "world": evil(hello(world=HUGE)),
    "rank": evil(hello(), rank=HUGE),
    "run": evil(hello(), run="../../etc"),
    "job": evil(hello(), job="evil"),
}


async def innocent_goes_on(served: Served, step: int) -> None:
    """The innocent job's next step is stored, shown, and told to viewers."""
    async with served.listen() as socket:
        await next_event(socket, "snapshot")
        await served.publish(message(summary(step, loss=2.0)))
        await next_event(socket, "step", lambda event: event["run"] == RUN and event["row"]["step"] == step)
        await next_event(socket, "job", lambda event: event["job"]["run"] == RUN and event["job"]["step"] == step)
    jobs = await served.until("/api/v1/jobs", lambda jobs: any(j["run"] == RUN and j["step"] == step for j in jobs))
    (job,) = [job for job in jobs if job["run"] == RUN]
    assert (job["job"], job["attempt"], job["state"], job["loss"]) == ("team/gpt", 1, "running", 2.0)
    assert served.gateway.ready()


@pytest.mark.parametrize("late", [False, True], ids=["live", "at the start"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_a_record_that_cannot_be_true_is_set_aside(
    start: Start, quarantine_dir: Path, late: bool, bad: trace_pb2.RankMessage
) -> None:
    bus = MemoryBus()
    served = None if late else await start(bus=bus)
    for item in (message(hello()), message(summary(1)), bad, message(summary(2))):
        await bus.publish(Topic.STEPS, item.identity.run, item.SerializeToString())
    served = served or await start(bus=bus)
    await served.until(f"/api/v1/jobs/{RUN}", lambda job: job["step"] == 2)

    await innocent_goes_on(served, 3)

    (kept,) = entries(quarantine_dir)
    assert kept.record == bad.SerializeToString()
    assert (kept.run, kept.job, kept.rank) == (bad.identity.run, bad.identity.job, bad.identity.rank)
    count = served.registry.get_sample_value("megatronapp_gateway_bad_messages_total", {"topic": "steps"})
    assert count == 1


async def test_a_record_that_is_no_message_is_set_aside(served: Served, quarantine_dir: Path) -> None:
    await served.publish(message(hello()))
    await served.bus.publish(Topic.STEPS, EVIL, b"\xff no message")

    await innocent_goes_on(served, 1)

    assert [kept.record for kept in entries(quarantine_dir)] == [b"\xff no message"]


async def test_an_attempt_of_the_future_does_not_hide_the_one_that_runs(served: Served) -> None:
    """The same job's own word: beyond what can be true it counts for nothing."""
    await served.publish(message(hello()), evil(hello(), run=RUN, job="team/gpt", attempt=MAX_ATTEMPT + 1))

    await innocent_goes_on(served, 1)


async def test_a_run_stays_with_the_job_that_was_heard_of_first(served: Served) -> None:
    await served.publish(message(hello()), message(summary(1)))
    await served.publish(*(evil(body, run=RUN, attempt=9) for body in (hello(world=8), summary(70), heartbeat())))

    await innocent_goes_on(served, 2)

    async with served.client() as client:
        job = (await client.get(f"/api/v1/jobs/{RUN}")).json()
        ranks = (await client.get(f"/api/v1/jobs/{RUN}/ranks")).json()
    assert (job["job"], job["sizes"]["world"], len(ranks)) == ("team/gpt", 4, 1)


async def test_a_wish_that_cannot_be_true_is_not_kept(served: Served) -> None:
    await served.publish(message(hello()))
    wish = control(interval=2_000_000).SerializeToString()
    await served.bus.publish(Topic.TRACE_CONTROL, RUN, wish)

    await innocent_goes_on(served, 1)

    async with served.client(OPERATOR) as client:
        status = await client.get(f"/api/v1/jobs/{RUN}/trace-control")
    assert (status.status_code, status.json()["requested"]) == (200, None)


async def test_a_job_that_cannot_be_shown_hides_no_other(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mistake of ours would make it, which no check at the border finds."""
    shown = views.job_view
    monkeypatch.setattr(views, "job_view", lambda job, *rest: 1 / 0 if job.run == EVIL else shown(job, *rest))
    served = await start()
    await served.publish(evil(hello()), message(hello()))

    await innocent_goes_on(served, 1)

    hidden = served.registry.get_sample_value("megatronapp_gateway_hidden_jobs")
    assert hidden == 1
    jobs = await served.until("/api/v1/jobs", bool)
    assert EVIL not in {job["run"] for job in jobs}


async def test_changes_that_can_not_be_sent_keep_no_later_ones(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails beside a single job, which has a guard of its own."""
    flush, failures = feed.Feed._flush, iter([True] * 2)

    def failing(self: feed.Feed, now_ns: int) -> None:
        if next(failures, False):
            raise RuntimeError("a mistake")
        flush(self, now_ns)

    monkeypatch.setattr(feed.Feed, "_flush", failing)
    monkeypatch.setattr(feed, "FLUSH_SECONDS", 0.02)
    served = await start()
    await served.publish(message(hello()))

    await innocent_goes_on(served, 1)

    assert next(failures, None) is None


async def test_a_record_that_is_handed_back_goes_the_ordinary_way(
    start: Start, monkeypatch: pytest.MonkeyPatch, quarantine_dir: Path
) -> None:
    monkeypatch.setattr(feed, "RELEASED_SECONDS", 0.05)
    served = await start()
    with monkeypatch.context() as patch:
        patch.setattr(JobStore, "apply_message", lambda *_: 1 / 0)
        await served.publish(message(hello()))
        async with asyncio.timeout(10):
            while not quarantine_dir.is_dir() or not entries(quarantine_dir):
                await asyncio.sleep(0.02)
    (kept,) = entries(quarantine_dir)

    release(quarantine_dir, kept.id)

    await served.until("/api/v1/jobs", lambda jobs: any(job["run"] == RUN for job in jobs))
    assert entries(quarantine_dir) == []


class PoisonedStore(CollectorAnswers):
    """Holds what an older version took in."""

    async def ListJobs(self, request, context):  # noqa: N802
        answer = await super().ListJobs(request, context)
        for run, job, attempt, step in (
            ("run-archived", "team/old", HUGE, 1),
            ("run-renamed", "no namespace", 1, 1),
            ("run-far", "team/far", 1, 2**63),
        ):
            answer.jobs.append(trace_pb2.JobRecord(run=run, job=job, attempt=attempt, last_step=step))
        return answer


async def test_records_of_a_store_that_cannot_be_true_hide_no_other(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.integration.gateway.conftest.CollectorAnswers", PoisonedStore)
    served = await start()

    jobs = await served.until("/api/v1/jobs", lambda jobs: any(job["run"] == "run-archived" for job in jobs))

    assert [(job["run"], job["attempt"]) for job in jobs] == [("run-archived", 2)]


async def test_a_gateway_in_which_nothing_goes_on_is_not_ready(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STUCK_SECONDS", 1.0)
    served = await start()
    await is_ready(served)

    time.sleep(1.5)
    stuck = served.gateway.ready()

    assert not stuck
    await is_ready(served)


async def is_ready(served: Served) -> None:
    async with asyncio.timeout(20):
        while not served.gateway.ready():
            await asyncio.sleep(0.02)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_no_field_of_another_job_s_messages_changes_what_is_shown(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance, job_store = random.Random(seed), JobStore()
    metrics = GatewayMetrics(CollectorRegistry())
    folder = tmp_path_factory.mktemp("aside")
    shards: Any = CollectorShards.__new__(CollectorShards)  # not asked here
    aside, findings = Quarantine(folder, metrics.quarantined), FindingsStore(MemoryBackend())
    reading = Feed(MemoryBus(), job_store, Hub(1, metrics.live_dropped), findings, shards, metrics, aside, 3600.0)

    def take(item: trace_pb2.RankMessage) -> None:
        try:
            reading._take_step(Message(Topic.STEPS, item.identity.run, item.SerializeToString(), "1"))
        except Exception:  # noqa: BLE001  set aside, counted and logged by the reader
            return

    take(message(hello()))
    for step in range(1, 30):
        take(message(summary(step, seconds=0.5, loss=3.0)))
        take(hostile.message(chance, run=chance.choice([EVIL, EVIL, RUN]), job=EVIL_JOB))
        reading._flush(time.time_ns())

    hidden = [job.run for job in job_store.jobs.values() if job.hidden]
    assert hidden == []
    shown = {job.run: job for job in views.job_views(job_store, time.time_ns())}
    innocent = shown[RUN]
    assert (innocent.job, innocent.attempt, innocent.step, innocent.loss) == ("team/gpt", 1, 29, 3.0)
    assert list(job_store.jobs[RUN].steps) == list(range(1, 30))
    assert len(job_store.jobs[RUN].ranks) == 1
    for run in shown:
        job = job_store.jobs[run]
        json.loads(shown[run].model_dump_json())
        for rank in job.ranks.values():
            json.loads(views.rank_view(rank, time.time_ns()).model_dump_json())
        json.loads(views.metrics_view(job, 0, 100).model_dump_json())
        json.loads(views.control_status(job, None).model_dump_json())
