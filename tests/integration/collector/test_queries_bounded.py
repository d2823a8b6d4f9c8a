"""Whatever is asked for, intake goes on, and reading ends with what is stored or with its client."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import grpc
import pytest
from grpc import aio

from megatronapp.collector import envelope, query
from megatronapp.collector.journal import Journal
from megatronapp.collector.store import Store
from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.integration.collector.conftest import Running, Start
from tests.integration.collector.support import RUN, RankStream, batch, closing, hello, identity, summary

LAST = 2**64 - 1
NOW_NS = 1_760_000_000_000_000_000


async def fill(running: Running, *steps: int) -> None:
    rank = RankStream(running.address)
    seq = 0
    await rank.send(hello(identity()))
    for step in steps:
        await rank.send(summary(seq + 1, step), batch(seq + 2, step))
        seq += 2
    await rank.send(closing(seq + 1))
    await rank.until_acked(seq + 1)
    await rank.close()


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "store"])
async def test_a_range_without_end_reads_what_there_is(start: Start, stored: bool) -> None:
    running = await start()
    await fill(running, 1, 2, 40, 1_000_000)
    if stored:
        await running.collector.stop()
        running = await start()

    async with aio.insecure_channel(running.address) as channel:
        stub = trace_pb2_grpc.TraceQueryStub(channel)
        for to_step in (0, 2**63 - 1, LAST):
            spans = stub.ReadSpans(trace_pb2.ReadSpansRequest(run=RUN, to_step=to_step), timeout=20)
            assert [item.batch.step async for item in spans] == [1, 2, 40, 1_000_000]
            steps = await stub.ListSteps(trace_pb2.ListStepsRequest(run=RUN, to_step=to_step), timeout=20)
            assert steps.count == 4
            grid = await stub.ListStepGrid(trace_pb2.ListStepGridRequest(run=RUN, to_step=to_step), timeout=20)
            assert len(grid.duration_seconds) // 4 * grid.bucket_steps >= 1_000_000
            export = trace_pb2.ExportRequest(
                run=RUN, from_step=2, to_step=to_step, format=trace_pb2.EXPORT_FORMAT_CHROME_JSON
            )
            assert b"".join([chunk.data async for chunk in stub.Export(export, timeout=20)])
        none = stub.ReadSpans(trace_pb2.ReadSpansRequest(run=RUN, to_step=LAST, ranks=[7]), timeout=20)
        assert [item async for item in none] == []


async def test_steps_that_an_earlier_version_took_do_not_hold_up_a_query(start: Start, tmp_path: Path) -> None:
    """The record itself is set aside; what is stored under such a step is read like any other."""
    far = summary(2, 1)
    far.summary.step = 2**63
    records = [hello(identity(incarnation=5)), summary(1, 1), far]
    journal = Journal(tmp_path / "data" / "journal", fsync=False)
    old = envelope.sender(identity(incarnation=5))
    journal.write([envelope.wrap(old, m.SerializeToString(), NOW_NS) for m in records])
    journal.close()
    running = await start()
    await fill(running, 2, 3)
    await running.collector.stop()
    folder = tmp_path / "data" / "store" / RUN / "attempt-1"
    for path in folder.glob("*-1-3.parquet"):
        path.rename(path.with_name(path.name.replace("-1-3.", f"-1-{2**63}.")))

    again = await start()

    assert [part.last for part in Store(tmp_path / "data" / "store").parts((RUN, 1), "steps")] == [2**63]
    async with aio.insecure_channel(again.address) as channel:
        stub = trace_pb2_grpc.TraceQueryStub(channel)
        assert (await stub.ListSteps(trace_pb2.ListStepsRequest(run=RUN), timeout=20)).count == 3
        assert [item.batch.step async for item in stub.ReadSpans(trace_pb2.ReadSpansRequest(run=RUN), timeout=20)]


async def test_more_ranks_than_a_job_can_have_are_refused(start: Start) -> None:
    running = await start(max_message_bytes=16 << 20)
    await fill(running, 1)

    async with aio.insecure_channel(running.address) as channel:
        request = trace_pb2.ReadSpansRequest(run=RUN, ranks=range((1 << 20) + 1))
        with pytest.raises(aio.AioRpcError) as error:
            [item async for item in trace_pb2_grpc.TraceQueryStub(channel).ReadSpans(request)]

    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_intake_goes_on_while_every_query_is_stuck_and_reading_ends_with_its_client(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start()
    await fill(running, *range(1, 200))
    reading, go_on, windows = threading.Event(), threading.Event(), []
    original = Store.read

    def slow(self: Store, *args: object) -> object:
        windows.append(args)
        reading.set()
        go_on.wait(30)
        return original(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "read", slow)
    async with aio.insecure_channel(running.address) as channel:
        stub = trace_pb2_grpc.TraceQueryStub(channel)
        calls = [
            stub.ReadSpans(trace_pb2.ReadSpansRequest(run=RUN, to_step=LAST, ranks=[5]))
            for _ in range(3 * query.THREADS)
        ]
        waiting = [asyncio.create_task(call.read()) for call in calls]
        await asyncio.to_thread(reading.wait, 30)

        await asyncio.wait_for(fill_rank(running, 1), 30)
        assert running.collector.ready()

        for call in calls:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.sleep(0.5)
        begun = len(windows)
        go_on.set()
        await asyncio.sleep(1.0)

    assert begun <= query.THREADS
    assert len(windows) == begun, "nobody reads on for a client that has gone"


async def fill_rank(running: Running, number: int) -> None:
    rank = RankStream(running.address)
    await rank.send(hello(identity(number)), summary(1, 1), closing(2))
    await rank.until_acked(2)
    await rank.close()


async def test_one_attempt_that_can_not_be_told_does_not_hide_the_others(start: Start) -> None:
    running = await start()
    await fill(running, 1)
    other = RankStream(running.address)
    who = trace_pb2.Identity(run="run-2", job="team/other", attempt=1, rank=0, incarnation=1)
    await other.send(hello(who), summary(1, 1))
    await other.until_acked(1)
    broken = running.collector._jobs.get("run-2")
    broken.events = -1

    async with aio.insecure_channel(running.address) as channel:
        jobs = (await trace_pb2_grpc.TraceQueryStub(channel).ListJobs(trace_pb2.ListJobsRequest())).jobs

    assert [job.run for job in jobs] == [RUN]
    broken.events = 0
    await other.close()


async def test_readiness_tells_of_a_journal_that_hangs(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    running = await start()
    assert running.collector.ready()
    go_on = threading.Event()
    original = Journal.write

    def stuck(self: Journal, records: list[tuple[bytes, ...]]) -> int:
        go_on.wait(30)
        return original(self, records)

    monkeypatch.setattr(Journal, "write", stuck)
    monkeypatch.setattr("megatronapp.collector.condition.STALLED_SECONDS", 0.7)
    rank = RankStream(running.address)
    await rank.send(hello(identity()), summary(1, 1))
    await asyncio.sleep(1.0)

    assert not running.collector.ready()

    go_on.set()
    await rank.until_acked(1)
    await asyncio.sleep(0.6)
    assert running.collector.ready()
    await rank.close()


async def test_readiness_tells_of_an_event_loop_that_hangs(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    running = await start()
    monkeypatch.setattr("megatronapp.collector.condition.STALLED_SECONDS", 0.0)

    assert not running.collector.ready()


async def test_readiness_tells_of_a_part_that_has_ended(start: Start) -> None:
    running = await start()

    running.collector.tasks[0].cancel()
    await asyncio.sleep(0.1)

    assert not running.collector.ready()


async def test_it_stays_ready_when_it_has_looked_for_the_ranks_of_the_time_before_its_start(start: Start) -> None:
    running = await start(return_seconds=0.05)

    while not any(task.done() for task in running.collector.tasks):
        await asyncio.sleep(0.01)

    assert running.collector.ready()
