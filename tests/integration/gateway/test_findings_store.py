"""The gateway and the store of findings: they outlive the bus, and are found when their job has left the list."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from megatronapp.core.errors import UnavailableError
from megatronapp.core.findings import Finding, State
from megatronapp.core.findings_store import FindingsStore, MemoryBackend, Row
from megatronapp.gateway.state import JobStore
from tests.integration.gateway.conftest import Served, Start, next_event
from tests.integration.gateway.support import FOUND_UNIX_NS, finding, hello, message

WEEK_NS = 7 * 86_400 * 10**9
ARCHIVED = "run-archived"
"""A run that only the collector knows."""


async def store_of(*findings: Finding, backend: MemoryBackend | None = None) -> FindingsStore:
    store = FindingsStore(backend or MemoryBackend())
    for each in findings:
        await store.put(each)
    return store


def old(number: int, run: str) -> Finding:
    """Found and resolved a week ago."""
    found = finding(number, run=run, state=State.RESOLVED)
    return found.model_copy(update={"updated_unix_ns": FOUND_UNIX_NS - WEEK_NS, "opened_unix_ns": number})


async def answer(served: Served, path: str) -> tuple[int, object]:
    async with served.client() as client:
        got = await client.get(path)
        return got.status_code, got.json()


async def test_findings_and_their_jobs_are_listed_again_on_a_new_bus(start: Start) -> None:
    served = await start(findings=await store_of(finding(1, run=ARCHIVED)))

    found = await served.until("/api/v1/findings", lambda found: len(found) == 1)
    job = await served.until(f"/api/v1/jobs/{ARCHIVED}", lambda job: job["open_findings"] == 1)

    assert found == [finding(1, run=ARCHIVED).model_dump(mode="json")]
    assert job["job"] == "team/old"


async def test_what_the_bus_tells_later_goes_over_what_the_store_said(start: Start) -> None:
    served = await start(findings=await store_of(finding(1), finding(2)))

    await served.publish(finding(1, state=State.RESOLVED, changes=1))
    await served.publish(finding(2, state=State.RESOLVED, changes=-1))

    await served.until("/api/v1/findings?state=resolved", lambda found: [f["id"] for f in found] == ["finding-1"])
    await served.until("/api/v1/findings?state=open", lambda found: [f["id"] for f in found] == ["finding-2"])


async def test_a_finding_is_found_when_its_job_has_left_the_list(start: Start) -> None:
    long_ago = [old(1, "run-of-last-week"), old(2, "run-of-last-week")]
    served = await start(findings=await store_of(*long_ago), ended_job_seconds=3600)

    await served.until("/api/v1/findings", lambda found: found == [])
    one = await answer(served, "/api/v1/findings/finding-1")
    run = await answer(served, "/api/v1/findings?run=run-of-last-week&state=resolved")
    nobody = await answer(served, "/api/v1/findings/finding-3")

    assert one == (200, long_ago[0].model_dump(mode="json"))
    assert run == (200, [each.model_dump(mode="json") for each in reversed(long_ago)])
    assert nobody[0] == 404


async def test_old_findings_of_a_running_job_stay(start: Start) -> None:
    """The job is known a moment after they are."""
    served = await start(findings=await store_of(old(1, ARCHIVED), old(2, "run-1")), ended_job_seconds=3600)
    await served.publish(message(hello()))

    await served.until("/api/v1/jobs", lambda jobs: {job["run"] for job in jobs} == {ARCHIVED, "run-1"})
    async with served.listen() as socket:
        snapshot = await next_event(socket, "snapshot")

    assert {found["id"] for found in snapshot["findings"]} == {"finding-1", "finding-2"}


async def test_a_finding_that_cannot_be_read_hides_no_other(start: Start) -> None:
    backend = MemoryBackend()
    store = await store_of(finding(1), finding(2), backend=backend)
    broken = Row("broken", "run-1", "team/gpt", open=True, updated_unix_ns=1, stored_unix_ns=1, bytes=2)
    await backend.write(broken, b"\xff\xff", [])

    with capture_logs() as logged:
        served = await start(findings=store)
        await served.until("/api/v1/findings", lambda found: len(found) == 2)

    assert (await answer(served, "/api/v1/findings/broken"))[0] == 404
    assert [entry["id"] for entry in logged if entry["event"] == "stored_finding_unreadable"] == ["broken"]


class AwayAtFirst(MemoryBackend):
    away = True

    async def index(self) -> list[Row]:
        if self.away:
            raise UnavailableError("Redis does not answer")
        return await super().index()

    async def read(self, ids: Sequence[str]) -> dict[str, bytes]:
        if self.away:
            raise UnavailableError("Redis does not answer")
        return dict(await super().read(ids))


async def test_a_store_that_is_away_is_read_when_it_is_back_and_said_to_be_away_meanwhile(start: Start) -> None:
    backend = AwayAtFirst()
    backend.away = False
    store = await store_of(finding(1), backend=backend)
    backend.away = True
    served = await start(findings=store)
    await served.publish(finding(2))

    await served.until("/api/v1/findings", lambda found: [f["id"] for f in found] == ["finding-2"])
    status, said = await answer(served, "/api/v1/findings/finding-1")
    await asyncio.sleep(0)
    backend.away = False

    assert (status, said["error"]["code"]) == (503, "unavailable")  # type: ignore[index]
    await served.until("/api/v1/findings", lambda found: len(found) == 2)


async def test_a_finding_that_makes_trouble_here_hides_no_other_and_stops_nobody(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = JobStore.apply_finding

    def unless_first(job_store: JobStore, found: Finding) -> bool:
        if found.id == "finding-1":
            raise RuntimeError("nobody has thought of this")
        return apply(job_store, found)

    monkeypatch.setattr(JobStore, "apply_finding", unless_first)
    served = await start(findings=await store_of(finding(1), finding(2)))

    await served.until("/api/v1/findings", lambda found: [f["id"] for f in found] == ["finding-2"])
    assert served.gateway.ready()
