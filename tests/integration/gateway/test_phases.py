"""From the operator's PATCH to the list of jobs and the events, on every replica."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from pydantic import SecretStr
from websockets.asyncio.client import ClientConnection

from tests.integration.gateway.conftest import OPERATOR, VIEWER, Start

TOKEN, PATH = "phase-token", "/api/v1/jobs/phases"


def job(name: str = "gpt", phase: str | None = "Pending", **more: Any) -> dict[str, Any]:
    told = {"run": f"uid-{name}", "job": f"team/{name}", "phase": phase, "since_unix_seconds": time.time()}
    return told | more


def waiting_of(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of these tests: the collector has a run of its own."""
    return [one for one in jobs if one["run"].startswith("uid-")]


async def heard(events: ClientConnection, kind: str) -> dict[str, Any]:
    """The next event of this kind about a job of these tests."""
    while True:
        event: dict[str, Any] = json.loads(await events.recv())
        if event["type"] == kind and event.get("job", event)["run"] == "uid-gpt":
            return event


async def test_a_job_that_waits_is_listed_with_its_reason_and_goes_when_it_is_deleted(start: Start) -> None:
    served = await start(phase_token=SecretStr(TOKEN))
    waiting = job(reason="Unschedulable", message="no place for 2 of 2 pods")

    async with served.listen() as events, served.client(TOKEN) as operator:
        assert json.loads(await events.recv())["type"] == "snapshot"
        answer = await operator.patch(PATH, json={"jobs": [waiting, job("old", "Failed", since_unix_seconds=1)]})
        assert (answer.status_code, answer.content) == (204, b"")
        event = await heard(events, "job")
        listed = waiting_of(await served.until("/api/v1/jobs", waiting_of))
        assert (await operator.patch(PATH, json={"jobs": [job(phase=None)]})).status_code == 204
        await heard(events, "job_gone")

    assert event["job"]["state"] == "pending"
    assert [(one["run"], one["state"], one["state_reason"], one["state_message"]) for one in listed] == [
        ("uid-gpt", "pending", "Unschedulable", "no place for 2 of 2 pods")
    ]
    await served.until("/api/v1/jobs", lambda jobs: not waiting_of(jobs))


async def test_a_job_that_waits_has_a_page_of_its_own(start: Start) -> None:
    served = await start(phase_token=SecretStr(TOKEN))
    async with served.client(TOKEN) as operator:
        await operator.patch(PATH, json={"jobs": [job(phase="Suspended")]})

    found = await served.until("/api/v1/jobs/uid-gpt", lambda one: one["state"] == "suspended")
    async with served.client() as viewer:
        ranks = await viewer.get("/api/v1/jobs/uid-gpt/ranks")

    assert (found["name"], found["recipe"], ranks.json()) == ("gpt", None, [])


@pytest.mark.parametrize("token", ["", "wrong", VIEWER, OPERATOR])
async def test_nobody_but_the_operator_says_where_jobs_stand(start: Start, token: str) -> None:
    served = await start(phase_token=SecretStr(TOKEN))

    async with served.client(token) as client:
        answer = await client.patch(PATH, json={"jobs": [job()]})

    assert answer.status_code == 401
    assert "MEGATRONAPP_GATEWAY_PHASE_TOKEN" in answer.json()["error"]["message"]
    assert not waiting_of(await served.until("/api/v1/jobs", lambda jobs: True))


async def test_without_a_token_of_its_own_the_operator_role_is_asked_for(start: Start) -> None:
    served = await start()

    async with served.client(VIEWER) as viewer, served.client(OPERATOR) as operator:
        refused = await viewer.patch(PATH, json={"jobs": [job()]})
        taken = await operator.patch(PATH, json={"jobs": [job()]})

    assert (refused.status_code, taken.status_code) == (403, 204)


async def test_its_token_opens_nothing_else(start: Start) -> None:
    served = await start(phase_token=SecretStr(TOKEN))

    async with served.client(TOKEN) as client:
        assert (await client.get("/api/v1/jobs")).status_code == 401
        assert (await client.post("/api/v1/alerts", json={})).status_code == 401
