"""A run as a whole, with a real trace-collector: its history, its time, its recipe, also when nobody remembers it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from megatronapp.collector.app import Collector
from megatronapp.collector.settings import CollectorSettings
from megatronapp.core.auth import AllowAll
from megatronapp.core.bus import MemoryBus
from megatronapp.core.findings_store import FindingsStore, MemoryBackend
from megatronapp.v1 import trace_pb2
from tests.integration.collector.support import RankStream
from tests.integration.gateway.conftest import Served, Start
from tests.integration.gateway.support import SECOND_NS, finding

BEGUN_NS = time.time_ns() + 3600 * SECOND_NS
"""After the first message: a run's steps come after its start."""
STEPS = 40


@pytest.fixture
async def collector(tmp_path: Path) -> AsyncIterator[Callable[[], Awaitable[Collector]]]:
    """Start the collector, also again over what it has kept."""
    running: list[Collector] = []

    async def started() -> Collector:
        for before in running:
            await before.stop()
        running.clear()
        settings = CollectorSettings(grpc_port=0, data_dir=tmp_path / "data", fsync=False)
        running.append(Collector(settings, MemoryBus(), CollectorRegistry(), AllowAll()))
        await running[0].start()
        return running[0]

    yield started
    for one in running:
        await one.stop()


async def run_attempt(
    address: str, run: str, *, attempt: int = 1, first: int = 1, count: int = STEPS, lr: str = "1"
) -> None:
    """One rank's attempt of steps of a second each; every tenth has written a checkpoint and evaluated before."""
    who = trace_pb2.Identity(run=run, job="team/gpt", attempt=attempt, rank=0, incarnation=attempt)
    recipe = trace_pb2.Recipe(
        settings=[trace_pb2.Setting(name=name, value=value) for name, value in (("lr", lr), ("seed", "7"))]
    )
    placement = trace_pb2.Placement(
        node="node-a", sizes=trace_pb2.ParallelSizes(world=1, pipeline=1), host_unix_ns=BEGUN_NS, host_clock_ns=0
    )
    schedule = trace_pb2.Schedule(first_step=first, total_steps=100)
    hello = trace_pb2.Hello(identity=who, placement=placement, schedule=schedule, recipe=recipe)
    rank = RankStream(address)
    await rank.send(trace_pb2.TraceMessage(hello=hello))
    for number, step in enumerate(range(first, first + count), start=1):
        body = trace_pb2.StepSummary(
            step=step,
            start_ns=(attempt * 200 + step) * SECOND_NS,
            duration_ns=SECOND_NS,
            progress=trace_pb2.Progress(loss=100.0 if step == 17 else 5.0 - step / 100),
            phases=[trace_pb2.PHASE_CHECKPOINT] if step % 10 == 1 and step > first else [],
            memory=trace_pb2.Memory(host_bytes=1 << 30),
        )
        await rank.send(trace_pb2.TraceMessage(seq=number, summary=body))
    evaluation = trace_pb2.Evaluation(split="valid", loss=4.2, microbatches=2, step=first + 9)
    last = trace_pb2.Heartbeat(closing=True, phase=trace_pb2.PHASE_PAUSE, evaluations=[evaluation])
    await rank.send(trace_pb2.TraceMessage(seq=count + 1, heartbeat=last))
    await rank.until_acked(count + 1)
    await rank.close()


async def get(served: Served, path: str, **query: Any) -> Any:
    async with served.client() as client:
        answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def status(served: Served, path: str, **query: Any) -> tuple[int, str]:
    async with served.client() as client:
        answer = await client.get(path, params=query)
    return answer.status_code, answer.json()["error"]["message"]


def curve(attempt: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [series for series in attempt["series"] if series["name"] == name]
    return found


async def test_the_history_of_several_runs_and_attempts_outlives_a_restart_of_the_platform(
    start: Start, collector: Callable[[], Awaitable[Collector]]
) -> None:
    before = f"127.0.0.1:{(await collector()).port}"
    await run_attempt(before, "run-a")
    await run_attempt(before, "run-a", attempt=2, first=31)
    await run_attempt(before, "run-b")
    after = f"127.0.0.1:{(await collector()).port}"
    served = await start(collector_addresses=(after,), ended_job_seconds=0)

    runs = await get(served, "/api/v1/history", run=["run-b", "run-a"])

    assert [(run["run"], [attempt["attempt"] for attempt in run["attempts"]]) for run in runs] == [
        ("run-b", [1]),
        ("run-a", [1, 2]),
    ]
    first, second = runs[1]["attempts"]
    assert (first["kept_to_step"], second["kept_to_step"]) == (30, None)
    assert second["first_step"] == list(range(31, 71))
    assert curve(first, "loss")["mean"][:2] == [4.99, 4.98]
    assert curve(first, "loss")["min"] is None
    assert curve(first, "host_memory_bytes")["mean"] == pytest.approx([1 << 30] * STEPS, rel=1e-6)
    assert [evaluation["loss"] for evaluation in first["evaluations"]] == [4.2]


async def test_a_thinned_history_shows_the_spike(start: Start, collector: Callable[[], Awaitable[Collector]]) -> None:
    address = f"127.0.0.1:{(await collector()).port}"
    await run_attempt(address, "run-a")
    served = await start(collector_addresses=(address,))

    for by in ("step", "time"):
        ((attempt,),) = [run["attempts"] for run in await get(served, "/api/v1/history", run="run-a", points=8, by=by)]
        loss = curve(attempt, "loss")
        assert len(attempt["first_step"]) <= 8
        assert (attempt["first_step"][0], attempt["last_step"][-1]) == (1, STEPS)
        assert (loss["mean"][0], loss["mean"][-1]) == (4.99, 4.6)
        assert max(loss["max"]) == 100.0


async def test_a_stretch_of_a_history_is_told_in_full(
    start: Start, collector: Callable[[], Awaitable[Collector]]
) -> None:
    address = f"127.0.0.1:{(await collector()).port}"
    await run_attempt(address, "run-a")
    served = await start(collector_addresses=(address,))
    begun = BEGUN_NS / SECOND_NS + 200

    by_step = await get(served, "/api/v1/history", run="run-a", from_step=16, to_step=18)
    by_time = await get(
        served, "/api/v1/history", run="run-a", from_unix_seconds=begun + 15.5, to_unix_seconds=begun + 18.5, by="time"
    )

    assert [run[0]["attempts"][0]["first_step"] for run in (by_step, by_time)] == [[16, 17, 18]] * 2


async def test_an_old_link_to_a_run_that_nobody_lists_any_more_still_opens(
    start: Start, collector: Callable[[], Awaitable[Collector]]
) -> None:
    address = f"127.0.0.1:{(await collector()).port}"
    await run_attempt(address, "run-a")
    store = FindingsStore(MemoryBackend())
    await store.put(finding(1, run="run-a").model_copy(update={"since_unix_ns": BEGUN_NS + 220 * SECOND_NS}))
    served = await start(collector_addresses=(address,), ended_job_seconds=0, findings=store)
    await served.until("/api/v1/jobs", lambda jobs: jobs == [])

    job = await get(served, "/api/v1/jobs/run-a")
    spent = await get(served, "/api/v1/jobs/run-a/time-spent")
    markers = await get(served, "/api/v1/jobs/run-a/markers")

    parts = {part["part"]: part["seconds"] for part in spent["parts"]}
    assert (job["state"], job["step"], job["recipe"]["settings"]) == ("stopped", STEPS, {"lr": "1", "seed": "7"})
    assert sum(parts.values()) == pytest.approx(spent["wall_seconds"], rel=0.01)
    assert parts["slow"] > 0
    assert [cost["finding"] for cost in spent["findings"]] == ["finding-1"]
    assert [(marker["kind"], marker["step"]) for marker in markers] == [
        ("finding", 40),
        ("checkpoint", 10),
        ("checkpoint", 20),
        ("checkpoint", 30),
        ("evaluation", 10),
    ]


async def test_recipes_are_compared(start: Start, collector: Callable[[], Awaitable[Collector]]) -> None:
    address = f"127.0.0.1:{(await collector()).port}"
    await run_attempt(address, "run-a", lr="3e-4")
    await run_attempt(address, "run-b", lr="1e-4")
    served = await start(collector_addresses=(address,))

    found = await get(served, "/api/v1/history/recipe-difference", run=["run-a", "run-b"])

    assert found["settings"] == [{"name": "lr", "values": ["3e-4", "1e-4"]}]
    assert (found["versions"], found["equal"]) == ([], 1)


async def test_what_is_not_there_says_so(start: Start, collector: Callable[[], Awaitable[Collector]]) -> None:
    address = f"127.0.0.1:{(await collector()).port}"
    await run_attempt(address, "run-a")
    served = await start(collector_addresses=(address,))

    unknown = await status(served, "/api/v1/history", run=["run-a", "run-of-nobody"])
    twice = await status(served, "/api/v1/history", run=["run-a", "run-a"])
    many = await status(served, "/api/v1/history", run=[f"run-{number}" for number in range(9)])
    job = await status(served, "/api/v1/jobs/run-of-nobody")

    assert (unknown[0], twice[0], many[0], job[0]) == (404, 422, 422, 404)
    assert "run-of-nobody" in unknown[1]
