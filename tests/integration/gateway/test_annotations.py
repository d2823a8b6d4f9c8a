"""What people say of findings: who said it, that it stays, and that Alertmanager is silenced for real."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from megatronapp.core.bus import MemoryBus
from megatronapp.core.findings import Finding, Kind
from megatronapp.core.findings_store import FindingsStore, MemoryBackend
from tests.integration.gateway.conftest import OPERATOR, VIEWER, Served, Start, next_event
from tests.integration.gateway.support import finding
from tests.support.alertmanager import alertmanager
from tests.support.ports import free_port

PATH = "/api/v1/findings/finding-1"


async def store_of(*findings: Finding) -> FindingsStore:
    store = FindingsStore(MemoryBackend())
    for each in findings:
        await store.put(each)
    return store


async def ask(served: Served, method: str, path: str, token: str = OPERATOR, **given: Any) -> httpx.Response:
    async with served.client(token) as client:
        return await client.request(method, path, **given)


async def test_what_is_said_reaches_all_pages_of_all_gateways_and_outlives_them(start: Start) -> None:
    bus, store = MemoryBus(), await store_of(finding(1))
    first, second = await start(bus=bus, findings=store), await start(bus=bus, findings=store)
    await second.until("/api/v1/findings", lambda found: len(found) == 1)

    async with second.listen() as page:
        await next_event(page, "snapshot")
        answer = await ask(first, "POST", f"{PATH}/annotations", json={"kind": "acknowledge", "text": "on it"})
        heard = await next_event(page, "annotation")
    third = await start(findings=store)
    await third.until("/api/v1/findings", lambda found: len(found) == 1)

    assert answer.status_code == 201
    assert heard["annotation"] == answer.json()
    assert (heard["annotation"]["kind"], heard["annotation"]["text"]) == ("acknowledge", "on it")
    assert (await ask(third, "GET", f"{PATH}/annotations", VIEWER)).json() == [answer.json()]
    async with third.listen() as page:
        assert (await next_event(page, "snapshot"))["annotations"] == [answer.json()]


async def test_a_named_token_or_the_proxys_header_signs_what_is_said(start: Start, tmp_path: Path) -> None:
    people = tmp_path / "people"
    people.write_text(f"ann operator {'a' * 20}\n")
    named = await start(findings=await store_of(finding(1)), people_file=people)
    behind_proxy = await start(findings=await store_of(finding(1)), user_header="X-Forwarded-User")
    forged = {"headers": {"X-Forwarded-User": "eve"}}

    async def signature(served: Served, token: str, **given: Any) -> str:
        said = await ask(served, "POST", f"{PATH}/annotations", token, json={"kind": "comment", "text": "x"}, **given)
        return said.json()["by"]

    assert await signature(named, "a" * 20) == "ann"
    assert await signature(named, "a" * 20, **forged) == "ann"
    assert await signature(named, OPERATOR, **forged) == "operator"
    assert await signature(behind_proxy, OPERATOR, **forged) == "eve"


async def test_a_session_remembers_who_signed_in(start: Start, tmp_path: Path) -> None:
    people = tmp_path / "people"
    people.write_text(f"ann operator {'a' * 20}\n")
    served = await start(findings=await store_of(finding(1)), people_file=people)

    async with served.client(token="") as browser:
        signed_in = await browser.post("/api/v1/session", json={"token": "a" * 20})
        said = await browser.post(f"{PATH}/annotations", json={"kind": "comment", "text": "hello"})

    assert (signed_in.json()["name"], signed_in.json()["role"]) == ("ann", "operator")
    assert said.json()["by"] == "ann"


async def test_viewers_say_nothing_and_nobody_says_nonsense(start: Start) -> None:
    served = await start(findings=await store_of(finding(1)))

    answers = [
        await ask(served, "POST", f"{PATH}/annotations", VIEWER, json={"kind": "acknowledge"}),
        await ask(served, "POST", f"{PATH}/silence", VIEWER, json={"seconds": 600}),
        await ask(served, "POST", f"{PATH}/annotations", json={"kind": "comment", "text": "  "}),
        await ask(served, "POST", f"{PATH}/annotations", json={"kind": "silence"}),
        await ask(served, "POST", "/api/v1/findings/nobody/annotations", json={"kind": "acknowledge"}),
        await ask(served, "DELETE", f"{PATH}/silence"),
    ]

    assert [answer.status_code for answer in answers] == [403, 403, 422, 422, 404, 409]
    assert (await ask(served, "GET", f"{PATH}/annotations")).json() == []


async def test_without_an_alertmanager_a_silence_is_refused_with_what_to_do(start: Start) -> None:
    served = await start(findings=await store_of(finding(1)))

    answer = await ask(served, "POST", f"{PATH}/silence", json={"seconds": 600})
    session = (await ask(served, "GET", "/api/v1/session")).json()

    assert answer.status_code == 409
    assert "MEGATRONAPP_GATEWAY_ALERTMANAGER_URL" in answer.json()["error"]["message"]
    assert session["can_silence"] is False
    assert (await ask(served, "GET", f"{PATH}/annotations")).json() == []


async def test_an_alertmanager_that_is_away_leaves_no_silence_behind(start: Start) -> None:
    served = await start(findings=await store_of(finding(1)), alertmanager_url=f"http://127.0.0.1:{free_port()}")

    answer = await ask(served, "POST", f"{PATH}/silence", json={"seconds": 600})

    assert answer.status_code == 503
    assert (await ask(served, "GET", f"{PATH}/annotations")).json() == []


async def test_a_silence_holds_for_the_findings_alerts_and_for_no_others(start: Start, tmp_path: Path) -> None:
    """With a real Alertmanager."""
    port = free_port()
    config = {"route": {"receiver": "nobody"}, "receivers": [{"name": "nobody"}]}
    found = finding(1).model_copy(update={"ranks": (1, 3)})
    served = await start(findings=await store_of(found), alertmanager_url=f"http://127.0.0.1:{port}")
    alerts = [
        {"labels": {"alertname": name, "namespace": "team", "training_job": job, "rank": rank}}
        for name, job, rank in (
            ("SlowGPU", "gpt", "1"),
            ("SlowGPU", "gpt", "3"),
            ("SlowGPU", "gpt", "13"),
            ("SlowGPU", "other", "1"),
            ("SlowHost", "gpt", "1"),
        )
    ]
    with alertmanager(config, port, tmp_path) as client:
        client.post("/api/v2/alerts", json=alerts).raise_for_status()

        def silenced() -> set[tuple[str, str, str]]:
            labels = [a["labels"] for a in client.get("/api/v2/alerts").json() if a["status"]["silencedBy"]]
            return {(one["alertname"], one["training_job"], one["rank"]) for one in labels}

        first = await ask(served, "POST", f"{PATH}/silence", json={"seconds": 3600, "text": "known"})
        again = await ask(served, "POST", f"{PATH}/silence", json={"seconds": 7200})
        held = silenced()
        active = [s for s in client.get("/api/v2/silences").json() if s["status"]["state"] == "active"]
        ended = await ask(served, "DELETE", f"{PATH}/silence")
        after = silenced()

    assert [first.status_code, again.status_code, ended.status_code] == [201, 201, 200]
    assert held == {("SlowGPU", "gpt", "1"), ("SlowGPU", "gpt", "3")}
    assert [each["createdBy"] for each in active] == ["operator"]
    assert again.json()["until_unix_ns"] / 1e9 == pytest.approx(time.time() + 7200, abs=60)
    assert after == set()
    kinds = [each["kind"] for each in (await ask(served, "GET", f"{PATH}/annotations")).json()]
    assert kinds == ["silence", "silence", "unsilence"]


async def test_the_history_of_a_rank_a_node_and_a_device_reaches_over_runs(start: Start) -> None:
    def of(number: int, **fields: Any) -> Finding:
        return finding(number, run=f"run-{number}").model_copy(update={"opened_unix_ns": number, **fields})

    served = await start(
        findings=await store_of(
            of(1, node="node-a", devices=("GPU-x",)),
            of(2, node="node-a", ranks=(2,), devices=("GPU-y",)),
            of(3, node="node-b", devices=("GPU-x",), job="team/other"),
            of(4, kind=Kind.HANG, gpu_uuid="GPU-x"),
        ),
        ended_job_seconds=0,
    )

    async def ids(**query: Any) -> list[str]:
        answer = await ask(served, "GET", "/api/v1/findings/history", VIEWER, params=query)
        assert all(each["evidence"] == [] for each in answer.json())
        return [each["id"] for each in answer.json()]

    assert await ids(job="team/gpt", rank=1) == ["finding-4", "finding-1"]
    assert await ids(node="node-a") == ["finding-2", "finding-1"]
    assert await ids(device="GPU-x") == ["finding-4", "finding-3", "finding-1"]
    assert await ids(device="GPU-x", limit=1) == ["finding-4"]
    assert (await ask(served, "GET", "/api/v1/findings/history", params={"rank": 1})).status_code == 422
    assert (await ask(served, "GET", "/api/v1/findings/history")).status_code == 422
