"""TraceQuery over what ranks have sent: from memory, from the store, and after a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc import aio
from pydantic import SecretStr

from megatronapp.core.auth import StaticTokens
from megatronapp.core.trace.columns import span_columns
from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.integration.collector.conftest import Running, Start
from tests.integration.collector.support import JOB, RUN, RankStream, batch, closing, hello, identity, summary

STEPS = 6


async def fill(running: Running, ranks: int = 2) -> None:
    for number in range(ranks):
        rank = RankStream(running.address)
        await rank.send(hello(identity(number), world=ranks, offset_ns=1_000_000))
        seq = 0
        for step in range(1, STEPS + 1):
            await rank.send(summary(seq + 1, step), batch(seq + 2, step))
            seq += 2
        await rank.send(closing(seq + 1))
        await rank.until_acked(seq + 1)
        await rank.close()


@pytest.fixture(params=["memory", "store", "restart"])
async def query(request: pytest.FixtureRequest, start: Start) -> AsyncIterator[trace_pb2_grpc.TraceQueryStub]:
    running = await start(**({"flush_steps": 2, "flush_seconds": 0.05} if request.param == "store" else {}))
    await fill(running)
    if request.param == "restart":
        await running.collector.stop()
        running = await start()
    async with aio.insecure_channel(running.address) as channel:
        yield trace_pb2_grpc.TraceQueryStub(channel)


async def test_jobs_and_ranks_are_listed(query: trace_pb2_grpc.TraceQueryStub) -> None:
    jobs = (await query.ListJobs(trace_pb2.ListJobsRequest())).jobs
    ranks = (await query.ListRanks(trace_pb2.ListRanksRequest(run=RUN))).ranks

    assert [(job.run, job.job, job.attempt, job.first_step, job.last_step) for job in jobs] == [(RUN, JOB, 1, 1, STEPS)]
    assert jobs[0].events == 2 * STEPS * 4
    assert [(rank.identity.rank, rank.placement.data, rank.connected) for rank in ranks] == [
        (0, 0, False),
        (1, 1, False),
    ]
    assert [communicator.id for communicator in ranks[0].communicators] == ["dp:0-1"]
    assert [rank.closed for rank in ranks] == [True, True]


async def test_a_grid_puts_steps_into_buckets_per_rank(query: trace_pb2_grpc.TraceQueryStub) -> None:
    grid = await query.ListStepGrid(trace_pb2.ListStepGridRequest(run=RUN, max_buckets=4))

    assert (grid.oldest_step, grid.newest_step) == (1, STEPS)
    assert (grid.first_step, grid.bucket_steps) == (0, 2)
    assert np.frombuffer(grid.ranks, "<u4").tolist() == [0, 1]
    assert np.frombuffer(grid.start_ns, "<i8").tolist() == [11_000_000, 21_000_000, 41_000_000, 61_000_000]
    assert np.frombuffer(grid.duration_seconds, "<f4") == pytest.approx([0.01] * 8)
    assert np.frombuffer(grid.most_compute_seconds, "<f4") == pytest.approx([0.003] * 8)


async def test_a_grid_of_some_ranks_and_steps_holds_no_others(query: trace_pb2_grpc.TraceQueryStub) -> None:
    wanted = trace_pb2.ListStepGridRequest(run=RUN, from_step=2, to_step=3, ranks=[1, 9], bucket_steps=1)
    grid = await query.ListStepGrid(wanted)

    assert (grid.oldest_step, grid.newest_step, grid.first_step) == (1, STEPS, 2)
    assert np.frombuffer(grid.ranks, "<u4").tolist() == [1]
    assert np.frombuffer(grid.wait_seconds, "<f4") == pytest.approx([0.005] * 2)


async def test_the_grid_of_a_job_whose_first_step_is_not_done_has_nothing_in_it(start: Start) -> None:
    running = await start()
    rank = RankStream(running.address)
    await rank.send(hello(identity(0)))
    async with aio.insecure_channel(running.address) as channel:
        query = trace_pb2_grpc.TraceQueryStub(channel)
        async with asyncio.timeout(20):
            while not (await query.ListJobs(trace_pb2.ListJobsRequest())).jobs:
                await asyncio.sleep(0.02)
        grid = await query.ListStepGrid(trace_pb2.ListStepGridRequest(run=RUN))
    await rank.close()

    assert (grid.oldest_step, grid.newest_step) == (0, 0)
    assert np.frombuffer(grid.ranks, "<u4").tolist() == [0]
    assert np.frombuffer(grid.end_ns, "<i8").tolist() == [0]
    assert np.isnan(np.frombuffer(grid.duration_seconds, "<f4")).all()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"bucket_steps": 3}, "power of two"),
        ({"from_step": 50}, "lies behind"),
        ({"from_step": 4, "to_step": 2}, "1 to 6"),
    ],
)
async def test_a_grid_that_can_not_be_is_refused(
    query: trace_pb2_grpc.TraceQueryStub, asked: dict[str, int], says: str
) -> None:
    with pytest.raises(aio.AioRpcError, match=says) as refused:
        await query.ListStepGrid(trace_pb2.ListStepGridRequest(run=RUN, **asked))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_steps_come_in_job_time_with_their_shares(query: trace_pb2_grpc.TraceQueryStub) -> None:
    steps = await query.ListSteps(trace_pb2.ListStepsRequest(run=RUN, from_step=2, to_step=3))

    assert steps.count == 4
    assert np.frombuffer(steps.step, "<u8").tolist() == [2, 2, 3, 3]
    assert np.frombuffer(steps.rank, "<u4").tolist() == [0, 1, 0, 1]
    assert np.frombuffer(steps.start_ns, "<i8").tolist() == [21_000_000, 21_000_000, 31_000_000, 31_000_000]
    assert set(np.frombuffer(steps.compute_ns, "<i8")) == {3_000_000}
    assert set(np.frombuffer(steps.wait_ns, "<i8")) == {5_000_000}
    assert set(np.frombuffer(steps.host_ns, "<i8")) == {2_000_000}
    assert set(np.frombuffer(steps.traced, "u1")) == {1}


async def test_a_limit_keeps_the_newest_steps(query: trace_pb2_grpc.TraceQueryStub) -> None:
    steps = await query.ListSteps(trace_pb2.ListStepsRequest(run=RUN, limit=2))

    assert np.frombuffer(steps.step, "<u8").tolist() == [5, 5, 6, 6]


async def test_spans_come_back_as_they_were_sent(query: trace_pb2_grpc.TraceQueryStub) -> None:
    request = trace_pb2.ReadSpansRequest(run=RUN, from_step=2, to_step=4, ranks=[1])

    found = [spans async for spans in query.ReadSpans(request)]

    assert [(item.rank, item.batch.step) for item in found] == [(1, 2), (1, 3), (1, 4)]
    sent, got = batch(1, 3).batch, found[1].batch
    columns, expected = span_columns(got), span_columns(sent)
    assert (columns["start_ns"] == expected["start_ns"] + 1_000_000).all()
    for name in ("duration_ns", "kind", "microbatch", "sequence", "message"):
        assert (columns[name] == expected[name]).all()
    assert [got.names[index] for index in columns["name"]] == ["forward"] * 3 + ["all_reduce"]
    assert got.communicators[0].id == "dp:0-1"
    assert columns["communicator"].tolist() == [0, 0, 0, 1]


async def test_an_export_joins_what_belongs_together(query: trace_pb2_grpc.TraceQueryStub) -> None:
    request = trace_pb2.ExportRequest(run=RUN, from_step=1, to_step=2, format=trace_pb2.EXPORT_FORMAT_CHROME_JSON)

    events = json.loads(b"".join([chunk.data async for chunk in query.Export(request)]))["traceEvents"]

    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"DP0-PP0-TP0", "DP1-PP0-TP0"}
    assert sum(e["ph"] == "X" for e in events) == 16
    arrows = [(e["ph"], e["id"], e["pid"]) for e in events if e["name"] == "match"]
    assert arrows == [("s", 1, 0), ("f", 1, 1), ("s", 2, 0), ("f", 2, 1)]


async def test_what_is_not_there_is_said(query: trace_pb2_grpc.TraceQueryStub) -> None:
    with pytest.raises(aio.AioRpcError) as error:
        await query.ListRanks(trace_pb2.ListRanksRequest(run="other"))

    assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_an_export_without_spans_says_why(query: trace_pb2_grpc.TraceQueryStub) -> None:
    request = trace_pb2.ExportRequest(run=RUN, from_step=90, to_step=99, format=trace_pb2.EXPORT_FORMAT_PERFETTO)

    with pytest.raises(aio.AioRpcError) as error:
        await anext(aiter(query.Export(request)))

    assert error.value.code() is grpc.StatusCode.NOT_FOUND
    assert "no spans in steps 90 to 99" in (error.value.details() or "")


async def test_readers_need_a_token(start: Start) -> None:
    running = await start(StaticTokens(viewer=SecretStr("eye")))
    async with aio.insecure_channel(running.address) as channel:
        query = trace_pb2_grpc.TraceQueryStub(channel)

        with pytest.raises(aio.AioRpcError) as error:
            await query.ListJobs(trace_pb2.ListJobsRequest())
        listed = await query.ListJobs(trace_pb2.ListJobsRequest(), metadata=(("authorization", "Bearer eye"),))

    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not listed.jobs


async def test_a_broken_file_is_passed_over(start: Start, tmp_path: Path) -> None:
    running = await start()
    await fill(running, ranks=1)
    await running.collector.stop()
    for path in (tmp_path / "data" / "store").glob("**/spans-*.parquet"):
        path.write_bytes(path.read_bytes()[:100])

    running = await start()

    async with aio.insecure_channel(running.address) as channel:
        query = trace_pb2_grpc.TraceQueryStub(channel)
        assert [s async for s in query.ReadSpans(trace_pb2.ReadSpansRequest(run=RUN, from_step=1))] == []
        assert (await query.ListSteps(trace_pb2.ListStepsRequest(run=RUN))).count == STEPS
    assert running.collector.ready()


async def test_the_history_of_a_run_has_one_row_a_step(query: trace_pb2_grpc.TraceQueryStub) -> None:
    answer = await query.ReadHistory(trace_pb2.ReadHistoryRequest(run=RUN))

    (attempt,) = answer.attempts
    seconds = next(np.frombuffer(each.mean, "<f8") for each in attempt.series if each.name == "step_seconds")
    starts = np.frombuffer(attempt.start_ns, "<i8")
    assert (attempt.attempt, attempt.count, attempt.live, attempt.ended_well) == (1, STEPS, False, True)
    assert np.frombuffer(attempt.bin_first_step, "<u8").tolist() == list(range(1, STEPS + 1))
    assert seconds.tolist() == pytest.approx([0.01] * STEPS)
    assert np.diff(starts).tolist() == [10_000_000] * (STEPS - 1)


async def test_a_history_is_thinned_to_what_was_asked_for(query: trace_pb2_grpc.TraceQueryStub) -> None:
    answer = await query.ReadHistory(trace_pb2.ReadHistoryRequest(run=RUN, from_step=2, bins=3))

    (attempt,) = answer.attempts
    assert np.frombuffer(attempt.bin_first_step, "<u8").tolist() == [2, 3, STEPS]
    assert np.frombuffer(attempt.bin_last_step, "<u8").tolist() == [2, STEPS - 1, STEPS]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (trace_pb2.ReadHistoryRequest(run="nobody"), grpc.StatusCode.NOT_FOUND),
        (trace_pb2.ReadHistoryRequest(run=RUN, bins=1 << 30), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_history_that_can_not_be_told_is_refused(
    start: Start, asked: trace_pb2.ReadHistoryRequest, status: grpc.StatusCode
) -> None:
    running = await start()
    await fill(running, ranks=1)
    async with aio.insecure_channel(running.address) as channel:
        with pytest.raises(aio.AioRpcError) as refused:
            await trace_pb2_grpc.TraceQueryStub(channel).ReadHistory(asked)

    assert refused.value.code() == status


async def test_one_run_can_be_asked_for(query: trace_pb2_grpc.TraceQueryStub) -> None:
    mine = (await query.ListJobs(trace_pb2.ListJobsRequest(run=RUN))).jobs
    nobodys = (await query.ListJobs(trace_pb2.ListJobsRequest(run="nobody"))).jobs

    assert ([job.run for job in mine], list(nobodys)) == ([RUN], [])
