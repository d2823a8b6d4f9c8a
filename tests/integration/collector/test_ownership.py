"""A run belongs to the job that opened it first, and nobody else's word changes anything of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc import aio

from megatronapp.collector import envelope
from megatronapp.collector.journal import Journal
from megatronapp.collector.store import Store
from megatronapp.core.auth import PodClaim, PodGrant, Role
from megatronapp.core.quarantine import entries
from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.integration.collector.conftest import Running, Start
from tests.integration.collector.support import JOB, RUN, RankStream, closing, hello, identity, summary

NOW_NS = 1_760_000_000_000_000_000


def intruder(attempt: int = 1, rank: int = 0) -> trace_pb2.Identity:
    return trace_pb2.Identity(run=RUN, job="team-a/x", attempt=attempt, rank=rank, incarnation=9)


async def jobs(running: Running) -> list[tuple[str, str, int, int]]:
    async with aio.insecure_channel(running.address) as channel:
        answer = await trace_pb2_grpc.TraceQueryStub(channel).ListJobs(trace_pb2.ListJobsRequest())
        return [(job.run, job.job, job.attempt, job.last_step) for job in answer.jobs]


async def refusal(running: Running, message: trace_pb2.TraceMessage, token: str = "") -> aio.AioRpcError:
    rank = RankStream(running.address, token=token)
    await rank.send(message)
    error = await rank.status()
    await rank.channel.close(None)
    assert error is not None
    return error


@pytest.mark.parametrize("attempt", [1, 2])
async def test_another_jobs_hello_is_refused_and_changes_nothing(start: Start, tmp_path: Path, attempt: int) -> None:
    running = await start(flush_seconds=0.05)
    owner = RankStream(running.address)
    await owner.send(hello(identity()), *[summary(step, step) for step in range(1, 21)])
    await owner.until_acked(20)

    journalled_before = running.collector._journal.position
    error = await refusal(running, hello(intruder(attempt)))
    assert running.collector._journal.position == journalled_before
    await owner.send(*[summary(step, step) for step in range(21, 41)], closing(41))
    await owner.until_acked(41)
    await owner.close()

    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "belongs to another job" in (error.details() or "")
    assert JOB not in (error.details() or ""), "it is not told whose"
    assert running.value("megatronapp_trace_refused_total", reason="forbidden") == 1
    assert await jobs(running) == [(RUN, JOB, 1, 40)]
    await running.collector.stop()
    journalled = [trace_pb2.RankMessage.FromString(record) for _, record in Journal(tmp_path / "data/journal").replay()]
    assert {message.identity.job for message in journalled} <= {JOB}

    again = await start()
    assert await jobs(again) == [(RUN, JOB, 1, 40)]
    assert (await refusal(again, hello(intruder(attempt)))).code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_run_stays_its_jobs_when_its_traces_have_expired(start: Start, tmp_path: Path) -> None:
    running = await start(flush_seconds=0.05)
    owner = RankStream(running.address)
    await owner.send(hello(identity()), summary(1, 1), closing(2))
    await owner.until_acked(2)
    await owner.close()
    await running.collector.stop()
    store = Store(tmp_path / "data" / "store")
    assert store.expire(0.0, 1 << 40).attempts == [(RUN, 1)]

    again = await start(flush_seconds=0.05)

    assert await jobs(again) == []
    assert (await refusal(again, hello(intruder()))).code() is grpc.StatusCode.PERMISSION_DENIED
    back = RankStream(again.address)
    await back.send(hello(identity(attempt=2)), summary(1, 1))
    await back.until_acked(1)
    await back.close()


async def test_what_an_earlier_version_took_of_another_job_is_set_aside_on_replay(start: Start, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "data" / "journal", fsync=False)
    records = [(identity(), hello(identity())), (intruder(), hello(intruder())), (intruder(), summary(1, 99))]
    records.append((identity(), summary(1, 1)))
    journal.write([envelope.wrap(envelope.sender(rank), m.SerializeToString(), NOW_NS) for rank, m in records])
    journal.close()

    running = await start(flush_seconds=0.05)

    assert await jobs(running) == [(RUN, JOB, 1, 1)]
    assert {entry.job for entry in entries(tmp_path / "data" / "quarantine")} == {"team-a/x"}


async def test_of_two_jobs_that_open_a_run_at_once_one_gets_it(start: Start) -> None:
    running = await start()
    ranks = {f"team/{number}": RankStream(running.address) for number in range(8)}

    for number, (job, rank) in enumerate(ranks.items()):
        who = trace_pb2.Identity(run=RUN, job=job, attempt=1, rank=0, incarnation=number + 1)
        await rank.send(hello(who))
    done, waiting = await asyncio.wait(
        [asyncio.create_task(rank.status(), name=job) for job, rank in ranks.items()], timeout=5.0
    )

    assert [task.result().code() for task in done] == [grpc.StatusCode.PERMISSION_DENIED] * 7
    assert [job for _, job, _, _ in await jobs(running)] == [task.get_name() for task in waiting]
    for rank in ranks.values():
        await rank.cut()


class OldTokens:
    """`old` is of a pod that an earlier version started: its audience does not name the run."""

    def __init__(self) -> None:
        self.claims: list[PodClaim] = []

    async def pod(self, token: str, claim: PodClaim) -> PodGrant:
        self.claims.append(claim)
        return PodGrant(may_open_run=token != "old")

    async def reader(self, token: str) -> Role:
        return Role.VIEWER


async def test_a_token_that_names_no_run_speaks_only_for_a_run_that_its_job_has_opened(start: Start) -> None:
    tokens = OldTokens()
    running = await start(tokens)

    error = await refusal(running, hello(identity()), token="old")
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "does not name run" in (error.details() or "")
    assert await jobs(running) == []

    new = RankStream(running.address, token="new")
    await new.send(hello(identity()), summary(1, 1))
    await new.until_acked(1)
    old = RankStream(running.address, token="old")
    await old.send(hello(identity(1)), summary(1, 1))
    await old.until_acked(1)
    stranger = await refusal(running, hello(intruder()), token="old")

    assert stranger.code() is grpc.StatusCode.PERMISSION_DENIED
    assert tokens.claims[0] == PodClaim(JOB, RUN, 1, "node-a")
    assert await jobs(running) == [(RUN, JOB, 1, 1)]
    await new.close()
    await old.close()


async def test_a_hello_that_is_refused_hears_of_no_control_and_counts_as_no_rank(start: Start) -> None:
    running = await start()
    owner = RankStream(running.address)
    await owner.send(hello(identity()), summary(1, 1))
    await owner.until_acked(1)

    await refusal(running, hello(intruder()))

    for job, ranks in ((JOB, 1.0), ("team-a/x", 0.0)):
        namespace, _, name = job.partition("/")
        labels = {"namespace": namespace, "training_job": name}
        assert running.value("megatronapp_trace_ranks_connected", **labels) == ranks
    assert 'training_job="x"' not in str(list(running.registry.collect())), "not a line of metrics either"
    await owner.close()
