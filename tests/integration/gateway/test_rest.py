"""The REST API over a real server, fed by the bus and a collector."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from httpx import RemoteProtocolError
from structlog.testing import capture_logs

from megatronapp.core.bus import Topic
from megatronapp.core.errors import UsageError
from megatronapp.core.findings import Kind, State
from megatronapp.gateway import columns
from megatronapp.v1 import findings_pb2, trace_pb2
from tests.integration.gateway.conftest import OPERATOR, Served, Start
from tests.integration.gateway.support import (
    RUN,
    CollectorAnswers,
    control,
    finding,
    heartbeat,
    hello,
    identity,
    message,
    summary,
)


async def publish_job(served: Served, *, steps: int = 3) -> None:
    ranks = range(4)
    await served.publish(*(message(hello(rank), identity(rank)) for rank in ranks))
    await served.publish(
        *(
            message(summary(step, seconds=0.5 + rank / 100, loss=3.0 - step / 10), identity(rank))
            for step in range(1, steps + 1)
            for rank in ranks
        )
    )
    await served.until(f"/api/v1/jobs/{RUN}", lambda job: job["step"] == steps)


async def test_a_job_shows_sizes_progress_and_who_is_connected(served: Served) -> None:
    await publish_job(served)

    async with served.client() as client:
        job = (await client.get(f"/api/v1/jobs/{RUN}")).json()

    assert (job["namespace"], job["name"], job["state"]) == ("team", "gpt", "running")
    assert job["sizes"]["pipeline"] == 2
    assert job["step_seconds"] == pytest.approx(0.53)
    assert job["loss"] == pytest.approx(2.7)
    assert job["eta_seconds"] == pytest.approx(97 * 0.53)
    assert (job["ranks_connected"], job["ranks_silent"]) == (4, 0)


async def test_jobs_of_the_collectors_records_are_listed_too(served: Served) -> None:
    jobs = await served.until("/api/v1/jobs", lambda jobs: any(job["run"] == "run-archived" for job in jobs))

    archived = next(job for job in jobs if job["run"] == "run-archived")
    assert (archived["state"], archived["step"], archived["attempt"]) == ("finished", 90, 2)
    async with served.client() as client:
        ranks = (await client.get("/api/v1/jobs/run-archived/ranks")).json()
    assert [(rank["rank"], rank["device"], rank["connected"]) for rank in ranks] == [(3, "cuda", False)]


async def test_a_rank_that_said_that_it_ends_is_told_from_one_that_is_silent(served: Served) -> None:
    await publish_job(served)
    await served.publish(message(heartbeat(closing=True), identity(1)))

    ranks = await served.until(f"/api/v1/jobs/{RUN}/ranks", lambda ranks: not ranks[1]["connected"])

    assert [rank["ended"] for rank in ranks] == [False, True, False, False]


async def test_the_ranks_of_all_jobs_that_go_on_are_one_answer(served: Served) -> None:
    await publish_job(served)
    await served.publish(message(heartbeat(closing=True), identity(1)))

    ranks = await served.until("/api/v1/ranks", lambda ranks: any(rank["ended"] for rank in ranks))

    assert [(rank["run"], rank["rank"], rank["ended"]) for rank in ranks] == [
        (RUN, 0, False),
        (RUN, 1, True),
        (RUN, 2, False),
        (RUN, 3, False),
    ]


async def test_ranks_tell_placement_activity_and_telemetry(served: Served) -> None:
    await publish_job(served)
    beat = heartbeat(
        clock_ns=9_000_000_000,
        activity="all_reduce",
        activity_since_ns=5_000_000_000,
        dropped=3,
        gpu=trace_pb2.GpuTelemetry(temperature_celsius=71, power_watts=640.5),
    )
    await served.publish(message(beat, identity(2)))

    ranks = await served.until(f"/api/v1/jobs/{RUN}/ranks", lambda ranks: ranks[2]["activity"] != "")

    assert ranks[2]["activity"] == "all_reduce"
    assert ranks[2]["activity_seconds"] == pytest.approx(4.0)
    assert ranks[2]["gpu"]["temperature_celsius"] == 71
    assert ranks[2]["dropped"] == 3
    assert (ranks[2]["placement"]["pipeline"], ranks[2]["placement"]["data"]) == (1, 0)
    assert ranks[0]["gpu"] is None


async def test_metrics_are_series_over_steps(served: Served) -> None:
    await publish_job(served, steps=5)

    async with served.client() as client:
        series = (await client.get(f"/api/v1/jobs/{RUN}/metrics", params={"from_step": 2, "limit": 3})).json()

    assert series["step"] == [3, 4, 5]
    assert series["loss"] == pytest.approx([2.7, 2.6, 2.5])
    assert series["grad_norm"] == [None, None, None]


async def test_a_loss_that_is_not_a_number_is_named_and_does_not_break_the_answer(served: Served) -> None:
    await publish_job(served)
    await served.publish(message(summary(4, loss=math.nan, grad_norm=math.inf)))

    job = await served.until(f"/api/v1/jobs/{RUN}", lambda job: job["step"] == 4)

    assert job["loss"] is None
    assert job["non_finite"] == ["loss", "grad_norm"]


async def test_the_timeline_is_columns_counted_from_the_earliest_start(served: Served) -> None:
    await publish_job(served)

    async with served.client() as client:
        timeline = (await client.get(f"/api/v1/jobs/{RUN}/timeline", params={"from_step": 1, "limit": 7})).json()

    assert timeline["origin_unix_seconds"] == CollectorAnswers.START_NS / 1e9
    assert timeline["step"] == [1, 1, 2, 2, 3, 3]
    assert timeline["start_seconds"] == pytest.approx([0, 0.25, 0.5, 0.75, 1.0, 1.25])
    assert timeline["compute_seconds"] == pytest.approx([0.3] * 6)
    assert timeline["traced"] == [False, True] * 3
    asked = served.answers.requests[-1]
    assert (asked.run, asked.from_step, asked.to_step, asked.limit) == (RUN, 1, 0, 7)


async def test_the_grid_of_a_timeline_comes_as_bytes(served: Served) -> None:
    await publish_job(served)

    async with served.client() as client:
        asked = {"from_step": 2, "to_step": 5, "ranks": "0-1", "buckets": 3, "attempt": 1}
        answer = await client.get(f"/api/v1/jobs/{RUN}/timeline/grid", params=asked)

    request = served.answers.requests[-1]
    assert (request.from_step, request.to_step, list(request.ranks), request.max_buckets) == (2, 5, [0, 1], 3)
    assert (request.attempt, request.bucket_steps) == (1, 0)
    assert answer.headers["content-type"] == columns.MEDIA_TYPE
    header, table = decoded(answer.content)
    assert header["origin_unix_seconds"] == CollectorAnswers.START_NS / 1e9
    assert (header["oldest_step"], header["newest_step"]) == (1, 9)
    assert (header["first_step"], header["bucket_steps"]) == (2, 2)
    assert table["rank"].tolist() == [0, 1]
    assert table["start_seconds"].tolist() == pytest.approx([0, np.nan], nan_ok=True)
    assert table["compute_seconds"].tolist() == pytest.approx([0.3, 0.3, np.nan, np.nan], rel=1e-3, nan_ok=True)
    assert table["longest_seconds"].dtype == np.float16
    assert "offset_seconds" not in table


async def test_the_grid_of_single_steps_tells_when_each_rank_began(served: Served) -> None:
    await publish_job(served)

    async with served.client() as client:
        answer = await client.get(f"/api/v1/jobs/{RUN}/timeline/grid", params={"bucket_steps": 1})

    _, table = decoded(answer.content)
    assert table["offset_seconds"].tolist() == pytest.approx([0, 0.125, np.nan, np.nan], nan_ok=True)
    assert "longest_seconds" not in table


def decoded(document: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """As a page reads it."""
    begin = 4 + int.from_bytes(document[:4], "little")
    header = json.loads(document[4:begin])
    table = {}
    for column in header["columns"]:
        table[column["name"]] = np.frombuffer(document, column["type"], column["rows"], begin)
        begin += -(-table[column["name"]].nbytes // 8) * 8
    assert begin == len(document)
    return header, table


async def test_clocks_tell_offset_and_residual(served: Served) -> None:
    await publish_job(served)

    async with served.client() as client:
        clocks = (await client.get(f"/api/v1/jobs/{RUN}/clocks")).json()

    assert [(clock["rank"], clock["offset_ns"], clock["fitted"]) for clock in clocks] == [(1, -12, True)]


@pytest.mark.parametrize(
    ("wanted", "number", "suffix"),
    [
        ("perfetto", trace_pb2.EXPORT_FORMAT_PERFETTO, "pftrace"),
        ("chrome", trace_pb2.EXPORT_FORMAT_CHROME_JSON, "json"),
    ],
)
async def test_a_trace_is_streamed_as_a_file(served: Served, wanted: str, number: int, suffix: str) -> None:
    await publish_job(served)
    query = {"from_step": 2, "to_step": 3, "ranks": "0,2-3", "format": wanted}

    async with served.client() as client:
        answer = await client.get(f"/api/v1/jobs/{RUN}/trace", params=query)

    assert answer.content == b"one two three"
    assert answer.headers["content-disposition"] == f'attachment; filename="team-gpt-steps-2-3.{suffix}"'
    asked = served.answers.requests[-1]
    assert (list(asked.ranks), asked.format) == ([0, 2, 3], number)


async def test_a_trace_that_breaks_off_does_not_look_whole(served: Served) -> None:
    await publish_job(served)

    async with served.client() as client:
        with capture_logs(), pytest.raises(RemoteProtocolError):
            await client.get(f"/api/v1/jobs/{RUN}/trace", params={"to_step": 500})


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/trace?to_step=404", 404, "hold no spans"),
        ("/trace?to_step=405", 404, "no spans are stored"),
        ("/trace?ranks=5-2", 422, "'5-2' is no range"),
        ("/trace?ranks=a", 422, "ranks"),
        ("/timeline?from_step=666", 422, "behind to_step"),
        ("/timeline?limit=0", 422, "limit"),
    ],
)
async def test_a_refusal_has_its_status_and_says_why(served: Served, path: str, status: int, says: str) -> None:
    await publish_job(served)

    async with served.client() as client:
        answer = await client.get(f"/api/v1/jobs/{RUN}{path}")

    assert answer.status_code == status
    assert says in answer.json()["error"]["message"]


async def test_a_collector_that_is_away_is_a_503_and_the_rest_goes_on(start: Start) -> None:
    served = await start(collector_addresses=("127.0.0.1:1",))
    await publish_job(served)

    async with served.client() as client:
        timeline = await client.get(f"/api/v1/jobs/{RUN}/timeline")
        jobs = await client.get("/api/v1/jobs")

    assert timeline.status_code == 503
    assert timeline.json()["error"]["code"] == "unavailable"
    assert "127.0.0.1:1" in timeline.json()["error"]["message"]
    assert jobs.status_code == 200


async def test_a_collector_that_refuses_the_gateways_token_says_which_setting(served: Served) -> None:
    served.answers.token = "another"
    await publish_job(served)

    async with served.client() as client:
        answer = await client.get(f"/api/v1/jobs/{RUN}/timeline")

    assert answer.status_code == 503
    assert "MEGATRONAPP_GATEWAY_COLLECTOR_TOKEN" in answer.json()["error"]["message"]


async def test_trace_control_goes_over_the_bus_and_is_confirmed_by_heartbeats(served: Served) -> None:
    await publish_job(served)
    sent = served.bus.subscribe(Topic.TRACE_CONTROL, group="collector", consumer="one")
    wish = {"enabled": True, "interval": 3, "continuous_iterations": 1, "granularity": "full"}
    path = f"/api/v1/jobs/{RUN}/trace-control"

    async with served.client(OPERATOR) as client:
        answer = await client.put(path, json=wish)
    published = await anext(sent)
    in_force = trace_pb2.TraceControl.FromString(published.value)
    await served.publish(message(heartbeat(control=in_force), identity(0)))
    await served.publish(message(heartbeat(control=control()), identity(1)))
    status = await served.until(path, lambda status: status["ranks"] == 2)

    assert answer.status_code == 200
    assert answer.json()["requested"] == wish
    assert published.key == RUN
    assert (in_force.interval, in_force.granularity) == (3, trace_pb2.GRANULARITY_FULL)
    assert (status["requested"], status["ranks_confirmed"]) == (wish, 1)


async def test_tracing_of_a_job_that_ended_is_a_conflict(served: Served) -> None:
    await publish_job(served)
    await served.publish(
        *(message(heartbeat(closing=True, phase=trace_pb2.PHASE_PAUSE), identity(rank)) for rank in range(4))
    )
    await served.until(f"/api/v1/jobs/{RUN}", lambda job: job["state"] == "stopped")
    wish = {"enabled": False, "interval": 1, "continuous_iterations": 1, "granularity": "base"}

    async with served.client(OPERATOR) as client:
        answer = await client.put(f"/api/v1/jobs/{RUN}/trace-control", json=wish)

    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")


async def test_findings_are_filtered_and_whole(served: Served) -> None:
    await publish_job(served)
    await served.publish(finding(1), finding(2, state=State.RESOLVED), finding(3, run="run-2"))
    await served.until("/api/v1/findings", lambda found: len(found) == 3)

    async with served.client() as client:
        of_run = (await client.get("/api/v1/findings", params={"run": RUN})).json()
        opened = (await client.get("/api/v1/findings", params={"run": RUN, "state": "open"})).json()
        one = (await client.get("/api/v1/findings/finding-1")).json()
        job = (await client.get(f"/api/v1/jobs/{RUN}")).json()

    assert [found["id"] for found in of_run] == ["finding-1", "finding-2"]
    assert [found["id"] for found in opened] == ["finding-1"]
    assert one == finding(1).model_dump(mode="json")
    assert one["evidence"][0]["steps"] == [40, 41]
    assert (job["slow_ranks"], job["open_findings"]) == ([1], 1)


async def test_only_what_may_be_none_is_refuted(served: Served) -> None:
    hang = finding(2).model_copy(update={"kind": Kind.HANG})
    await served.publish(message(hello()), finding(1), hang)
    await served.until("/api/v1/findings", lambda found: len(found) == 2)

    async with served.client(OPERATOR) as client:
        paths = ("finding-1", "finding-2", "nobody", "x" * 257, "..%2f..%2fetc")
        statuses = [(await client.post(f"/api/v1/findings/{path}/refute")).status_code for path in paths]
    async with served.client() as viewer:
        refused = await viewer.post("/api/v1/findings/finding-1/refute")

    (word,) = await anext(served.bus.follow(Topic.REFUTATIONS))  # type: ignore[arg-type]
    assert statuses == [202, 409, 404, 422, 404]
    assert refused.status_code == 403
    assert (word.key, findings_pb2.Refutation.FromString(word.value).finding) == (RUN, "finding-1")


async def test_findings_outlive_a_restart(start: Start) -> None:
    first = await start()
    await first.publish(finding(1))
    await first.until("/api/v1/findings", lambda found: len(found) == 1)
    await first.gateway.stop()

    second = await start(bus=first.bus)

    assert await second.until("/api/v1/findings", lambda found: len(found) == 1)


async def test_every_replica_sees_every_message(start: Start) -> None:
    first = await start()
    second = await start(bus=first.bus)

    await first.publish(finding(1), finding(2))

    for served in (first, second):
        await served.until("/api/v1/findings", lambda found: len(found) == 2)


async def test_a_broken_message_is_counted_and_the_next_one_read(served: Served) -> None:
    for topic in (Topic.STEPS, Topic.FINDINGS, Topic.TRACE_CONTROL):
        await served.bus.publish(topic, RUN, b"\xff\xff broken")
    await served.publish(finding(1))
    await publish_job(served)

    assert await served.until("/api/v1/findings", lambda found: len(found) == 1)
    assert served.registry.get_sample_value("megatronapp_gateway_bad_messages_total", {"topic": "steps"}) == 1


async def test_requests_are_measured_under_their_operations(served: Served) -> None:
    await publish_job(served)

    labels = {"method": "GET", "operation": "get_job", "status": "200"}

    assert served.registry.get_sample_value("megatronapp_gateway_request_seconds_count", labels)


async def test_a_taken_port_is_an_error_that_names_the_flag(served: Served, start: Start) -> None:
    with pytest.raises(UsageError, match="--port"):
        await start(port=served.gateway.port)


async def test_a_gateway_is_ready_between_start_and_stop(served: Served) -> None:
    ready = served.gateway.ready()
    await served.gateway.stop()

    assert ready
    assert not served.gateway.ready()


async def test_jobs_are_filtered_sorted_and_paged_in_an_order_that_stays(served: Served) -> None:
    """Beside these the collector tells of team/old, which has ended."""
    names = ["alpha", "beta", "gamma", "alpha-2"]
    sender = {name: trace_pb2.Identity(run=f"run-{name}", job=f"team/{name}", attempt=1) for name in names}
    for number, who in enumerate(sender.values(), start=1):
        await served.publish(message(hello(), who), message(summary(number), who))
    for name in ("gamma", "alpha"):
        await served.publish(message(heartbeat(closing=True), sender[name]))
    await served.until(
        "/api/v1/jobs", lambda jobs: len(jobs) == 5 and [job["state"] for job in jobs].count("failed") == 2
    )

    async def ask(**query: object) -> tuple[list[str], str]:
        async with served.client() as client:
            answer = await client.get("/api/v1/jobs", params=query)
        return [job["name"] for job in answer.json()], answer.headers["x-total-count"]

    assert await ask() == (["alpha-2", "gamma", "beta", "alpha", "old"], "5")
    assert await ask(state="failed") == (["gamma", "alpha"], "2")
    assert await ask(state=["failed", "running"], text="TEAM alp") == (["alpha-2", "alpha"], "2")
    assert await ask(sort="name", ascending=True) == (["alpha", "alpha-2", "beta", "gamma", "old"], "5")
    assert await ask(sort="progress", offset=1, limit=2) == (["alpha-2", "gamma"], "5")
