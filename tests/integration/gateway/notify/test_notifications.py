"""From Alertmanager's webhook to people: once, whatever fails, however many gateways there are."""

from __future__ import annotations

import asyncio
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest
import yaml
from pydantic import SecretStr

from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.bus.kept import read_kept
from megatronapp.gateway.notify import notifier
from megatronapp.gateway.notify.events import AlertReceived, GroupState, MonitoringHeard, parse
from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.messages import Message
from megatronapp.gateway.notify.receivers import receivers
from tests.integration.gateway.notify.conftest import Inbox, Served, Start
from tests.support.alertmanager import alertmanager
from tests.support.helm import CHART
from tests.support.ports import free_port
from tests.support.smtp import MailBox, mail_server

JSON = {"Content-Type": "application/json"}
TOKEN = "alertmanager-token"
LABELS = {"alertname": "SlowGPU", "severity": "P1", "namespace": "ml", "training_job": "gpt", "node": "n1", "rank": "5"}


def webhook(status: str = "firing", **labels: str) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    alert = {"status": status, "labels": LABELS | labels, "annotations": {"summary": "rank 5 is slow"}, "startsAt": now}
    return {"version": "4", "groupKey": "g", "status": status, "receiver": "gateway", "alerts": [alert]}


async def say(served: Served, body: dict[str, Any], token: str = TOKEN) -> int:
    async with served.client(token) as client:
        return (await client.post("/api/v1/alerts", json=body)).status_code


def receiver_settings(inbox: Inbox, **more: Any) -> dict[str, Any]:
    """Settings of a gateway that notifies a channel and a phone."""
    return {
        "alertmanager_token": SecretStr(TOKEN),
        "slack_url": SecretStr(inbox.url("slack")),
        "phone_url": SecretStr(inbox.url("phone")),
        "page_url": "https://page.example.com",
    } | more


async def test_people_are_told_once_of_beginning_and_end(start: Start, inbox: Inbox) -> None:
    served = await start(**receiver_settings(inbox))

    assert [await say(served, webhook()) for _ in range(3)] == [204, 204, 204]
    await inbox.until(lambda: len(inbox.posts) == 1)
    await say(served, webhook("resolved"))
    await inbox.until(lambda: len(inbox.posts) == 2)

    titles = [body["text"] for body in inbox.bodies("slack")]
    assert titles == ["[P1] rank 5 is slow", "[P1] resolved: rank 5 is slow"]
    incidents = await served.until("/api/v1/incidents", lambda found: bool(found and found[0]["state"] == "resolved"))
    assert [(i["alert"], i["level"], i["ranks"], i["node"]) for i in incidents] == [("SlowGPU", "P1", ["5"], "n1")]


async def test_only_what_is_most_urgent_calls_people(start: Start, inbox: Inbox) -> None:
    served = await start(**receiver_settings(inbox))

    await say(served, webhook())
    await inbox.until(lambda: len(inbox.posts) == 1)
    await say(served, webhook(severity="P0", alertname="TrainingHang"))
    await inbox.until(lambda: len(inbox.posts) == 3)

    assert [body["event"] for body in inbox.bodies("phone")] == ["trigger"]
    assert inbox.bodies("slack")[1]["text"] == "[P0] now worse: rank 5 is slow"


async def test_two_gateways_tell_once_between_them(start: Start, inbox: Inbox) -> None:
    bus = MemoryBus()
    first, second = await start(bus=bus, **receiver_settings(inbox)), await start(bus=bus, **receiver_settings(inbox))

    await asyncio.gather(say(first, webhook()), say(second, webhook()))
    await inbox.until(lambda: len(inbox.posts) >= 1)
    await say(second, webhook("resolved"))
    await inbox.until(lambda: len(inbox.posts) >= 2)
    await asyncio.sleep(1.5)  # a second telling would come with the next look at what is due

    assert len(inbox.posts) == 2


async def test_a_gateway_that_starts_later_knows_and_tells_nobody_again(start: Start, inbox: Inbox) -> None:
    bus = MemoryBus()
    first = await start(bus=bus, **receiver_settings(inbox))
    await say(first, webhook())
    await inbox.until(lambda: len(inbox.posts) == 1)

    later = await start(bus=bus, **receiver_settings(inbox))
    await later.until("/api/v1/incidents", lambda found: len(found) == 1)
    await asyncio.sleep(1.5)

    assert len(inbox.posts) == 1


async def test_what_a_receiver_refuses_is_counted_and_tried_again(start: Start, inbox: Inbox) -> None:
    inbox.status = 503
    served = await start(**receiver_settings(inbox))

    await say(served, webhook())
    await inbox.until(lambda: len(inbox.posts) == 1)

    def failed() -> float | None:
        labels = {"receiver": "slack", "outcome": "failed"}
        return served.registry.get_sample_value("megatronapp_gateway_notifications_total", labels)

    await inbox.until(lambda: failed() == 1.0)
    assert served.registry.get_sample_value("megatronapp_gateway_incidents", {"level": "P1"}) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        b"[]",
        b"null",
        b"0",
        b'"ok"',
        b"",
        b"<html>",
        b"\xff\xfe",
        b"[" * 60_000,
        b"9" * 5_000,
        b'{"code": {}}',
        b"[]" * 99_999,
    ],
    ids=["list", "null", "zero", "text", "nothing", "html", "no text", "deep", "long number", "odd code", "long"],
)
async def test_a_receiver_that_answers_anything_keeps_nobody_else_from_being_told(
    start: Start, inbox: Inbox, answer: bytes
) -> None:
    inbox.answers["feishu"] = answer
    served = await start(**receiver_settings(inbox, feishu_url=SecretStr(inbox.url("feishu"))))

    await say(served, webhook())
    await inbox.until(lambda: bool(inbox.bodies("feishu") and inbox.bodies("slack")))
    await inbox.until(lambda: notifications(served, "feishu", "failed") == 1.0)
    await say(served, webhook("resolved"))
    await inbox.until(lambda: len(inbox.bodies("slack")) == 2)

    assert notifications(served, "slack", "sent") == 2.0
    assert served.gateway.ready()


async def test_a_compressed_answer_is_not_asked_for_and_not_unpacked(
    start: Start, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = mock.Mock(side_effect=AssertionError("it is unpacked"))
    monkeypatch.setattr(httpx._decoders.GZipDecoder, "decode", unpacked)
    inbox.status, inbox.encoding = 500, "gzip"
    inbox.answers["slack"] = gzip.compress(bytes(16 << 20))
    served = await start(**receiver_settings(inbox))

    await say(served, webhook())
    await inbox.until(lambda: notifications(served, "slack", "failed") == 1.0)

    assert not unpacked.called
    assert {headers["accept-encoding"] for *_, headers in inbox.posts} == {"identity"}


class BrokenReceiver:
    """Fails as only a mistake in our own code can."""

    name, level, reports = "broken", Level.P3, False

    async def deliver(self, client: httpx.AsyncClient, message: Message, now: float) -> None:
        raise RuntimeError("a mistake")


async def test_a_receiver_s_failure_of_any_kind_concerns_no_other(
    start: Start, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "receivers", lambda settings: (BrokenReceiver(), *receivers(settings)))
    served = await start(**receiver_settings(inbox))

    await say(served, webhook())
    await inbox.until(lambda: notifications(served, "broken", "failed") == 1.0)
    await inbox.until(lambda: notifications(served, "slack", "sent") == 1.0)

    assert served.gateway.ready()


async def test_an_event_that_makes_no_sense_keeps_no_other_from_being_told(start: Start, inbox: Inbox) -> None:
    served = await start(**receiver_settings(inbox))
    nonsense = AlertReceived(at=1e300, state=GroupState(group="x", firing=True, name="x", level=Level.P0, summary="s",
                                                since_unix_seconds=-1e300))  # fmt: skip

    await served.bus.publish(Topic.INCIDENTS, "x", nonsense.model_dump_json().encode())
    await served.bus.publish(Topic.INCIDENTS, "x", b"[" * 100_000)
    await say(served, webhook())
    await inbox.until(lambda: notifications(served, "slack", "sent") == 1.0)

    assert served.gateway.ready()


def notifications(served: Served, receiver: str, outcome: str) -> float | None:
    labels = {"receiver": receiver, "outcome": outcome}
    return served.registry.get_sample_value("megatronapp_gateway_notifications_total", labels)


@pytest.mark.parametrize("token", ["", "wrong", "viewer-token", "operator-token"])
async def test_nobody_but_alertmanager_may_raise_an_incident(start: Start, inbox: Inbox, token: str) -> None:
    served = await start(**receiver_settings(inbox))

    assert await say(served, webhook(), token) == 401
    assert inbox.posts == []


async def test_without_a_token_of_its_own_an_operator_s_will_do(start: Start) -> None:
    served = await start()

    statuses = [await say(served, webhook(), token) for token in ("operator-token", "viewer-token", "")]

    assert statuses == [204, 403, 401]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"groupKey": "g", "status": "firing", "alerts": []},
        {"groupKey": "g", "status": "burning", "alerts": [webhook()["alerts"][0]]},
        webhook() | {"alerts": [{"status": "firing", "labels": "x", "startsAt": "yesterday"}]},
        webhook(rank="9" * 5_000),
        webhook() | {"alerts": [webhook()["alerts"][0], webhook()["alerts"][0] | {"startsAt": "2026-11-20T10:00:05"}]},
        webhook() | {"alerts": [webhook()["alerts"][0] | {"startsAt": "0001-01-01T00:00:00+14:00"}]},
        webhook() | {"alerts": [webhook()["alerts"][0] | {"startsAt": "9999-12-31T23:59:59-14:00"}]},
    ],
)
async def test_what_is_no_webhook_is_refused(start: Start, body: dict[str, Any]) -> None:
    served = await start(alertmanager_token=SecretStr(TOKEN))

    assert await say(served, body) == 422
    assert await say(served, webhook()) == 204


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 500_000,
        b'{"groupKey": ' * 50_000,
        json.dumps(webhook()).replace('"4"', "1" * 5_000).encode(),
        json.dumps(webhook()).replace('"g"', '"\\ud800"').encode(),
        json.dumps(webhook()).replace('"5"', '"\\udfff"').encode(),
        b"\xff\xfe\x00",
    ],
    ids=["deep list", "deep object", "long number", "half a character", "half a character in a label", "no text"],
)
async def test_a_body_that_is_hard_to_read_is_refused(start: Start, body: bytes) -> None:
    served = await start(alertmanager_token=SecretStr(TOKEN))

    async with served.client(TOKEN) as client:
        answer = await client.post("/api/v1/alerts", content=body, headers=JSON)
        good = await client.post("/api/v1/alerts", json=webhook())

    assert answer.status_code in {400, 422}
    assert answer.json()["error"]["message"]
    assert good.status_code == 204


async def test_a_number_beyond_all_numbers_harms_nobody(start: Start) -> None:
    """Alertmanager may send more than is read here, and does not need to make sense of it."""
    served = await start(alertmanager_token=SecretStr(TOKEN))

    async with served.client(TOKEN) as client:
        body = json.dumps(webhook()).replace('"4"', "1e400").encode()
        answer = await client.post("/api/v1/alerts", content=body, headers=JSON)

    assert answer.status_code == 204
    await served.until("/api/v1/incidents", lambda found: len(found) == 1)


async def test_ranks_that_are_no_numbers_are_listed_all_the_same(start: Start) -> None:
    served = await start(alertmanager_token=SecretStr(TOKEN))
    alerts = [webhook(rank=rank)["alerts"][0] for rank in ("12", "5", "9" * 4_000, "-1", "x", "²", "٣")]

    assert await say(served, webhook() | {"alerts": alerts}) == 204

    (found,) = await served.until("/api/v1/incidents", lambda found: len(found) == 1)
    assert found["ranks"] == ["٣", "5", "12", "-1", "9" * 4_000, "x", "²"]


async def test_the_report_is_json_and_markdown(start: Start) -> None:
    served = await start(alertmanager_token=SecretStr(TOKEN))
    await say(served, webhook(cause="thermal"))
    await served.until("/api/v1/incidents", lambda found: len(found) == 1)

    async with served.client() as client:
        report = (await client.get("/api/v1/report")).json()
        text = (await client.get("/api/v1/report.md")).text
        late = (await client.get("/api/v1/report", params={"end": 1_000_000})).json()

    assert (report["incidents"], report["open"], report["causes"]) == (1, 1, [{"cause": "thermal", "incidents": 1}])
    assert "| thermal | 1 |" in text
    assert late["incidents"] == 0


async def test_a_real_alertmanager_is_understood(start: Start, inbox: Inbox, tmp_path: Path) -> None:
    bus = MemoryBus()
    async with mail_server(MailBox()) as box:
        mail = {"mail_host": "127.0.0.1", "mail_port": box.port, "mail_tls": "none"}
        addresses = {"mail_from": "m@example.com", "mail_to": ("a@example.com",)}
        served = await start(bus=bus, **receiver_settings(inbox, **mail, **addresses))
        await hear_of_a_fault(served, inbox, tmp_path)
        await inbox.until(lambda: len(box.mails) == 2)

    events = [parse(message.value) async for message in read_kept(bus, Topic.INCIDENTS)]
    assert any(isinstance(event, MonitoringHeard) for event in events)
    assert {event.state.name for event in events if isinstance(event, AlertReceived)} == {"SlowGPU"}
    assert [body["text"] for body in inbox.bodies("slack")] == [
        "[P1] slow (and 7 more)", "[P1] resolved: slow (and 7 more)",
    ]  # fmt: skip


async def hear_of_a_fault(served: Served, inbox: Inbox, folder: Path) -> None:
    """Of its beginning and its end, and of the alert that always fires, through a real Alertmanager."""
    config = yaml.safe_load((CHART / "files/alertmanager/alertmanager.yaml").read_text())
    # Long enough that the eight alerts of one call are one group.
    config["route"] |= {"group_wait": "2s", "group_interval": "2s"}
    hook = config["receivers"][0]["webhook_configs"][0]
    hook["url"] = f"{served.url}/api/v1/alerts"
    hook["http_config"]["authorization"] = {"type": "Bearer", "credentials": TOKEN}

    def fire(client: httpx.Client, **more: Any) -> None:
        alerts = [
            {"labels": LABELS | {"rank": str(rank)}, "annotations": {"summary": "slow"}} | more for rank in range(8)
        ]
        alerts.append({"labels": {"alertname": "Watchdog", "severity": "P3"}})
        client.post("/api/v2/alerts", json=alerts).raise_for_status()

    with alertmanager(config, free_port(), folder) as client:
        await asyncio.to_thread(fire, client)
        await inbox.until(lambda: len(inbox.posts) == 1)
        await asyncio.to_thread(fire, client, endsAt=datetime.now(UTC).isoformat())
        await inbox.until(lambda: len(inbox.posts) == 2)
