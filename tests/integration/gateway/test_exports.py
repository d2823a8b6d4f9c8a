"""Downloads of traces: bounded, cancelled with their client, and no burden to other requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from megatronapp.v1 import trace_pb2
from tests.integration.gateway.conftest import Served, Start
from tests.integration.gateway.support import RUN, CollectorAnswers, hello, message

TRACE = f"/api/v1/jobs/{RUN}/trace"
SLOW_STEP, DRIPPING_STEP = 777, 778
FAR = {"to_step": 2**63 - 1}
MANY = {"ranks": ",".join(["0-1048575"] * 400)}


class SlowStore(CollectorAnswers):
    """Has some steps whose trace never comes: not at all, or piece by piece without end."""

    def __init__(self) -> None:
        super().__init__()
        self.exports = self.lists = 0

    async def Export(self, request, context) -> AsyncIterator[trace_pb2.ExportChunk]:  # noqa: N802
        if request.to_step not in {SLOW_STEP, DRIPPING_STEP}:
            async for chunk in super().Export(request, context):
                yield chunk
            return
        self.exports += 1
        try:
            while True:
                if request.to_step == DRIPPING_STEP:
                    yield trace_pb2.ExportChunk(data=b"drip")
                await asyncio.sleep(0.05 if request.to_step == DRIPPING_STEP else 3600)
        finally:
            self.exports -= 1

    async def ListSteps(self, request, context):  # noqa: N802
        if request.to_step == SLOW_STEP:
            self.lists += 1
            try:
                await asyncio.sleep(3600)
            finally:
                self.lists -= 1
        return await super().ListSteps(request, context)


@pytest.fixture
async def slow(start: Start, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setattr("tests.integration.gateway.conftest.CollectorAnswers", SlowStore)
    served = await start(max_exports=4)
    await served.publish(message(hello()))
    await served.until("/api/v1/jobs", lambda jobs: any(job["run"] == RUN for job in jobs))
    return served


def store(served: Served) -> SlowStore:
    assert isinstance(served.answers, SlowStore)
    return served.answers


async def until(served: Served, exports: int) -> None:
    async with asyncio.timeout(20):
        while store(served).exports != exports:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("query", "bound"),
    [
        (FAR, "1000000000000"),
        ({"from_step": 2**63 - 1}, "1000000000000"),
        ({"from_step": 5, "to_step": 10**9}, "100000"),
        (MANY, "4096"),
        ({"ranks": "0-1048576"}, "1048576"),
        ({"ranks": "0-99999999999"}, ""),
    ],
)
async def test_what_is_too_much_is_refused_and_the_bound_is_said(slow: Served, query: dict, bound: str) -> None:
    async with slow.client() as client:
        answer = await client.get(TRACE, params=query)

    assert answer.status_code == 422
    assert bound in answer.json()["error"]["message"]


@pytest.mark.parametrize("query", [FAR, MANY], ids=["steps", "ranks"])
async def test_eight_requests_without_bounds_hold_up_no_other(slow: Served, query: dict) -> None:
    async with slow.client() as client:
        begin = time.monotonic()
        *refused, trace, timeline = await asyncio.gather(
            *(client.get(TRACE, params=query) for _ in range(8)),
            client.get(TRACE, params={"from_step": 1}),
            client.get(f"/api/v1/jobs/{RUN}/timeline"),
        )

    assert {answer.status_code for answer in refused} == {422}
    assert (trace.status_code, trace.content, timeline.status_code) == (200, b"one two three", 200)
    assert time.monotonic() - begin < 10
    assert slow.gateway.ready()


@pytest.mark.parametrize("step", [SLOW_STEP, DRIPPING_STEP], ids=["before the first piece", "between pieces"])
async def test_a_download_ends_at_the_collector_when_its_client_leaves(slow: Served, step: int) -> None:
    async with slow.client() as client:
        leaving = [asyncio.create_task(_read(client, step)) for _ in range(4)]
        await until(slow, exports=4)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)

    await until(slow, exports=0)
    async with slow.client() as client:
        assert (await client.get(TRACE, params={"from_step": 1})).status_code == 200


async def _read(client: httpx.AsyncClient, step: int) -> None:
    async with client.stream("GET", TRACE, params={"to_step": step}, timeout=60) as answer:
        async for _ in answer.aiter_bytes():
            pass


async def test_more_downloads_than_are_served_at_a_time_are_told_when_to_come_again(slow: Served) -> None:
    async with slow.client() as client:
        running = [asyncio.create_task(_read(client, SLOW_STEP)) for _ in range(4)]
        await until(slow, exports=4)

        answers = await asyncio.gather(*(client.get(TRACE, params={"to_step": SLOW_STEP}) for _ in range(4)))
        others = [(await client.get(path)).status_code for path in ("/api/v1/jobs", f"/api/v1/jobs/{RUN}/timeline")]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    assert {answer.status_code for answer in answers} == {429}
    assert {answer.headers["retry-after"] for answer in answers} == {"5"}
    assert answers[0].json()["error"]["code"] == "too_many"
    assert others == [200, 200]
    assert slow.gateway.ready()


async def test_other_questions_end_at_the_collector_too(slow: Served) -> None:
    async with slow.client() as client:
        asking = asyncio.create_task(client.get(f"/api/v1/jobs/{RUN}/timeline", params={"to_step": SLOW_STEP}))
        async with asyncio.timeout(20):
            while not store(slow).lists:
                await asyncio.sleep(0.02)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async with asyncio.timeout(5):
        while store(slow).lists:
            await asyncio.sleep(0.02)
