"""Several collector shards look like one: each run is asked for where its traces are."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from grpc import aio

from megatronapp.core.errors import NotFoundError, UnavailableError
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.gateway.shards import CollectorShards
from megatronapp.v1 import trace_pb2
from tests.integration.gateway.support import CollectorAnswers, serve


class Shard(CollectorAnswers):
    """A collector that holds one run."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run

    async def ListJobs(self, request, context):  # noqa: N802  gRPC's name
        return trace_pb2.ListJobsResponse(jobs=[trace_pb2.JobRecord(run=self.run, job=f"team/{self.run}")])


@pytest.fixture
async def shards() -> AsyncIterator[tuple[list[Shard], list[str], list[aio.Server]]]:
    answers = [Shard("run-a"), Shard("run-b")]
    served = [await serve(answer) for answer in answers]
    yield answers, [address for _, address in served], [server for server, _ in served]
    for server, _ in served:
        await server.stop(None)


async def test_jobs_of_all_shards_are_listed_and_each_run_is_asked_for_at_its_own(shards) -> None:
    answers, addresses, _ = shards
    collectors = CollectorShards(GatewaySettings(collector_addresses=addresses))

    listed = {record.run for record in await collectors.jobs()}
    await collectors.steps(trace_pb2.ListStepsRequest(run="run-b"))
    pieces = [piece async for piece in collectors.export(trace_pb2.ExportRequest(run="run-a"))]
    await collectors.close()

    assert listed == {"run-a", "run-b"}
    assert [len(answer.requests) for answer in answers] == [1, 1]
    assert pieces == [b"one ", b"two ", b"three"]


async def test_a_run_that_nobody_holds_is_not_found(shards) -> None:
    _, addresses, _ = shards
    collectors = CollectorShards(GatewaySettings(collector_addresses=addresses))

    with pytest.raises(NotFoundError, match="run-c"):
        await collectors.clocks("run-c")
    await collectors.close()


async def test_while_a_shard_is_away_its_runs_are_unavailable_and_the_others_are_served(shards) -> None:
    _, addresses, servers = shards
    collectors = CollectorShards(GatewaySettings(collector_addresses=addresses))
    await servers[1].stop(None)

    assert await collectors.clocks("run-a")
    with pytest.raises(UnavailableError, match=addresses[1]):
        await collectors.clocks("run-b")
    await collectors.close()
