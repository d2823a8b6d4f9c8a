"""Many jobs at one collector: what it tells Prometheus of a job ends with it, and one namespace takes no more than its
share."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from prometheus_client import generate_latest

from megatronapp.core import job_series
from megatronapp.v1 import trace_pb2
from tests.integration.collector.conftest import Running, Start
from tests.integration.collector.support import RankStream, batch, closing, hello, summary


def who(job: str) -> trace_pb2.Identity:
    return trace_pb2.Identity(run=job.replace("/", "-"), job=job, attempt=1, rank=0, incarnation=1)


async def run_job(running: Running, job: str) -> RankStream:
    rank = RankStream(running.address)
    await rank.send(hello(who(job)), summary(1, 1), batch(2, 1), closing(3))
    await rank.until_acked(3)
    return rank


def lines_of(running: Running, job: str) -> list[str]:
    return [line for line in generate_latest(running.registry).decode().splitlines() if f'"{job}"' in line]


async def test_a_job_that_ended_leaves_the_metrics_and_one_that_runs_stays(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start()
    series = running.collector._metrics.series
    ended, live = await run_job(running, "team/ended"), await run_job(running, "team/live")
    await ended.close()
    assert lines_of(running, "ended")

    monkeypatch.setattr(series, "_seconds", 0.2)
    await asyncio.sleep(0.3)
    await live.send(summary(4, 2))
    await live.until_acked(4)

    assert lines_of(running, "ended") == []
    assert lines_of(running, "live")
    assert running.value("megatronapp_trace_messages_total", training_job="live", namespace="team", kind="summary") == 2
    await live.close()
    assert running.value("megatronapp_trace_ranks_connected", training_job="live", namespace="team") == 0


async def test_a_rank_that_leaves_after_its_series_have_ended_does_not_make_the_count_wrong(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start()
    first, second = await run_job(running, "team/x"), await run_job(running, "team/x")
    monkeypatch.setattr(running.collector._metrics.series, "_seconds", 0.0)
    await asyncio.sleep(0.01)
    assert lines_of(running, "x") == []
    monkeypatch.setattr(running.collector._metrics.series, "_seconds", job_series.SERIES_SECONDS)

    await first.close()

    assert running.value("megatronapp_trace_ranks_connected", training_job="x", namespace="team") == 1
    await second.close()


async def test_a_job_too_many_is_refused_with_what_to_do_and_the_others_go_on(start: Start) -> None:
    running = await start(max_jobs_per_namespace=2)
    ranks = [await run_job(running, "team/1"), await run_job(running, "team/2")]

    refused = RankStream(running.address)
    await refused.send(hello(who("team/3")))
    error = await refused.status()
    await refused.channel.close(None)

    assert error is not None
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "2 runs of jobs of namespace team" in (error.details() or "")
    assert "max_jobs_per_namespace" in (error.details() or "")
    assert running.value("megatronapp_trace_refused_total", reason="too_many_jobs") == 1
    assert lines_of(running, "3") == []
    ranks.append(await run_job(running, "other/1"))
    again = await run_job(running, "team/1")
    for rank in (*ranks, again):
        await rank.close()


async def test_ever_new_runs_of_one_job_are_refused_as_jobs_are(start: Start) -> None:
    running = await start(max_jobs_per_namespace=2)
    ranks = [RankStream(running.address) for _ in range(3)]

    for number, rank in enumerate(ranks):
        await rank.send(hello(trace_pb2.Identity(run=f"run-{number}", job="team/x", attempt=1, rank=0, incarnation=1)))
        if rank is not ranks[-1]:
            await rank.send(summary(1, 1))
            await rank.until_acked(1)

    error = await ranks[-1].status()
    assert error is not None
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    for rank in ranks:
        await rank.channel.close(None)
