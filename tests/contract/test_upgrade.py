"""Today's services go on with what the version of commit 6491aef wrote (tests/data/6491aef/README.md)."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from grpc import aio

from megatronapp.core.auth import AllowAll
from megatronapp.core.trace.columns import span_columns
from megatronapp.core.trainingjob import Phase, TrainingJob
from megatronapp.operator.crd import definition
from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.integration.collector.conftest import Running

WRITTEN = Path(__file__).parents[1] / "data/6491aef"
RUN, STEPS, RANKS = "run-of-6491aef", 4, 2


@pytest.fixture(params=["stored", "killed"])
async def query(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[trace_pb2_grpc.TraceQueryStub]:
    """A collector of today on a folder of then, after a stop and after a kill."""
    folder = Path(shutil.copytree(WRITTEN / request.param, tmp_path / "data"))
    running = Running(folder, AllowAll(), {})
    await running.collector.start()
    async with aio.insecure_channel(running.address) as channel:
        yield trace_pb2_grpc.TraceQueryStub(channel)
    await running.collector.stop()


async def test_jobs_ranks_and_steps_are_there(query: trace_pb2_grpc.TraceQueryStub) -> None:
    (job,) = (await query.ListJobs(trace_pb2.ListJobsRequest())).jobs
    ranks = (await query.ListRanks(trace_pb2.ListRanksRequest(run=RUN))).ranks
    steps = await query.ListSteps(trace_pb2.ListStepsRequest(run=RUN))

    assert (job.job, job.first_step, job.last_step, job.schedule.name) == ("team/gpt", 1, STEPS, "1f1b")
    assert [(rank.placement.node, rank.closed) for rank in ranks] == [("node-0", True), ("node-1", False)]
    assert [c.id for rank in ranks for c in rank.communicators] == ["world:0-1"] * RANKS
    assert steps.count == STEPS * RANKS


async def test_spans_are_read_and_their_messages_matched_by_number(query: trace_pb2_grpc.TraceQueryStub) -> None:
    spans = [each async for each in query.ReadSpans(trace_pb2.ReadSpansRequest(run=RUN))]
    chrome = trace_pb2.ExportRequest(run=RUN, from_step=1, to_step=1, format=trace_pb2.EXPORT_FORMAT_CHROME_JSON)
    timeline = yaml.safe_load(b"".join([chunk.data async for chunk in query.Export(chrome)]))

    assert [(each.batch.step, each.rank, each.batch.count) for each in spans] == [
        (step, rank, 5) for step in range(1, STEPS + 1) for rank in range(RANKS)
    ]
    assert not any(span_columns(each.batch)["message"].any() for each in spans)
    arrows = [event for event in timeline["traceEvents"] if event["name"] == "match"]
    assert len({event["id"] for event in arrows}) == 3  # two messages and a collective


@pytest.mark.parametrize("path", sorted((WRITTEN / "trainingjobs").iterdir()), ids=lambda path: path.name)
def test_trainingjobs_are_taken_by_model_and_schema(path: Path) -> None:
    (written,) = [each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "TrainingJob"]
    schema: dict[str, Any] = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    job = TrainingJob.model_validate(written)

    jsonschema.Draft4Validator(_closed(schema)).validate(written)
    assert job.metadata.name == written["metadata"]["name"]


def test_the_status_that_the_operator_had_written_is_kept() -> None:
    job = TrainingJob.model_validate(yaml.safe_load((WRITTEN / "trainingjobs/with-status.yaml").read_text()))

    assert job.status is not None
    assert (job.status.phase, job.status.attempt) == (Phase.RESTARTING, 1)
    assert [node.name for node in job.status.excluded_nodes] == ["node2"]
    assert {str(condition.type) for condition in job.status.conditions} == {
        "PodsReady", "Running", "Restarting", "Degraded",
    }  # fmt: skip


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as one that refuses what it does not name, which the server would drop without a word. What it says of
    `metadata` is beside what Kubernetes says."""
    inner = {key: _closed(each) for key, each in schema.items() if isinstance(each, dict) and key != "metadata"}
    closed = schema | inner
    open_ = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & schema.keys()
    if "type" in schema and "properties" in schema and not open_:
        closed["additionalProperties"] = False
    return closed
